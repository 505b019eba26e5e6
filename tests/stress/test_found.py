"""What the stress run has found and nobody has mended yet."""

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


@pytest.mark.xfail(reason="samples after the first two are made with copies of the dataset as it was before the change")
def test_a_change_is_seen_where_the_first_epoch_was_left_while_its_first_samples_were_looked_at() -> None:
    """Program 22002083: threads that are kept, and a stage in another place than the dataset."""
    dataset = Versioned()
    arguments: dict[str, Any] = {"batch_size": None, "collate_fn": tuple, "worker_method": "thread"}
    stages = [Stage(as_it_is)]
    with StageLoader(dataset, num_workers=1, persistent_workers=True, stages=stages, **arguments) as loader:
        next(iter(loader))
        dataset.version = 1
        assert [version for _, version in loader] == [1] * 15
