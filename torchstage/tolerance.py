"""Tolerance: a sample that failed in, what the user gets in its place out: nothing, another sample, or the error.

Guarantees: what a loader does depends on the sample and the batch it was to be in, never on timing; every sample that
is not handed out is told of; no batch is made of nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index as as_int
from typing import Any, Literal, cast

from torchstage.elsewhere import can_travel, in_words
from torchstage.engine.executors import ExecutorDiedError, stage_of
from torchstage.engine.outcome import Failure, NoError, PartlyBad, Sifted, SkipSample, caught
from torchstage.engine.ticket import Batch
from torchstage.errors import add_note, file_of
from torchstage.executors.failures import ProcessDied
from torchstage.order import Numbered, Placed, index_and_salt

MAX_SUBSTITUTES = 16  # that are tried for one sample
MAX_WORDS = 500  # letters of an error that are kept
NO_SUBSTITUTE = (
    "torchstage: on_error='replace' takes the next sample of the dataset, which needs an integer index and a dataset "
    "that has a length. Pass a function as on_error instead."
)
SUBSTITUTE = 1 << 50  # what tells a substitute's draws apart from those of the sample in its own place


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that is not handed out as the dataset made it."""

    stage: str
    """Where it failed."""
    index: Any
    """Its dataset index; of an iterable dataset, None."""
    file: str | None
    """The file that it comes from, where the dataset tells (``samples`` or ``imgs`` as torchvision's folders have)."""
    kind: str
    """The name of the error's class."""
    message: str
    """The error's words."""
    is_filtered: bool = False
    """It was left out by ``SkipSample``, which is no error."""
    substitute: Any = None
    """The index of the sample in its place, if there is one."""
    error: BaseException | None = None
    """The exception itself, for an ``on_error`` function; it is not kept in reports."""
    lane: int | None = None
    """Of an iterable dataset, who read it; None: the caller's thread."""
    sample: int | None = None
    """Of an iterable dataset, its number among all samples that were read there in this epoch, from 0."""

    def __str__(self) -> str:
        where = f"index {self.index!r}" if self.index is not None else "a sample"
        if self.sample is not None:
            where = f"sample {self.sample}" + ("" if self.lane is None else f" of lane {self.lane}")
        file = f" ({self.file})" if self.file else ""
        instead = "" if self.substitute is None else f"; index {self.substitute!r} in its place"
        message = f": {self.message}" if self.message else ""
        return f"{where}{file}, stage {self.stage!r}: {self.kind}{message}{instead}"


OnError = Literal["raise", "skip", "replace"] | Callable[[BadSample], Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a loader does where a sample fails, as the engine asks for it. ``is_batched``: whether a ticket that is a
    whole batch is a list of samples. ``regroups``: whether batches are not collated, because what is left of them is
    filled up with the samples after it. ``remake``: makes the sample of another item, in the calling thread."""

    on_error: OnError
    dataset: Any
    is_batched: bool
    regroups: bool = False
    remake: Callable[[Any], Any] | None = None

    def takes(self, error: BaseException) -> bool:
        return is_tolerable(error, errors=self.on_error != "raise")

    def sift(self, batch: Batch, values: list[Any]) -> Sifted:
        outcomes, indices, items, came_whole = self._samples_of(batch, values)
        is_whole = came_whole and batch.chain.segments[0].spread is None  # what comes next is given all as one
        kept: list[Any] = []
        slots: list[int] = []
        bad: list[tuple[int, BadSample]] = []
        lost = [indices[slot] for slot, _ in batch.lost]
        try:
            for slot, outcome in enumerate(outcomes):
                if type(outcome) is Failure:
                    told = self._told(outcome.error, stage_of(outcome.error, outcome.stage), indices[slot])
                    one, instead = self._instead(told, items[slot], lost)
                    if isinstance(instead, Failure):
                        at = (None, slot) if came_whole else (slot, None)
                        return Sifted([], [], [], tuple(bad), failure=Failure(instead.error, instead.stage, *at))
                    bad.append((slot, replace(one, error=None)))
                    if instead is None:
                        continue
                    (outcome,) = instead
                kept.append(outcome)
                slots.append(slot)
            left = left_of(indices, slots)
            return Sifted([kept] if is_whole else kept, [left] if is_whole else left, slots, tuple(bad))
        finally:  # a frame of an on_error function, kept by a traceback, keeps this one
            values = outcomes = kept = []
            told = one = instead = outcome = None
            del told, one, instead, outcome

    def of_reader(
        self, failure: Failure, lane: int | None, sample: int
    ) -> tuple[BadSample, tuple[Any] | Failure | None]:
        """What is told of a sample of an iterable dataset; and what comes in its place: a value, an error, or
        nothing."""
        file = getattr(failure.error, "filename", None)  # as an OSError has it
        one = self._told(failure.error, failure.stage, None)
        return self._instead(
            replace(one, file=file if isinstance(file, str) else None, lane=lane, sample=sample), None, ()
        )

    def _samples_of(self, batch: Batch, values: list[Any]) -> tuple[list[Any], Sequence[Any], Sequence[Any], bool]:
        """Each sample's outcome, index and item; and whether they came as one ticket."""
        if not batch.chain.takes_whole or len(values) != 1 or not self.is_batched or len(batch.indices) != 1:
            return values, batch.indices, batch.items, False
        value, indices = values[0], batch.indices[0]
        if not isinstance(indices, list):
            return values, batch.indices, batch.items, False
        indices = cast(list[Any], indices)
        if type(value) is Failure:
            value = value.error.values if isinstance(value.error, PartlyBad) else [value] * len(indices)
        item = batch.items[0]
        items = [Placed(index, item.salt) for index in indices] if type(item) is Placed else indices
        return list(value), indices, items, True

    def _told(self, error: BaseException, stage: str, index: Any) -> BadSample:
        try:
            file = file_of(self.dataset, index)
        except Exception:  # a property of the user's
            file = None
        is_filtered = isinstance(error, SkipSample)
        message = error.reason if isinstance(error, SkipSample) else _words(error)
        return BadSample(stage, index, file, type(error).__name__, message, is_filtered, error=error)

    def _instead(self, one: BadSample, item: Any, lost: Sequence[Any]) -> tuple[BadSample, tuple[Any] | Failure | None]:
        """What comes in its place: a value, an error, or nothing. And what is told of it then."""
        error, on_error = one.error, self.on_error
        assert error is not None
        if on_error == "replace":
            return self._substituted(one, item, lost)
        if one.is_filtered or not callable(on_error):
            return one, None
        try:
            return one, (on_error(one),)
        except SkipSample as left_out:
            return replace(one, message=f"{one.message} ({left_out.reason})" if left_out.reason else one.message), None
        except BaseException as raised:
            return one, caught(raised, one.stage)

    def _substituted(self, one: BadSample, item: Any, lost: Sequence[Any]) -> tuple[BadSample, tuple[Any] | Failure]:
        """The next sample of the dataset that can be made; the error where there is none. ``lost``: indices of samples
        that are not tried again."""
        error, remake = cast(BaseException, one.error), self.remake
        index, salt = index_and_salt(item)
        try:
            number, length = as_int(index), len(self.dataset)
        except Exception:
            add_note(error, NO_SUBSTITUTE)
            return one, Failure(error, one.stage)
        assert remake is not None, "whoever asks for substitutes says how they are made"
        salt = SUBSTITUTE * (1 + salt) + number  # an index that comes twice is replaced by two samples
        for step in range(1, min(MAX_SUBSTITUTES + 1, length)):
            other = (number + step) % length
            if other in lost:
                continue
            try:
                return replace(one, substitute=other), (remake(Placed(other, salt)),)
            except Exception as failed:
                if not self.takes(failed):
                    return one, caught(failed, stage_of(failed, one.stage))
            except BaseException as failed:
                return one, caught(failed, one.stage)
        return one, Failure(error, one.stage)


def left_of(indices: Sequence[Any], slots: Sequence[int]) -> Sequence[Any]:
    """The indices of these slots, as a batch's."""
    left = [indices[slot] for slot in slots]
    if not isinstance(indices, Numbered):
        return left
    numbered = Numbered(left)
    numbered.salt = indices.salt
    return numbered


def _words(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:
        return "(its message cannot be read)"
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 3] + "..."


def is_tolerable(error: BaseException, *, errors: bool) -> bool:
    """Whether it is one sample's fault, or wish. ``errors``: whether errors are tolerated at all."""
    if isinstance(error, SkipSample):
        return True
    if not errors or not isinstance(error, Exception) or isinstance(error, NoError | MemoryError | ExecutorDiedError):
        return False
    return not isinstance(error, ProcessDied) or error.pid is not None  # else none of them can go on


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A function that gives a batch's samples all at once; where it fails, each is asked for by itself. It travels with
    the function. ``errors``: as ``is_tolerable``; ``raises``: whether bad samples among the others are raised as
    PartlyBad, and not given among the values; ``travels``: whether their errors have to be such as can be sent."""

    fetch_many: Callable[[Any], Any]
    errors: bool
    raises: bool
    travels: bool = False

    def __call__(self, indices: Any) -> Any:
        try:
            return self.fetch_many(indices)
        except Exception as error:
            if not is_tolerable(error, errors=self.errors):
                raise
        return self._given([self._one(index) for index in indices])

    def _one(self, index: Any) -> Any:
        try:
            (value,) = self.fetch_many([index])
        except Exception as error:
            return self._failed(error)
        return value

    def _failed(self, error: Exception) -> Failure:
        if not is_tolerable(error, errors=self.errors):
            raise error
        return caught(error if not self.travels or can_travel(error) else in_words(error), "fetch")

    def _given(self, values: list[Any]) -> list[Any]:
        if self.raises and any(type(value) is Failure for value in values):
            raise PartlyBad(values)
        return values


@dataclass(frozen=True, slots=True)
class OneByOneAwaited(OneByOne):
    """The same of one that has to be waited for."""

    async def __call__(self, indices: Any) -> Any:
        try:
            return await self.fetch_many(indices)
        except Exception as error:
            if not is_tolerable(error, errors=self.errors):
                raise
        return self._given([await self._one(index) for index in indices])

    async def _one(self, index: Any) -> Any:
        try:
            (value,) = await self.fetch_many([index])
        except Exception as error:
            return self._failed(error)
        return value


def one_by_one(
    fetch_many: Callable[[Any], Any],
    tolerance: Tolerance | None,
    *,
    raises: bool,
    travels: bool = False,
    is_async: bool = False,
) -> Callable[[Any], Any]:
    """``fetch_many``, which is asked for each sample where the batch fails, if bad samples are tolerated."""
    if tolerance is None:
        return fetch_many
    kind = OneByOneAwaited if is_async else OneByOne
    return kind(fetch_many, tolerance.on_error != "raise", raises, travels)
