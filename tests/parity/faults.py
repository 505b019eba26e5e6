"""Faults: loaders whose functions raise in chosen batches, at every place where user code runs."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .datasets import Indices, as_given

NUM_BATCHES = 8
BATCH_SIZE = 2
BATCHES = [[BATCH_SIZE * number, BATCH_SIZE * number + 1] for number in range(NUM_BATCHES)]


class ThreePartError(Exception):
    """Its constructor wants more than a message: it cannot be made again from its words."""

    def __init__(self, code: int, *, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}: {code}")
        self.code, self.path, self.line = code, path, line


class Stop(BaseException):
    """No ``Exception``: as a framework's own signal."""


class Fault:
    """Raises what it was given for a batch."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.errors = errors

    def raise_in(self, batch: int) -> None:
        if batch in self.errors:
            raise self.errors[batch]


class FaultyDataset(Indices):
    def __init__(self, fault: Fault) -> None:
        super().__init__(BATCH_SIZE * NUM_BATCHES)
        self.fault = fault

    def __getitem__(self, index: int) -> int:
        if index % BATCH_SIZE:
            self.fault.raise_in(index // BATCH_SIZE)
        return index


class FaultyBulk(Indices):
    def __init__(self, fault: Fault) -> None:
        super().__init__(BATCH_SIZE * NUM_BATCHES)
        self.fault = fault

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.fault.raise_in(indices[0] // BATCH_SIZE)
        return indices


class FaultySampler:
    """Goes on after it raised, as an iterator may that is no generator."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __iter__(self) -> Iterator[list[int]]:
        self.number = -1
        return self

    def __next__(self) -> list[int]:
        self.number += 1
        if self.number == NUM_BATCHES:
            raise StopIteration
        self.fault.raise_in(self.number)
        return BATCHES[self.number]


class FaultyBatch:
    """Pinned as torch pins a user's own type. It is no list: torch 2.9 pins the members of lists of any type."""

    def __init__(self, fault: Fault, samples: list[int]) -> None:
        self.fault, self.samples = fault, samples

    def pin_memory(self) -> list[int]:
        self.fault.raise_in(self.samples[0] // BATCH_SIZE)
        return self.samples


def faulty_collate(fault: Fault, samples: list[int]) -> list[int]:
    fault.raise_in(samples[0] // BATCH_SIZE)
    return samples


def in_dataset(fault: Fault) -> dict[str, Any]:
    return {"dataset": FaultyDataset(fault), "batch_size": BATCH_SIZE, "collate_fn": as_given}


def in_bulk(fault: Fault) -> dict[str, Any]:
    return {"dataset": FaultyBulk(fault), "batch_size": BATCH_SIZE, "collate_fn": as_given}


def in_collate(fault: Fault) -> dict[str, Any]:
    def collate(samples: list[int]) -> list[int]:
        return faulty_collate(fault, samples)

    return {"dataset": Indices(BATCH_SIZE * NUM_BATCHES), "batch_size": BATCH_SIZE, "collate_fn": collate}


def in_sampler(fault: Fault) -> dict[str, Any]:
    return {"dataset": Indices(0), "sampler": FaultySampler(fault), "batch_size": None, "collate_fn": as_given}


def in_batch_sampler(fault: Fault) -> dict[str, Any]:
    return {"dataset": Indices(0), "batch_sampler": FaultySampler(fault), "collate_fn": as_given}


def in_pinning(fault: Fault) -> dict[str, Any]:
    """Where no accelerator is, the test pretends that there is one."""

    def collate(samples: list[int]) -> FaultyBatch:
        return FaultyBatch(fault, samples)

    dataset = Indices(BATCH_SIZE * NUM_BATCHES)
    return {"dataset": dataset, "batch_size": BATCH_SIZE, "collate_fn": collate, "pin_memory": True}


Place = Callable[[Fault], dict[str, Any]]
IN_SAMPLERS: dict[str, Place] = {"sampler": in_sampler, "batch sampler": in_batch_sampler}
IN_LOADER: dict[str, Place] = {
    "dataset": in_dataset,
    "bulk": in_bulk,
    "collate": in_collate,
    "pinning": in_pinning,
}
PLACES = {**IN_LOADER, **IN_SAMPLERS}


def pretend_accelerator(monkeypatch: Any) -> None:
    """Make torch pin: batches of our own types then have their ``pin_memory`` called; tensors would need a device."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
