"""Random generators: a resume leaves the process's alone, and the run's own draws are those that it would have made."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Sampler

from torchstage import StageLoader

from . import custom
from .cases import CUSTOM, OF_TORCH, of
from .runs import Case, Plain, check_cuts_again, check_every_cut, epochs_of, plain, reseed, through_torch

SAMPLERS = {
    "shuffled": OF_TORCH["shuffled"],
    "shuffled, with a generator": OF_TORCH["shuffled, with a generator"],
    "with replacement": OF_TORCH["with replacement"],
    "weighted": OF_TORCH["weighted"],
    "in sequence": OF_TORCH["in sequence"],
    "at once": CUSTOM["at once, torch"],
    "at first, numpy": CUSTOM["at first, numpy"],
    "own": CUSTOM["own random, at once"],
}
every_sampler = pytest.mark.parametrize("case", SAMPLERS.values(), ids=SAMPLERS)
every_num_workers = pytest.mark.parametrize("num_workers", [0, 2])
Process = tuple[Any, Any, Any]


def of_process() -> Process:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()


def put_back(states: Any) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])


def checkpoint(loader: StageLoader[Any]) -> dict[str, Any]:
    """What a training loop saves that draws itself."""
    return {
        "loader": through_torch(loader.state_dict()),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }


@every_sampler
@every_num_workers
def test_a_resume_inside_an_epoch_leaves_the_process_s_generators_as_they_are(case: Case, num_workers: int) -> None:
    reseed(1)
    loader = case.new(num_workers=num_workers)
    next(iter(loader))
    state = loader.state_dict()

    reseed(2)
    other = case.new(num_workers=num_workers)
    before = of_process()
    other.load_state_dict(state)
    iterator = iter(other)
    for _ in range(3):
        next(iterator)
        other.state_dict()
        assert of_process() == before


@every_num_workers
@every_sampler
@pytest.mark.parametrize("when", ["before the load", "after the load", "after the first batch"])
def test_who_restores_the_process_s_generators_goes_on_with_all_draws(case: Case, num_workers: int, when: str) -> None:
    """A training loop that draws itself (dropout) between the batches, from the generators that give the orders."""

    def step(batch: Any) -> Any:
        return batch, torch.rand(()).item(), random.random(), float(np.random.random())

    total = 16
    reseed(1)
    with case.new(num_workers=num_workers) as loader:
        run = epochs_of(case, loader)
        expected = [step(next(run)[1]) for _ in range(total)]
        run.close()
    for end in (1, 5, 6, 7, 11):
        reseed(1)
        with case.new(num_workers=num_workers) as loader:
            run = epochs_of(case, loader)
            steps = [step(next(run)[1]) for _ in range(end)]
            saved = checkpoint(loader)
            run.close()
        reseed(2)
        with case.new(num_workers=num_workers) as loader:
            if when == "before the load":
                put_back(saved)
            loader.load_state_dict(saved["loader"])
            if when == "after the load":
                put_back(saved)
            run = epochs_of(case, loader)
            batch = next(run)[1]
            if when == "after the first batch":
                if end % len(loader) == 0:  # it was the first of an epoch, whose order was drawn: too late
                    run.close()
                    continue
                put_back(saved)
            steps.append(step(batch))
            steps += [step(next(run)[1]) for _ in range(total - end - 1)]
            run.close()
        assert steps == expected, f"cut at {end}"


@every_num_workers
@pytest.mark.parametrize("case", [SAMPLERS["shuffled"], CUSTOM["as it goes, torch"]], ids=["shuffled", "as it goes"])
def test_who_draws_from_another_library_leaves_the_orders_alone(case: Case, num_workers: int) -> None:
    """The orders come from torch's generator, the steps' draws from numpy's, which nobody restores."""
    reseed(1)
    with case.new(num_workers=num_workers) as loader:
        run = epochs_of(case, loader)
        expected = [next(run)[1] for _ in range(18)]
        run.close()
    reseed(1)
    with case.new(num_workers=num_workers) as loader:
        run = epochs_of(case, loader)
        batches = [next(run)[1] for _ in range(4)]
        state = loader.state_dict()
        run.close()
    reseed(2)
    with case.new(num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        for _, batch in epochs_of(case, loader):
            batches.append(batch)
            np.random.random()
            if len(batches) == 18:
                break
    assert batches == expected


def _seeds_its_generator(loader: StageLoader[Any], epoch: int) -> None:
    loader.generator.manual_seed(100 + epoch)


def _seeds_its_sampler(loader: StageLoader[Any], epoch: int) -> None:
    loader.sampler.rng.seed(100 + epoch)  # type: ignore[union-attr]


def _seeds_the_process(loader: StageLoader[Any], epoch: int) -> None:
    reseed(100 + epoch)


@pytest.mark.parametrize(
    "case",
    [
        of(shuffle=True, has_generator=True, before_epoch=_seeds_its_generator),
        of(shuffle=True, length=12, has_generator=True, before_epoch=_seeds_its_generator),
        of(lambda data: custom.Own("random", at_once=True), before_epoch=_seeds_its_sampler),
        of(shuffle=True, before_epoch=_seeds_the_process),
        of(lambda data: custom.AtOnce("numpy"), before_epoch=_seeds_the_process),
        of(lambda data: custom.AtFirst("random"), before_epoch=_seeds_the_process),
    ],
    ids=["generator", "generator, full batches", "sampler", "process", "process, numpy", "process, random"],
)
def test_who_seeds_before_each_epoch_goes_on_with_the_orders_of_the_seeds(case: Case) -> None:
    check_every_cut(case)
    check_cuts_again(case)


@pytest.mark.parametrize("case", [SAMPLERS["shuffled"], SAMPLERS["own"]], ids=["shuffled", "own"])
def test_without_a_seed_the_samples_draws_are_those_of_torch_s_base_seed(case: Case) -> None:
    threads = Case(case.make, arguments={**case.arguments, "seed": None}, threads=(2, 1, 4))
    check_every_cut(threads)
    check_cuts_again(threads)


@pytest.mark.parametrize("batch_size", [2, None])
def test_threads_that_are_kept_draw_no_second_base_seed(batch_size: int | None) -> None:
    arguments = {"seed": None, "persistent_workers": True, "batch_size": batch_size}
    case = Case(SAMPLERS["shuffled"].make, arguments={**SAMPLERS["shuffled"].arguments, **arguments}, threads=(2, 1))
    check_every_cut(case)
    check_cuts_again(case)


class Stateless(Sampler[int]):
    """Has a generator of the operating system's, which has no state."""

    def __init__(self) -> None:
        self.rng = random.SystemRandom()

    def __iter__(self) -> Iterator[int]:
        return iter(range(11))

    def __len__(self) -> int:
        return 11


def test_a_generator_without_a_state_is_left_alone() -> None:
    loader = StageLoader(Plain(11), 2, sampler=Stateless(), num_workers=2)
    next(iter(loader))
    other = StageLoader(Plain(11), 2, sampler=Stateless(), num_workers=2)
    other.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in other] == [[2, 3], [4, 5], [6, 7], [8, 9], [10]]


class Seen(Dataset):
    """Draws from torch's generator; without threads that is the process's."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(torch.randint(1000, ()))])


@pytest.mark.parametrize("library", ["torch", "random"])
def test_to_ask_for_the_state_changes_no_draw(library: str) -> None:
    """Inline and without a seed the sampler that draws as it goes and the dataset share torch's generator."""

    def run(asks: bool) -> list[Any]:
        reseed(1)
        loader = StageLoader(Seen(), 2, sampler=custom.AsItGoes(library))
        batches = []
        for _ in range(2):
            for batch in loader:
                batches.append(plain(batch))
                if asks:
                    loader.state_dict()
        return batches

    assert run(asks=True) == run(asks=False)


@pytest.mark.parametrize("case", [OF_TORCH["shuffled, full batches"], SAMPLERS["shuffled"]], ids=["own", "process"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_is_left_at_the_last_batch_goes_on_like_one_that_is_not(case: Case, num_workers: int) -> None:
    """torch's sampler draws once more from its generator, after the last index."""
    reseed(1)
    with case.new(num_workers=num_workers) as loader:
        expected = [[plain(batch) for batch in loader] for _ in range(2)]
    reseed(1)
    with case.new(num_workers=num_workers) as loader:
        for number, _ in enumerate(loader):
            if number == len(loader) - 1:
                break
        before = of_process()
        state = loader.state_dict()
        assert of_process() == before
    assert state["is_boundary"]
    reseed(2)
    with case.new(num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == expected[1]
