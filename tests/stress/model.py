"""Model: a loader's arguments in, what each next() of an epoch must give out. A few lines of Python, and no threads.

Guarantees: torchstage is asked for nothing but the draws of a sample, which it makes inline; so threads, processes,
resumes and orders are compared with what they are not made of.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler

from tests.stress.parts import ERROR, FILTERED, GOOD, STAGES, OfBatch, OfSample, Sample, draw_three
from torchstage import SkipSample, Stage, StageLoader, TooManyBadSamples
from torchstage.samplers import ElasticSampler
from torchstage.tolerance import MAX_SUBSTITUTES

LENGTH_OF_DRAWS = 48  # samples whose draws are known


@dataclass(frozen=True)
class Spec:
    """What does not change when a state is loaded."""

    kind: str  # of dataset: plain, at once, staged, fetched, tensors, shares, shares with state
    moods: tuple[int, ...]
    draws: bool
    is_slow: bool
    batch_size: int | None
    drop_last: bool
    order: str  # sequential, shuffled, listed, batches, distributed, elastic
    listed: tuple[int, ...]
    batches: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[str, str, int | None], ...]  # kind, executor, concurrency
    stage_bad_at: int
    collate: str  # own or default
    collate_bad_at: int
    on_error: str
    max_bad: int | None
    in_order: bool
    seed: int
    lanes: int  # of an iterable dataset

    @property
    def is_iterable(self) -> bool:
        return self.kind.startswith("shares")

    @property
    def is_batched(self) -> bool:
        return self.order == "batches" or self.batch_size is not None

    @property
    def comes_at_once(self) -> bool:
        return self.kind in ("at once", "fetched", "tensors") and self.is_batched

    @property
    def has_draws(self) -> bool:
        return self.draws or any(kind == "draw" for kind, _, _ in self.stages)

    def fills_up(self, *, is_inline: bool) -> bool:
        is_kept = self.is_batched and self.order not in ("batches", "distributed") and (self.in_order or is_inline)
        return self.on_error in ("skip", "function") and is_kept and not self.comes_at_once


Outcome = tuple[str, Any]  # "batch" and its samples, or an error's name and what it is about


# Orders ----------------------------------------------------------------------------------------------------------


class Orders:
    """What the sampler gives, epoch by epoch, and what its generator has drawn."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.generator = torch.Generator().manual_seed(spec.seed)
        self.behind: list[torch.Tensor] = []  # where it was before samplers came to their ends
        self.number = 0  # what set_epoch was told

    def draw_base_seed(self) -> None:
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)

    def follow(self, generator: torch.Generator) -> bool:
        """Epochs that were begun may have come to their samplers' ends meanwhile: how many is a matter of timing, and
        one that goes on in another loader may have it before it. Whether the generator is where one to three such ends
        have left it, or before those."""
        now = generator.get_state()
        for at, state in enumerate(self.behind):
            if torch.equal(now, state):
                self.behind = self.behind[:at]
                self.generator.set_state(state)
                return True
        for _ in range(4):
            state = self.generator.get_state()
            if torch.equal(now, state):
                return True
            self.behind = [*self.behind, state]
            torch.randperm(len(self.spec.moods), generator=self.generator)
        return False

    def next(self, *, is_inline: bool) -> list[list[int]]:
        """The batches of an epoch, of which the first is asked for now. Those that are filled up have all samples."""
        spec = self.spec
        if spec.order == "batches":
            return [list(batch) for batch in spec.batches]
        places: Any = range(len(spec.moods))
        self.behind = []
        if spec.order == "shuffled":  # RandomSampler draws this, and the same again when it is asked for one more
            places = torch.randperm(len(places), generator=self.generator).tolist()
        elif spec.order == "listed":
            places = spec.listed
        elif spec.order in ("distributed", "elastic"):
            places = sampler_of(spec, places)
            places.set_epoch(self.number)
        drop_last = spec.drop_last and not spec.fills_up(is_inline=is_inline)
        return in_batches(list(places), spec.batch_size, drop_last)


def sampler_of(spec: Spec, dataset: Any) -> Any:
    if spec.order == "distributed":
        return DistributedSampler(dataset, 2, 1, seed=spec.seed)
    return ElasticSampler(dataset, 1, 0, seed=spec.seed)


def in_batches(places: list[Any], size: int | None, drop_last: bool) -> list[list[Any]]:
    found = [places[begin : begin + (size or 1)] for begin in range(0, len(places), size or 1)]
    return [batch for batch in found if len(batch) == (size or 1) or not drop_last]


# Draws -----------------------------------------------------------------------------------------------------------


class _OnlyDraws(Dataset[Any]):
    """Samples that all are good."""

    def __init__(self, has_three: bool) -> None:
        self.has_three = has_three

    def __len__(self) -> int:
        return LENGTH_OF_DRAWS

    def __getitem__(self, index: int) -> Any:
        return (index, 0, *(draw_three() if self.has_three else ()))


class _Epoch:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH_OF_DRAWS))

    def __len__(self) -> int:
        return LENGTH_OF_DRAWS


@cache
def drawn(seed: int, number: int, repeat: int, has_three: bool, kinds: tuple[str, ...]) -> list[Sample]:
    """Every sample of an epoch, of version 0, made inline by these stages."""
    stages = [Stage(STAGES[kind](at, -1), name=f"{kind}{at}") for at, kind in enumerate(kinds)]
    with StageLoader(
        _OnlyDraws(has_three),
        batch_size=None,
        sampler=_Epoch(number),
        seed=seed,
        stages=stages,
        collate_fn=tuple,
        num_workers=0,
    ) as loader:
        for _ in range(repeat):
            next(iter(loader))
        return list(loader)


# Epochs ----------------------------------------------------------------------------------------------------------


@dataclass
class Epoch:
    """One pass: what its sampler gave, what must come, and what of it has come."""

    spec: Spec
    batches: list[list[int]]
    number: int
    repeat: int
    version: int
    is_inline: bool
    outcomes: list[Outcome] = field(default_factory=list)
    num_bad: int = 0  # of a whole epoch
    num_filtered: int = 0
    left: list[int] = field(default_factory=list)  # which of the outcomes have not come
    is_over: bool = False  # the caller was told so
    is_spoilt: bool = False  # what comes after too many bad samples is not said

    def __post_init__(self) -> None:
        self.outcomes = list(self._in_lanes() if self.spec.is_iterable else self._outcomes())
        self.left = list(range(len(self.outcomes)))

    def again(self, version: int, *, is_inline: bool) -> "Epoch":
        """As it goes on in another loader."""
        other = Epoch(self.spec, self.batches, self.number, self.repeat, version, is_inline)
        other.left, other.is_over, other.is_spoilt = list(self.left), self.is_over, self.is_spoilt
        return other

    def admits(self, outcome: Outcome, *, in_order: bool) -> bool:
        """Whether this may come now; then it has."""
        for at in self.left[:1] if in_order else self.left:
            if self.outcomes[at] == outcome:
                self.left.remove(at)
                return True
        return False

    # A sample -----------------------------------------------------------------------------------------------------

    def _mood(self, index: int) -> int:
        mood = self.spec.moods[index]
        return ERROR if mood == GOOD and self.spec.stages and index == self.spec.stage_bad_at else mood

    def _sample(self, index: int) -> Sample:
        spec = self.spec
        if spec.kind == "tensors":
            sample: Sample = (index, 2 * index)
        else:
            sample = (index, self.version)
        kinds = tuple(kind for kind, _, _ in spec.stages)
        if spec.draws or "draw" in kinds:
            return (*sample, *drawn(spec.seed, self.number, self.repeat, spec.draws, kinds)[index][2:])
        return (*sample, *range(len(kinds)))

    def _instead(self, index: int) -> list[Sample]:
        """What comes for an index: a sample or nothing. Raises OfSample, or SkipSample."""
        spec, mood, length = self.spec, self._mood(index), len(self.spec.moods)
        if mood == GOOD:
            return [self._sample(index)]
        others = [(index + step) % length for step in range(1, min(MAX_SUBSTITUTES + 1, length))]
        good = [other for other in others if self._mood(other) == GOOD]
        if spec.on_error == "replace" and not good:
            raise (SkipSample(str(index)) if mood == FILTERED else OfSample(index))
        self.num_bad += mood == ERROR and spec.on_error != "raise"
        self.num_filtered += mood == FILTERED
        if spec.on_error == "replace":
            return [self._sample(good[0])]
        if mood == ERROR and spec.on_error == "raise":
            raise OfSample(index)
        return [(-1 - index, -1)] if mood == ERROR and spec.on_error == "function" else []

    # A batch ------------------------------------------------------------------------------------------------------

    def _outcomes(self) -> Iterator[Outcome]:
        spec = self.spec
        fills_up = spec.fills_up(is_inline=self.is_inline)
        has_good = False
        if fills_up:
            yield from self._filled_up()
            return
        for batch in self.batches:
            before = self.num_bad
            samples: list[Sample] = []
            try:
                for index in batch:
                    samples += self._instead(index)
            except (OfSample, SkipSample) as error:
                yield type(error).__name__, None if spec.comes_at_once else int(error.args[0])
                continue
            if spec.max_bad is not None and self.num_bad > max(before, spec.max_bad):
                yield "TooManyBadSamples", None
                self.is_spoilt = True
                return
            has_good = has_good or bool(samples)
            if samples:
                yield self._collated(samples)
            elif spec.order == "distributed":  # other ranks have a batch in this step
                yield "TooManyBadSamples", None
        if self.num_bad and not has_good:
            yield "TooManyBadSamples", None

    def _filled_up(self) -> Iterator[Outcome]:
        spec, size = self.spec, self.spec.batch_size
        assert size is not None
        samples: list[Sample] = []
        has_good = False
        for index in (index for batch in self.batches for index in batch):
            samples += self._instead(index)
            if len(samples) == size:
                if spec.max_bad is not None and self.num_bad > spec.max_bad:
                    yield "TooManyBadSamples", None
                    self.is_spoilt = True
                    return
                yield self._collated(samples)
                samples, has_good = [], True
        if spec.max_bad is not None and self.num_bad > spec.max_bad:
            yield "TooManyBadSamples", None
            self.is_spoilt = True
            return
        if samples and not spec.drop_last:
            yield self._collated(samples)
        if self.num_bad and not has_good and not samples:
            yield "TooManyBadSamples", None

    def _collated(self, samples: list[Sample]) -> Outcome:
        is_bad = self.spec.collate == "own" and any(sample[0] == self.spec.collate_bad_at for sample in samples)
        return ("OfBatch", self.spec.collate_bad_at) if is_bad and self.spec.is_batched else ("batch", tuple(samples))

    # An iterable dataset ------------------------------------------------------------------------------------------

    def _in_lanes(self) -> Iterator[Outcome]:
        spec = self.spec
        shares = [list(range(lane, len(spec.moods), spec.lanes)) for lane in range(spec.lanes)]
        lanes = [iter(in_batches(share, spec.batch_size, spec.drop_last)) for share in shares]
        while lanes:
            for lane in list(lanes):
                batch = next(lane, None)
                if batch is None:
                    lanes.remove(lane)
                elif any(self._mood(index) == ERROR for index in batch):
                    yield "OfSample", None
                else:
                    yield self._collated([self._sample(index) for index in batch])


ERRORS: dict[str, type[BaseException]] = {
    "OfSample": OfSample,
    "OfBatch": OfBatch,
    "SkipSample": SkipSample,
    "TooManyBadSamples": TooManyBadSamples,
}


def outcome_of(error: BaseException, epoch: Epoch) -> Outcome:
    """An error as it is foreseen; its note must name the sample."""
    name = type(error).__name__
    if name in ("OfSample", "SkipSample") and not epoch.spec.comes_at_once and not epoch.spec.is_iterable:
        index = int(error.args[0])
        notes = " ".join(getattr(error, "__notes__", []))
        return name, index if f"dataset index {index}, batch" in notes else f"{index}, of which is said {notes!r}"
    return name, error.args[0] if name == "OfBatch" else None


class Repeats(Counter[int]):
    """How many epochs of each number were begun."""

    def begin(self, number: int) -> int:
        self[number] += 1
        return self[number] - 1
