"""Parts: what the loaders of the stress run are made of: datasets, stages and collate functions. Processes import this.

Guarantees: what a sample is depends on its index, the dataset's version and the sample's own draws, on nothing else.
"""

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torchstage import BadSample, SkipSample, StagedDataset

GOOD, ERROR, FILTERED = range(3)
Sample = tuple[int, ...]


class OfSample(ValueError):  # noqa: N818  # the index is what it is about
    """Raised for one sample."""


class OfBatch(LookupError):  # noqa: N818
    """Raised while samples are put together."""


def draw_three() -> Sample:
    return int(torch.randint(1 << 20, ())), random.randrange(1 << 20), int(np.random.randint(1 << 20))


class Moody(Dataset[Sample]):
    """Sample i is (i, version), and three draws if asked for; some fail, some are left out, some take their time."""

    def __init__(self, moods: Sequence[int], *, draws: bool, is_slow: bool) -> None:
        self.moods = list(moods)
        self.draws = draws
        self.is_slow = is_slow
        self.version = 0

    def __len__(self) -> int:
        return len(self.moods)

    def __getitem__(self, index: int) -> Sample:
        if self.is_slow and index % 3 == 0:
            time.sleep(0.002)  # so that threads overtake each other
        if self.moods[index] == ERROR:
            raise OfSample(index)
        if self.moods[index] == FILTERED:
            raise SkipSample(str(index))
        return (int(index), self.version, *(draw_three() if self.draws else ()))


class MoodyAtOnce(Moody):
    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [self[index] for index in indices]


class MoodyStaged(StagedDataset):
    """The same in two stages."""

    def __init__(self, moods: Sequence[int], *, draws: bool, is_slow: bool) -> None:
        self.moody = Moody(moods, draws=draws, is_slow=is_slow)

    def __len__(self) -> int:
        return len(self.moody)

    def fetch(self, index: int) -> int:
        return index

    def decode(self, index: int) -> Sample:
        return self.moody[index]


class MoodyFetched(MoodyStaged):
    """The first stage is done for a whole batch."""

    def fetch_many(self, indices: list[int]) -> list[int]:
        return list(indices)


def moody_of(dataset: Any) -> Any:
    """Where the version is."""
    return getattr(dataset, "moody", dataset)


class Shares(IterableDataset[Sample]):
    """Each reader yields its share of so many samples."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.version = 0

    def __iter__(self) -> Iterator[Sample]:
        for index in share_of(self.length):
            yield index, self.version


class SharesWithState(IterableDataset[Sample]):
    """The same, which knows where it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.version = self.at = self.start = 0

    def __iter__(self) -> Iterator[Sample]:
        share = share_of(self.length)
        self.at, self.start = self.start, 0
        while self.at < len(share):
            self.at += 1
            yield share[self.at - 1], self.version
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = self.start = state["at"]


def share_of(length: int) -> range:
    info = get_worker_info()
    return range(length) if info is None else range(info.id, length, info.num_workers)


class Tag:
    """A stage: one number more in the sample. Raises at one index."""

    def __init__(self, number: int, bad_at: int) -> None:
        self.number, self.bad_at = number, bad_at

    def __call__(self, sample: Sample) -> Sample:
        if sample[0] == self.bad_at:
            raise OfSample(sample[0])
        return (*sample, self.number)


class Draw(Tag):
    """A stage: a draw more."""

    def __call__(self, sample: Sample) -> Sample:
        return (*super().__call__(sample)[:-1], int(torch.randint(1 << 20, ())))


class Late(Tag):
    """A stage on the event loop."""

    async def __call__(self, sample: Sample) -> Sample:  # type: ignore[override]
        return Tag.__call__(self, sample)


STAGES: dict[str, type[Tag]] = {"tag": Tag, "draw": Draw, "late": Late}


class Listed:
    """A collate function: the samples in a list. Raises where an index is among them."""

    def __init__(self, bad_at: int) -> None:
        self.bad_at = bad_at

    def __call__(self, samples: list[Sample]) -> list[Sample]:
        if any(sample[0] == self.bad_at for sample in samples):
            raise OfBatch(self.bad_at)
        return samples


def below_zero(bad: BadSample) -> Sample:
    """An ``on_error`` function."""
    return (-1 - bad.index, -1)


def plain(batch: Any, *, is_one: bool) -> tuple[Sample, ...]:
    """A batch as the samples in it, whoever put them together. ``is_one``: it is a sample, without batching."""
    if is_one:
        return (tuple(map(int, batch)),)
    if isinstance(batch[0], torch.Tensor):
        return tuple(zip(*(column.tolist() for column in batch), strict=True))
    return tuple(tuple(map(int, sample)) for sample in batch)
