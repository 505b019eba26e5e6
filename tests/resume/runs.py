"""Runs: a loader that can be made again in; the batches of an uninterrupted run, and of one that is cut, out.

A process that resumes is a new one: each part of a cut run has a new dataset, sampler and loader, and the process's
generators are in other states.
"""

import io
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from torchstage import StageLoader

NUM_EPOCHS = 3
THREADS = (2, 0, 4, 1)  # one after another, at each cut


class Plain(Dataset):
    """The item is its index. ``asked``: every index that was asked for."""

    def __init__(self, length: int = 11) -> None:
        self.length = length
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.asked.append(index)
        return torch.as_tensor(index)


class Drawing(Dataset):
    """The item is its index, and a draw of each of the three libraries."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = int(torch.randint(1000, ())), random.randrange(1000), int(np.random.randint(1000))
        return torch.tensor([int(index), *draws])


class DrawingAtOnce(Drawing):
    """The same, a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def reseed(seed: int) -> None:
    """Put the process's generators into other states."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def through_torch(state: Any) -> Any:
    """As a checkpoint has it."""
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["loader"]


@dataclass(frozen=True)
class Case:
    """``make(**arguments)``: a new dataset, sampler and loader of it, with these arguments beside its own."""

    make: Callable[..., StageLoader[Any]]
    sets_epoch: bool = False  # whether the training loop calls set_epoch
    before_epoch: Callable[[StageLoader[Any], int], None] | None = None  # what else it does
    ways: Sequence[Callable[[Any], Any]] = (through_json, through_torch)  # to a file and back
    threads: Sequence[int] = THREADS
    num_epochs: int = NUM_EPOCHS
    arguments: dict[str, Any] = field(default_factory=dict)

    def new(self, **arguments: Any) -> StageLoader[Any]:
        return self.make(**{**self.arguments, **arguments})


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs_of(case: Case, loader: StageLoader[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    """A training loop without an end: each batch, and the number of its epoch."""
    number = first
    while True:
        if case.sets_epoch:
            getattr(loader.batch_sampler, "sampler", loader.sampler).set_epoch(number)
        if case.before_epoch is not None:
            case.before_epoch(loader, number)
        for batch in loader:
            yield number, plain(batch)
        number += 1


def uninterrupted(case: Case, **arguments: Any) -> list[Any]:
    """The batches of all epochs."""
    reseed(1)
    batches: list[Any] = []
    with case.new(**arguments) as loader:
        for number, batch in epochs_of(case, loader):
            if number == case.num_epochs:
                return batches
            batches.append(batch)
    raise AssertionError


def cut(case: Case, cuts: Sequence[int], num_batches: int, changes: Callable[[int], dict[str, Any]]) -> list[Any]:
    """As many batches of a run that is stopped after each of ``cuts``, and goes on in a new process.

    ``changes``: other arguments of the loader, by the number of the process.
    """
    batches: list[Any] = []
    state: Any = None
    epoch = 0
    for process, end in enumerate((*cuts, num_batches)):
        reseed(1 + 97 * process)
        with case.new(**changes(process)) as loader, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* is finished, and the sampler was set to epoch")  # the loop counts so
            if state is not None:
                loader.load_state_dict(case.ways[process % len(case.ways)](state))
                assert not _is_comparable(state) or loader.state_dict() == state
            with closing(epochs_of(case, loader, epoch)) as run:
                while len(batches) < end:
                    epoch, batch = next(run)
                    batches.append(batch)
                state = loader.state_dict()
                # A loop that counts by itself begins behind an epoch that it has finished; one that tells the number
                # of the epoch may tell that of the last one again.
                if batches and state["is_boundary"] and case.before_epoch is not None:
                    epoch += 1
    return batches


def _is_comparable(state: Any) -> bool:
    """Whether == tells: tensors in it compare element by element."""
    try:
        json.dumps(state)
    except TypeError:
        return False
    return True


def assert_same_run(batches: list[Any], expected: list[Any], what: str) -> None:
    for number, (one, other) in enumerate(zip(batches, expected, strict=True)):
        assert one == other, f"{what}: batch {number} of {len(expected)}"


def check_every_cut(case: Case) -> None:
    """Cut at every step, once."""
    expected = uninterrupted(case, num_workers=case.threads[0])
    for end in range(len(expected)):
        batches = cut(case, [end], len(expected), partial(_threads, case, end % 2))
        assert_same_run(batches, expected, f"cut at {end}")


def check_cuts_again(case: Case, steps: Sequence[int] = (1, 3, 4)) -> None:
    """Cut, and cut again after as many steps, to the end."""
    expected = uninterrupted(case, num_workers=case.threads[0])
    for step in steps:
        cuts = range(step, len(expected), step)
        batches = cut(case, cuts, len(expected), partial(_threads, case, 0))
        assert_same_run(batches, expected, f"cut after each {step}")


def _threads(case: Case, first: int, process: int) -> dict[str, Any]:
    return {"num_workers": case.threads[(first + process) % len(case.threads)]}
