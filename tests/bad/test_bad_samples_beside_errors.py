"""Bad samples beside errors: what is no bad sample keeps its place among the batches, and its words."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, Sampler

from tests.bad.test_bad_samples import Broken, everywhere
from torchstage import BadSample, SkipSample, StageLoader, TooManyBadSamples

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. [0-9]+ bad samples:UserWarning")


class Mixed(Dataset[int]):
    """Sample 0 is not wanted, sample 1 is broken, and of sample 2 there is more than the memory holds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 0:
            raise SkipSample("not wanted")
        if index == 1:
            raise OSError("broken")
        if index == 2:
            raise MemoryError("too large")
        return index


@everywhere
@pytest.mark.parametrize(("on_error", "kind"), [("raise", OSError), ("skip", MemoryError)])
def test_the_error_that_is_raised_is_the_one_that_is_not_tolerated(
    where: dict[str, Any], on_error: Any, kind: Any
) -> None:
    with StageLoader(Mixed(), 4, on_error=on_error, **where) as loader:
        batches = iter(loader)
        with pytest.raises(kind, match=r"broken|too large"):
            next(batches)
        assert next(batches).tolist() in ([4, 5, 6, 7], [3, 4, 5, 6])
        list(batches)


class Stumbling(Sampler[int]):
    """Fails once in the midst of its order, and goes on."""

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return Steps()


class Steps:
    def __init__(self) -> None:
        self.number = -1
        self.has_failed = False

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> int:
        if self.number == 7 and not self.has_failed:
            self.has_failed = True
            raise KeyError("no index")
        self.number += 1
        if self.number >= 24:
            raise StopIteration
        return self.number


@everywhere
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_error_of_the_sampler_comes_after_the_batches_before_it(where: dict[str, Any], on_error: Any) -> None:
    with StageLoader(Broken(24, bad=()), 4, sampler=Stumbling(), on_error=on_error, **where) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(KeyError, match="no index"):
            next(batches)


def stopping(samples: list[int]) -> list[int]:
    if 5 in samples:
        raise StopIteration
    return samples


@everywhere
def test_a_batch_that_cannot_be_collated_does_not_end_the_epoch(where: dict[str, Any]) -> None:
    with StageLoader(Broken(12, bad=(1,)), 4, on_error="skip", collate_fn=stopping, **where) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 2, 3, 4]
        with pytest.raises(RuntimeError, match="StopIteration was raised in stage 'collate', batch 1"):
            next(batches)
        assert list(batches) == [[9, 10, 11]]


@everywhere
def test_a_window_of_one_batch_loses_no_sample_at_the_end(where: dict[str, Any]) -> None:
    for length in range(4, 13):
        arguments: dict[str, Any] = {"prefetch_bytes": 1, "on_error": "skip", **where}
        with StageLoader(Broken(length, bad=(1,)), 4, **arguments) as loader:
            found = [index for batch in loader for index in batch.tolist()]
        assert found == [index for index in range(length) if index != 1]
        if where.get("worker_method") == "multiprocessing":
            return


def interrupting(samples: list[int]) -> list[int]:
    if interrupts and samples[0] == interrupts[0]:
        interrupts.pop()
        raise KeyboardInterrupt
    return samples


interrupts: list[int] = []


def test_what_ctrl_c_kept_from_being_collated_comes_again_in_the_callers_thread() -> None:
    interrupts.append(5)
    with StageLoader(Broken(12, bad=(1,)), 4, on_error="skip", collate_fn=interrupting) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 2, 3, 4]
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert loader.state_dict()["position"] == 5
        assert list(batches) == [[5, 6, 7, 8], [9, 10, 11]]


@everywhere
def test_what_is_said_at_the_end_is_said_once(where: dict[str, Any]) -> None:
    with StageLoader(Broken(4, bad=(1,)), 4, on_error="skip", **where) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.warns(UserWarning, match="1 bad samples"):
            assert next(batches, None) is None
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="StageLoader")
            assert next(batches, None) is None  # once more
            batches = iter(loader)
            next(batches)
            with pytest.raises(UserWarning, match="1 bad samples"):
                next(batches)
            assert next(batches, None) is None
    with StageLoader(Broken(2, bad=(0, 1)), 2, on_error="skip", **where) as loader:
        batches = iter(loader)
        with pytest.raises(TooManyBadSamples, match="all 2 samples"):
            next(batches)
        assert next(batches, None) is None


@everywhere
def test_a_state_after_an_error_goes_on_behind_it(where: dict[str, Any]) -> None:
    def loader_of() -> StageLoader[Any]:
        return StageLoader(Broken(16, bad=(3, 4)), 4, on_error=worse_of_four, **where)

    with loader_of() as loader:
        batches = iter(loader)
        with pytest.raises(KeyError, match="no way to mend 3"):
            next(batches)
        state = loader.state_dict()
        assert state["position"] == 4
        rest = [batch.tolist() for batch in batches]
    assert rest == [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15]]
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest


def worse_of_four(bad: BadSample) -> Any:
    if bad.index == 4:
        raise SkipSample("as I said")
    raise KeyError(f"no way to mend {bad.index}")


@everywhere
def test_errors_count_as_batches_do_in_messages(where: dict[str, Any]) -> None:
    """Their numbers are of what is handed out."""
    with StageLoader(Broken(16, bad=(0, 1, 2, 3, 4, 14)), 4, on_error=worse_late, **where) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [5, 6, 7, 8]
        with pytest.raises(KeyError, match="no way to mend 14") as caught:
            next(batches)
        assert any("dataset index 14" in note and "batch 1" in note for note in caught.value.__notes__)
        assert next(batches).tolist() == [9, 10, 11]


def worse_late(bad: BadSample) -> Any:
    if bad.index < 14:
        raise SkipSample("left out")
    raise KeyError(f"no way to mend {bad.index}")


@everywhere
def test_after_the_last_full_batch_the_epoch_is_over_if_the_rest_is_dropped(where: dict[str, Any]) -> None:
    with StageLoader(Broken(11, bad=()), 4, drop_last=True, on_error="skip", **where) as loader:
        batches = iter(loader)
        next(batches)
        assert not loader.state_dict()["is_boundary"]
        next(batches)
        assert loader.state_dict()["is_boundary"]
        assert next(batches, None) is None


@everywhere
def test_samples_that_failed_after_the_last_good_one_are_counted_once(where: dict[str, Any]) -> None:
    with StageLoader(Broken(7, bad=(5, 6)), 4, on_error="skip", **where) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        assert loader.state_dict()["is_boundary"]
        assert next(batches, None) is None
        assert loader.stats().bad_samples == 2
