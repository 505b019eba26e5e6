"""Epoch: what a loader keeps of an epoch of its latest iterator, in and out: enough to go on with it elsewhere.

Guarantees: it holds neither the iterator nor the loader, so that it tells where an epoch was left after both are gone;
it is written in the consumer's thread alone.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchstage.bad import BadSamples
from torchstage.draws import States, Stream
from torchstage.position import Position, Range
from torchstage.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a sampler and its iterator told of their state once ``at`` places were taken from them. None: nothing."""

    at: int
    sampler: Any
    iterator: Any


@dataclass(frozen=True, slots=True)
class Resume:
    """A state that was loaded, checked."""

    raw: dict[str, Any]  # as it was given
    is_boundary: bool  # between two epochs
    position: int  # samples handed out; of an elastic sampler, on all ranks together
    low: int = 0  # places handed out
    above: list[Range] = field(default_factory=list[Range])  # and those handed out beyond that
    last: Any = None  # the index in the last of those places
    begun: States = field(default_factory=dict[str, str])  # of the generators, when the sampler was asked to iterate
    pulled: States = field(default_factory=dict[str, str])  # and for its first index, if that was later
    now: States = field(default_factory=dict[str, str])  # and when the state was saved
    epoch: int | None = None  # the sampler's
    is_finished: bool = False  # whether that epoch is over
    repeat: int = 0  # how often an epoch of that number was begun before
    base_seed: int | None = None
    sampler: Snapshot | None = None
    sampler_at_start: Snapshot | None = None  # of the epoch, if it had a state itself
    bad: dict[str, Any] | None = None  # samples of the epoch that were bad
    told: list[int] = field(default_factory=list[int])  # the number, once the sampler has it as a plain one


class Told(int):
    """An epoch's number that a loaded state set on the sampler. While it is of this class, nobody has called
    ``set_epoch`` since: that would have put a plain int in its place."""


_Mark = tuple[States, States]  # of the samplers' own generators, and of those that stand for the process's


class Epoch:
    """An epoch of a map-style dataset."""

    def __init__(self, sampling: Sampling, stream: Stream, num_begun: Counter[int], resume: Resume | None) -> None:
        self.sampling = sampling
        self.stream = stream
        self.resume = resume
        self._num_begun = num_begun
        self.is_started = False  # whether a batch was asked for
        self.is_exhausted = False  # whether the sampler has no more
        self.is_over = False  # whether the caller was told so
        self.was_left = False  # whether that is known by its length alone: its iterator is gone
        self.is_broken = False  # whether it failed when it was last asked
        self.drops_rest = False  # whether those of the samples left that do not make a batch are dropped at its end
        self.is_ordered = True  # whether it is known which batches were handed out
        # Whether other ranks may be at other places: then its state is one rank's own.
        self.is_own = resume is not None and resume.raw["rank"] is not None
        self.has_begun = False
        self.is_void = False
        if resume is None or resume.is_boundary:
            self.position = Position()
        else:
            self.position = Position(0 if sampling.is_elastic else resume.low, resume.above)
            self.position.last = resume.last
        self.bad = BadSamples()
        if resume is not None and not resume.is_boundary:
            self.bad = BadSamples.of_plain(resume.bad, resume.position)
        self.begun: States = {}
        self.pulled: States = {}
        self.drawn: tuple[str, ...] = sampling.kinds  # of the process's generators, those that the sampler draws from
        self.base_seed: int | None = None if resume is None else resume.base_seed
        self.repeat = 0
        self.number: int | None = None  # the sampler's epoch
        self.start = 0 if resume is None else resume.position  # of an elastic sampler, in samples of the global order
        self.num_total = 0  # of an elastic sampler, likewise: how many the epoch has
        self.num_own = 0  # of these, those of this rank from ``start`` on
        self.num_replicas = 1  # ranks that the epoch was begun on
        self.length: int | None = None  # of its dataset then
        self.snapshots: list[Snapshot] = []
        self.snapshot_of_start: Snapshot | None = None
        self.fingerprint: dict[str, Any] | None = None  # once a state was asked for
        self.constant: dict[str, Any] | None = None  # of every state inside this epoch, likewise
        self.peek: Callable[[], Callable[[int], bool] | None] = lambda: None  # whether the sampler has more
        self.before_iter: States | None = None  # of all generators, unless the iterator is one that was kept
        self._window = ExitStack()  # while the base seed is drawn
        self._before: tuple[torch.Generator, torch.Tensor] | None = None  # a generator as it was before that
        self._drawn_by_iter: tuple[_Mark, _Mark] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a state was loaded, and nothing handed out since."""
        is_empty = self.is_exhausted and self.position.is_level
        return self.resume is not None and self.position.num_batches == 0 and not is_empty

    @contextmanager
    def drawing_base_seed(self, generator: torch.Generator | None) -> Generator[None]:
        """Around the draw of torch's base seed, once for an iterator."""
        self.before_iter = {**self.sampling.own_states(), **self.stream.states(self.sampling.kinds)}
        before = self._mark()
        with self._window:
            self._window.enter_context(
                self.stream.drawing() if self.base_seed is None else self._undone(generator or torch.default_generator)
            )
            yield
        self._drawn_by_iter = before, self._mark()

    @contextmanager
    def _undone(self, generator: torch.Generator) -> Generator[None]:
        """What is drawn inside was drawn before, by the run that goes on."""
        self._before = generator, generator.get_state()
        try:
            yield
        finally:
            (generator, state), self._before = self._before, None
            generator.set_state(state)

    def note_sampler_s_draws(self) -> None:
        """The sampler was asked for an iterator, before the base seed is drawn: what it drew is not undone."""
        if self._before is not None:
            generator, _ = self._before
            self._before = generator, generator.get_state()

    def _mark(self) -> "_Mark":
        return (self.sampling.own_states(), self.stream.apart) if self.is_pending else ({}, {})

    def undo(self) -> None:
        """Nobody used the iterator, or it failed: the next one draws what this one drew, unless somebody seeded the
        generators since."""
        if self._drawn_by_iter is None or self.resume is None or not self.resume.is_boundary:
            return
        (own, apart), (own_after, apart_after) = self._drawn_by_iter
        now = self.sampling.own_states()
        self.sampling.restore({name: own[name] for name in own if self.has_begun or now[name] == own_after[name]})
        self.stream.rewind({kind: apart[kind] for kind in apart if self.has_begun or apart_after.get(kind)})

    def begin(self) -> None:
        """The first batch is asked for. The sampler's epoch counts from here on: Lightning sets it after ``iter()``."""
        if self.has_begun:
            return
        self._window.close()  # torch's worker processes get their first indices while the iterator is being made
        resume, told = self.resume, self.sampling.raw_epoch()
        if type(told) is Told:
            self.sampling.set_epoch(int(told))
            if resume is not None:
                resume.told.append(int(told))
        elif resume is not None and told is not None and told not in resume.told:
            self._compare(resume, told)
        self.has_begun = True
        if self.number is None:
            self.number = self.sampling.epoch
        if resume is not None and resume.epoch == self.number:
            self._num_begun[self.number or 0] = resume.repeat

    def _compare(self, resume: Resume, told: int) -> None:
        """Somebody told the sampler an epoch after the state did."""
        if told == resume.epoch and resume.is_finished:
            self.is_void = True
            warnings.warn(
                f"StageLoader: by the loaded state epoch {told} is finished, and the sampler was set to epoch {told} "
                f"again: no sample of it is left. Call set_epoch({told + 1}) to go on.",
                RuntimeWarning,
                stacklevel=2,
            )
        is_inside = not resume.is_boundary and (resume.position or resume.above)  # else: nothing of it was handed out
        if told != resume.epoch and is_inside:
            raise ValueError(
                f"StageLoader: the loaded state is inside epoch {resume.epoch}, but the sampler was set to {told}. "
                f"Call set_epoch({resume.epoch}) to finish that one, or load no state to begin epoch {told}."
            )

    def check_last(self, last: Any, sampler: str) -> None:
        """``last``: the index in the last of the places that are passed over."""
        resume = self.resume
        if resume is not None and resume.last is not None and last != resume.last:
            raise ValueError(
                f"StageLoader: the {sampler} does not give the order again that it had when the state was saved: place "
                f"{resume.low - 1} was index {resume.last!r} and is {last!r} now. Draw its order from a generator "
                "that is an attribute of it, or give it state_dict() and load_state_dict()."
            )

    def keep(self, snapshot: Snapshot) -> None:
        """The sampler's state after so many places; those that are not of use any more are let go of."""
        self.snapshot_of_start = self.snapshot_of_start or (None if snapshot.at else snapshot)
        useful = [known for known in self.snapshots if known.at <= self.position.low][-1:]
        later = [known for known in self.snapshots if known.at > self.position.low]
        self.snapshots = [*useful, *later, snapshot]

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest that is not beyond what was handed out."""
        if not self.snapshots:
            return None
        return next((known for known in reversed(self.snapshots) if known.at <= self.position.low), None)

    def is_finished(self) -> bool:
        """Whether every batch was handed out. Asks the sampler, if nobody has, and if its iterator is still there."""
        if self.is_over:
            return not self.is_broken
        num_left = self._num_left()
        is_dropped = self.drops_rest and num_left == 0
        if not self.is_started or self.is_broken or not (self.position.is_level or is_dropped):
            return False
        if self.sampling.is_elastic:
            return self.length is not None and self._is_elastic_over()
        if not self.is_exhausted and (num_left is None or num_left <= 0):  # else: it may draw before the user does
            peek = self.peek()
            if peek is not None:
                peek(int(is_dropped))  # beyond the samples that are dropped
            elif num_left is not None:
                self.is_exhausted = self.was_left = True
        return self.is_exhausted and not self.is_broken

    def _num_left(self) -> int | None:
        """How many places make batches yet, by the sampler's length; None: it has none."""
        sampling = self.sampling
        if sampling.length is None:
            return None
        left = sampling.length - self.position.low
        return left if not self._drops_last or left >= (sampling.batch_size or 1) else 0

    @property
    def _drops_last(self) -> bool:
        return self.sampling.drop_last or self.drops_rest

    def find_start(self) -> None:
        """Of an elastic sampler: what is left of its order, and who shares it, while the epoch lasts."""
        sampler = self.sampling.sampler
        self.start, self.num_total, self.num_own = sampler.position, sampler.num_total, sampler.num_samples
        self.num_replicas, self.length = sampler.num_replicas, self.sampling.length
        if self.sampling.drop_last:
            self._refuse_unequal_steps(self.sampling.batch_size or 1)

    def _refuse_unequal_steps(self, batch_size: int) -> None:
        first, last = (
            len(range(self.start + rank, self.num_total, self.num_replicas)) // batch_size
            for rank in (0, self.num_replicas - 1)
        )
        if first != last:
            raise ValueError(
                f"StageLoader: with drop_last=True the first of {self.num_replicas} ranks would have {first} batches "
                f"and the last one {last}: those that wait for each other in each step would wait for good. Give the "
                "ElasticSampler tail='drop', which leaves out fewer samples than there are ranks, or tail='pad'."
            )

    def _is_elastic_over(self) -> bool:
        """Whether no rank has a batch left, as far as this one can tell: all have made as many steps."""
        if not self._drops_last:
            return self.elastic_position() >= self.num_total
        position = self.position
        num_left = self.num_own - position.low - sum(end - begin for begin, end in position.above)
        return num_left < (self.sampling.batch_size or 1)

    def elastic_position(self) -> int:
        """Samples of the global order handed out on all ranks, each of which has made as many steps."""
        if self.length is None:
            return self.start or self.sampling.sampler.position
        num_local = self.position.low
        if num_local >= self.num_own:  # its last batch may be shorter than those of others, or none
            batch_size = self.sampling.batch_size or 1
            num_local = -(-num_local // batch_size) * batch_size
        return min(self.start + num_local * self.num_replicas, self.num_total)


def peeking(indices: Any) -> Callable[[], Callable[[int], bool] | None]:
    """``indices.peek`` while those are there."""
    return weakref.WeakMethod(indices.peek)
