"""Sieve: an iterable dataset's iterator and its stages in, batches of the samples that are good out.

It stands for torch's fetcher of an iterable dataset, in a lane or inline.

Guarantees: what is read, in which order, and what it draws is the same for every ``on_error`` as long as no sample
fails; every sample that is not in a batch is told of; no batch is made of nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchstage.bad import TooManyBadSamples
from torchstage.engine.outcome import Failure, NoError, SkipSample, caught
from torchstage.errors import add_note
from torchstage.then import AfterReading, of_stage
from torchstage.tolerance import BadSample, OnError, Tolerance

MAX_IN_A_ROW = 1000  # samples that fail with none between them that does not: then there is no use in reading on
MAX_IN_WORDS = 3
FETCH = "fetch"
IS_OVER = (
    "torchstage: a generator is over once it raised an error, so no sample after this one could be read, and on_error "
    "cannot go on. Do what may fail in a stage (stages=[Stage(fn)]), catch the error inside the generator, or have the "
    "dataset's __iter__ return an object of a class with __next__."
)
SKIPS = "torchstage: a generator is over once it raised SkipSample. Use 'continue' inside it."
_HERE = object()


class NothingLeft(NoError):  # noqa: N818  # it never leaves the iterator
    """Every sample of a batch failed, and it is not to be filled up."""


class Unwanted(NoError):  # noqa: N818  # likewise
    """The loader was closed while samples were read on in the place of bad ones."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Leniency:
    """What a reader does about samples that fail. ``fills_up``: whether it reads on until its batches are full.
    ``is_wanted``: asked before it does, whether anybody still wants them."""

    tolerance: Tolerance
    fills_up: bool
    lane: int | None = None
    is_wanted: Callable[[], bool] = _always


def leniency_of(on_error: OnError, *, keeps_steps: bool) -> Leniency:
    """``keeps_steps``: whether other ranks make as many batches as this one would without bad samples. Of an iterable
    dataset the sample in the place of a bad one can only be the next one that is read."""
    policy = "skip" if on_error == "replace" else on_error
    return Leniency(Tolerance(policy, None, is_batched=True), fills_up=on_error != "raise" and not keeps_steps)


class Sieve:
    """Reads an epoch of a dataset, batch by batch. Used in one thread."""

    def __init__(self, torchs: Any, leniency: Leniency, then: AfterReading | None) -> None:
        """``torchs``: the fetcher that torch would read it with. ``then``: the stages."""
        self.dataset_iter: Any = torchs.dataset_iter
        self.ended = False
        self.num_read = 0  # samples of this epoch so far, also those that failed
        self.numbers: Sequence[int] = ()  # of the samples in the latest batch
        self.bad: list[BadSample] = []  # those that were met on the way to it
        self.is_cut_off = False  # whether the dataset ended right after a sample that failed in it
        self._is_batched: bool = torchs.auto_collation
        self._drops_last: bool = torchs.drop_last
        self._collate: Callable[[Any], Any] = torchs.collate_fn
        self._leniency = leniency
        self._then = then
        self._num_in_a_row = 0
        self._has_just_failed = False

    def fetch(self, index: Any) -> Any:
        """The next batch. Raises StopIteration at the end, NothingLeft, and what is not tolerated."""
        self.bad, self.numbers = [], ()
        if self.ended:
            raise StopIteration
        size = len(index) if self._is_batched else 1
        samples, num_tried, has_ended = self._made(size, is_first=True)
        while self._leniency.fills_up and len(samples) < size and not has_ended:
            if not self._leniency.is_wanted():
                raise Unwanted
            more, num_more, has_ended = self._made(size - len(samples))
            samples += more
            num_tried += num_more
        self.ended = has_ended and self._is_batched  # without batches, a dataset is asked again, as torch does
        if has_ended:
            num_kept = len(samples) if self._leniency.fills_up else num_tried
            if not num_kept or (self._drops_last and num_kept < size):
                raise StopIteration
        if not samples:
            raise NothingLeft
        return self._collate(samples if self._is_batched else samples[0])

    def _made(self, num_wanted: int, *, is_first: bool = False) -> tuple[list[Any], int, bool]:
        """Read so many samples, and take them through the stages. Those that are good, how many were read, and whether
        there are no more."""
        first = self.num_read
        read, has_ended, has_bad = self._read(num_wanted)
        self.num_read += len(read)
        if self._then is not None:
            read, has_bad = self._through(self._then, read, has_bad, is_first)
        if has_bad:
            return self._sifted(read, first), len(read), has_ended
        numbers = range(first, first + len(read))
        self.numbers = numbers if not self.numbers else [*self.numbers, *numbers]
        if read:
            self._num_in_a_row = 0
        return read, len(read), has_ended

    def _read(self, num_wanted: int) -> tuple[list[Any], bool, bool]:
        """Samples, and failures in the place of others; whether there are no more, and whether any failed."""
        iterator, read = self.dataset_iter, list[Any]()
        has_ended = has_bad = False
        while not has_ended and len(read) < num_wanted:
            try:
                for _ in range(num_wanted - len(read)):
                    read.append(next(iterator))
            except StopIteration:
                has_ended = True
            except Exception as error:
                takes = self._leniency.tolerance.takes(error)
                is_over = takes and _is_over(iterator)
                if is_over:
                    add_note(error, SKIPS if isinstance(error, SkipSample) else IS_OVER)
                if is_over or not takes:
                    self.num_read += len(read) + 1
                    raise
                has_bad = True
                read.append(caught(error, FETCH))
        has_just_failed = has_bad and type(read[-1]) is Failure if read else self._has_just_failed
        self.is_cut_off = has_ended and has_just_failed
        self._has_just_failed = has_just_failed
        return read, has_ended, has_bad

    def _through(self, then: AfterReading, read: list[Any], has_bad: bool, is_first: bool) -> tuple[list[Any], bool]:
        """Likewise, after the stages."""
        good = [sample for sample in read if type(sample) is not Failure] if has_bad else read
        made, has_more_bad = then(good, self._leniency.tolerance.takes, is_first=is_first)
        if has_bad:
            rest = iter(made)
            made = [sample if type(sample) is Failure else next(rest) for sample in read]
        return made, has_bad or has_more_bad

    def _sifted(self, outcomes: list[Any], first: int) -> list[Any]:
        """The samples that are good, or come in the place of others."""
        leniency, kept, numbers = self._leniency, list[Any](), list(self.numbers)
        for number, outcome in enumerate(outcomes, first):
            if type(outcome) is Failure:
                one, instead = leniency.tolerance.of_reader(outcome, leniency.lane, number)
                if isinstance(instead, Failure):
                    raise of_stage(instead.error, instead.stage)
                self.bad.append(replace(one, error=None))
                if instead is None:
                    self._num_in_a_row += not one.is_filtered
                    self._check_row()
                    continue
                (outcome,) = instead
            self._num_in_a_row = 0
            kept.append(outcome)
            numbers.append(number)
        self.numbers = numbers
        return kept

    def _check_row(self) -> None:
        if self._num_in_a_row < MAX_IN_A_ROW:
            return
        self._num_in_a_row = 0
        latest = [one for one in self.bad if not one.is_filtered][-MAX_IN_WORDS:]
        raise TooManyBadSamples(
            f"StageLoader: {MAX_IN_A_ROW} samples of the dataset failed one after another, the latest: "
            f"{'; '.join(map(str, latest))}. If its iterator raises again and again and never ends, have it raise "
            "StopIteration.",
            tuple(latest),
        )


def _is_over(iterator: Any) -> bool:
    """Of an iterator that raised an error: whether it is a generator, from which nothing more comes. DataLoader has a
    wrapper around the one of a data pipe."""
    inner = getattr(iterator, "_datapipe_iter", iterator)
    return getattr(inner, "gi_frame", _HERE) is None
