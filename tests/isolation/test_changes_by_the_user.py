"""What the user changes in the dataset while its first samples are looked at is not taken for what samples change."""

import threading
from typing import Any

import pytest

from torchstage import Stage, StageLoader


class Versioned:
    def __init__(self) -> None:
        self.version = 0

    def __len__(self) -> int:
        return 15

    def __getitem__(self, index: int) -> Any:
        return index, self.version


async def as_it_is(sample: Any) -> Any:
    return sample


ARGUMENTS: dict[str, Any] = {"batch_size": None, "collate_fn": tuple, "worker_method": "thread"}


@pytest.mark.parametrize("stages", [[], [Stage(as_it_is)]], ids=["threads", "event loop"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_change_is_seen_where_the_first_epoch_was_left_after_its_first_sample(num_workers: int, stages: Any) -> None:
    """With threads that are kept, and may be in the second of the first samples."""
    dataset = Versioned()
    with StageLoader(dataset, num_workers=num_workers, persistent_workers=True, stages=stages, **ARGUMENTS) as loader:
        next(iter(loader))
        dataset.version = 1
        assert [version for _, version in loader] == [1] * 15
    assert dataset.version == 1


class Slow(Versioned):
    """The second sample is made while the user has the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            self.goes_on.wait(0.5)  # the loader waits for it: nobody says so before
        return super().__getitem__(index)


def test_a_first_batch_of_one_sample_is_handed_out_when_the_second_was_looked_at() -> None:
    dataset = Slow()
    with StageLoader(dataset, num_workers=1, isolation="auto", **ARGUMENTS) as loader:
        iterator = iter(loader)
        next(iterator)
        dataset.version = 1
        dataset.goes_on.set()
        assert [index for index, _ in iterator] == [*range(1, 15)]
    assert dataset.version == 1


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_change_between_the_first_samples_stays_where_no_two_may_be_in_flight(num_workers: int) -> None:
    dataset = Versioned()
    with StageLoader(dataset, num_workers=num_workers, prefetch_bytes=1, **ARGUMENTS) as loader:
        iterator = iter(loader)
        seen = [next(iterator)]
        dataset.version = 1
        seen += iterator
    assert dataset.version == 1
    assert [version for _, version in seen] == [0] + [1] * 14
