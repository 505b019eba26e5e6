"""What may be other in the process that goes on, and how a loader is used beside."""

import multiprocessing
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, MapDataPipe

from torchstage import Stage, StageLoader
from torchstage.samplers import ElasticSampler

from . import custom
from .cases import OF_TORCH, of
from .runs import (
    Case,
    Drawing,
    DrawingAtOnce,
    Plain,
    check_cuts_again,
    check_every_cut,
    cut,
    plain,
    reseed,
    uninterrupted,
)


class Pipe(MapDataPipe):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def doubled(sample: torch.Tensor) -> torch.Tensor:
    return sample * 2


def noisy(sample: torch.Tensor) -> torch.Tensor:
    return sample + torch.randint(1000, ())


SHUFFLED = {"shuffle": True, "has_generator": True}


@pytest.mark.parametrize(
    "case",
    [
        of(dataset=DrawingAtOnce, **SHUFFLED),
        of(stages=[Stage(doubled), Stage(noisy)], **SHUFFLED),
        of(prefetch_bytes=100, **SHUFFLED),
        of(device="cpu", **SHUFFLED),
        of(isolation="serial", **SHUFFLED),
        of(dataset=lambda length: Pipe(), **SHUFFLED),
    ],
    ids=["__getitems__", "stages", "prefetch_bytes", "device", "serial", "MapDataPipe"],
)
def test_it_goes_on_with_whatever_makes_the_batches(case: Case) -> None:
    check_every_cut(case)
    check_cuts_again(case)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["shuffled", "weighted", "distributed, epochs set", "elastic, epochs set"])
def test_it_goes_on_with_any_prefetch_factor(name: str, persistent: bool) -> None:
    case = OF_TORCH[name]
    expected = uninterrupted(case, num_workers=2, persistent_workers=persistent)

    def changes(process: int) -> dict[str, Any]:
        return {"num_workers": 1 + process % 3, "prefetch_factor": 1 + process, "persistent_workers": persistent}

    assert cut(case, (1, 3, 4, 7, 8), len(expected), changes) == expected


OF_INDICES = {**OF_TORCH["shuffled"].arguments, "dataset": Plain}  # worker processes have draws of their own


def test_worker_processes_go_on_for_threads_and_threads_for_them() -> None:
    case = Case(OF_TORCH["shuffled"].make, arguments=OF_INDICES, num_epochs=2)
    expected = uninterrupted(case, num_workers=0)

    def changes(process: int) -> dict[str, Any]:
        return {"num_workers": 1, **({"multiprocessing_context": "forkserver"} if process in (1, 2) else {})}

    assert cut(case, (2, 5, 9), len(expected), changes) == expected


def test_worker_processes_that_are_kept_draw_no_second_base_seed() -> None:
    kept = {"multiprocessing_context": "forkserver", "persistent_workers": True, "num_workers": 1}
    case = Case(OF_TORCH["shuffled"].make, arguments={**OF_INDICES, **kept})
    expected = uninterrupted(case)
    assert cut(case, (6, 9), len(expected), lambda process: {}) == expected


@pytest.mark.parametrize("name", ["shuffled", "weighted", "distributed", "elastic, alone", "with replacement"])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3, 1, None), (None, 4)])
def test_the_batch_size_may_be_another(name: str, sizes: tuple[int | None, ...]) -> None:
    """Samples and their draws are the same; which of them make a batch is not."""
    case = OF_TORCH[name]
    one_epoch = Case(case.make, sets_epoch=case.sets_epoch, arguments=case.arguments, num_epochs=1)
    expected = list(chain(*uninterrupted(one_epoch, num_workers=2)))
    state: Any = None
    samples: list[Any] = []
    for number, size in enumerate(sizes):
        if number and state["is_boundary"]:
            break
        reseed(1 + 97 * number)
        with case.new(num_workers=number % 3, batch_size=size) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader:
                samples += [plain(batch)] if size is None else plain(batch)
                state = loader.state_dict()
                if number < len(sizes) - 1:
                    break
    assert samples == expected


def test_without_the_last_batch_another_size_drops_another_rest() -> None:
    loader = StageLoader(Plain(11), 2, drop_last=True)
    next(iter(loader))
    other = StageLoader(Plain(11), 4, drop_last=True)
    other.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in other] == [[2, 3, 4, 5], [6, 7, 8, 9]]


# The epoch's number ---------------------------------------------------------------------------------------------


def _sampled(kind: Any, epoch: int = 0) -> StageLoader[Any]:
    dataset = Drawing(11)
    loader = StageLoader(dataset, 2, sampler=kind(dataset, 1, 0), num_workers=2)
    loader.sampler.set_epoch(epoch)  # type: ignore[union-attr]
    return loader


every_kind = pytest.mark.parametrize("kind", [DistributedSampler, ElasticSampler])


def _state_after(num_batches: int, kind: Any, epoch: int = 4) -> dict[str, Any]:
    loader = _sampled(kind, epoch)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return loader.state_dict()


def _epoch_of(kind: Any, epoch: int) -> list[Any]:
    return [plain(batch) for batch in _sampled(kind, epoch)]


@every_kind
def test_inside_an_epoch_its_number_may_be_set_again(kind: Any) -> None:
    loader = _sampled(kind)
    loader.load_state_dict(_state_after(2, kind))
    assert loader.sampler.epoch == 4  # type: ignore[union-attr]
    loader.sampler.set_epoch(4)  # type: ignore[union-attr]
    assert [plain(batch) for batch in loader] == _epoch_of(kind, 4)[2:]
    loader.sampler.set_epoch(5)  # type: ignore[union-attr]
    assert [plain(batch) for batch in loader] == _epoch_of(kind, 5)


@every_kind
def test_inside_an_epoch_another_number_is_an_error_and_the_right_one_goes_on(kind: Any) -> None:
    loader = _sampled(kind)
    loader.load_state_dict(_state_after(2, kind))
    loader.sampler.set_epoch(5)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"inside epoch 4, but the sampler was set to 5\. Call set_epoch\(4\)"):
        next(iter(loader))
    loader.sampler.set_epoch(4)  # type: ignore[union-attr]
    assert [plain(batch) for batch in loader] == _epoch_of(kind, 4)[2:]


@every_kind
def test_a_finished_epoch_that_is_set_again_is_empty_and_says_so(kind: Any) -> None:
    loader = _sampled(kind)
    loader.load_state_dict(_state_after(6, kind))
    loader.sampler.set_epoch(4)  # type: ignore[union-attr]
    with pytest.warns(RuntimeWarning, match=r"epoch 4 is finished.*Call set_epoch\(5\)"):
        assert list(loader) == []
    loader.sampler.set_epoch(5)  # type: ignore[union-attr]
    assert [plain(batch) for batch in loader] == _epoch_of(kind, 5)


@every_kind
@pytest.mark.parametrize("number", [3, 5, 9])
def test_after_a_finished_epoch_any_other_is_whole(kind: Any, number: int) -> None:
    loader = _sampled(kind)
    loader.load_state_dict(_state_after(6, kind))
    loader.sampler.set_epoch(number)  # type: ignore[union-attr]
    assert [plain(batch) for batch in loader] == _epoch_of(kind, number)


@every_kind
def test_an_epoch_whose_iterator_was_made_too_early_may_get_its_number_later(kind: Any) -> None:
    """As a loop does that fetches ahead: it saves before the first batch of the next epoch."""
    loader = _sampled(kind, 4)
    list(loader)
    iter(loader)
    state = loader.state_dict()
    other = _sampled(kind)
    other.load_state_dict(state)
    other.sampler.set_epoch(5)  # type: ignore[union-attr]
    assert [plain(batch) for batch in other] == _epoch_of(kind, 5)


def test_the_number_that_a_state_gave_is_a_plain_one_once_the_epoch_goes_on() -> None:
    loader = _sampled(DistributedSampler)
    loader.load_state_dict(_state_after(2, DistributedSampler))
    next(iter(loader))
    assert type(loader.sampler.epoch) is int  # type: ignore[union-attr]


def test_a_sampler_s_own_state_in_a_state_is_a_copy() -> None:
    sampler = custom.Stateful()
    loader = StageLoader(Plain(11), 2, sampler=sampler)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    before = plain(state["sampler_state"]), dict(state["sampler_state"]["sampler"])
    next(iterator)
    assert (state["sampler_state"], state["sampler_state"]["sampler"]) == before


class Late:
    """Samples that come when they are let."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 2:
            self.gate.wait()
        return index


def test_a_worker_process_that_is_late_has_handed_out_nothing() -> None:
    gate = multiprocessing.get_context("fork").Event()
    loader = StageLoader(Late(gate), 2, num_workers=1, timeout=1, multiprocessing_context="fork")
    with loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(RuntimeError, match="timed out"):
            next(batches)
        assert loader.state_dict()["position"] == 2
        gate.set()
        assert [batch.tolist() for batch in batches] == [[2, 3], [4, 5]]
