"""Bad: samples that failed in; how many there may be, and what is told of them, out.

Guarantees: counted in the order in which batches are handed out, so that timing changes nothing; every one is counted,
the first of them are named.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torchstage.engine.ledger import Steps
from torchstage.tolerance import BadSample

MAX_NAMED = 100  # of an epoch, with their index, file and error; all others are counted
MAX_IN_WORDS = 10
CUT_OFF = (
    " The dataset's iterator ended right after a sample that failed in it. If it is made of a generator, which is over "
    "after an error, the samples behind that one did not come."
)


class TooManyBadSamples(RuntimeError):  # noqa: N818  # its name says what is wrong
    """More samples failed than ``max_bad_samples`` allows, or all.

    Args:
        message: how many failed, of how many, and the first of them.
        bad: the first of them, as the attribute of the same name.
    """

    def __init__(self, message: str, bad: tuple[BadSample, ...] = ()) -> None:
        super().__init__(message)
        self.bad = bad

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.bad)


@dataclass(slots=True)
class BadSamples:
    """Those of an epoch so far. ``num_good``: samples that were handed out, with substitutes."""

    num_bad: int = 0
    num_filtered: int = 0
    num_good: int = 0
    is_cut_off: bool = False  # whether an iterable dataset ended right after a sample that failed in it
    named: list[BadSample] = field(default_factory=list[BadSample])

    def add(self, bad: Sequence[BadSample]) -> None:
        """What came with one batch."""
        for one in bad:
            if one.is_filtered:
                self.num_filtered += 1
            else:
                self.num_bad += 1
            if len(self.named) < MAX_NAMED:
                self.named.append(one)

    def count(
        self,
        bad: Sequence[BadSample],
        steps: Steps | None,
        most: int | float | None,
        length: int | None,
        num_coming: int = 0,
    ) -> None:
        """What came with one batch, which has ``num_coming`` other samples. Told to the consumer's ``steps``, too.
        Raises TooManyBadSamples as ``check`` does."""
        self.add(bad)
        num_filtered = sum(one.is_filtered for one in bad)
        if steps is not None:
            steps.num_filtered += num_filtered
            steps.num_bad += len(bad) - num_filtered
            steps.bad.extend(bad)
        if num_filtered < len(bad):
            self.check(most, length, num_coming)

    def check(self, most: int | float | None, length: int | None, num_coming: int = 0) -> None:
        """Raise TooManyBadSamples if there are more than ``most``: a number, or a share of the epoch's ``length``, or
        where that is not known of what was seen so far, with the ``num_coming`` samples that are about to be handed
        out."""
        if most is None:
            return
        allowed, words = most, f"max_bad_samples={most}"
        if isinstance(most, float):
            seen = self.num_bad + self.num_filtered + self.num_good + num_coming
            allowed = max(1.0, most * seen) if length is None else most * length
            words += f", of {seen} so far" if length is None else f", of {length} samples"
        if self.num_bad > allowed:
            raise TooManyBadSamples(
                f"StageLoader: {self.num_bad} bad samples in this epoch ({words}): {self.in_words()}. Mend these "
                "samples, leave them out of the dataset, or allow more.",
                tuple(self.named),
            )

    def check_end(self) -> None:
        """Raise TooManyBadSamples if every sample of the epoch failed: that is no data, but a fault."""
        if self.num_bad and not self.num_good:
            raise TooManyBadSamples(
                f"StageLoader: all {self.num_bad} samples of this epoch failed: {self.in_words()}.", tuple(self.named)
            )

    def in_words(self) -> str:
        """The first of them."""
        bad = [one for one in self.named if not one.is_filtered]
        words = "; ".join(str(one) for one in bad[:MAX_IN_WORDS])
        more = self.num_bad - min(len(bad), MAX_IN_WORDS)
        return words + (f"; and {more} more" if more > 0 else "")

    def report(self) -> str | None:
        """What the user is told at the end of an epoch; None: every sample was good, or left out as was wanted."""
        if not self.num_bad:
            return None
        filtered = f" ({self.num_filtered} others were left out by SkipSample)" if self.num_filtered else ""
        return (
            f"StageLoader: {self.num_bad} bad samples in this epoch{filtered}: {self.in_words()}."
            f"{CUT_OFF if self.is_cut_off else ''}"
        )

    def plain(self) -> dict[str, Any] | None:
        """For a state; None: there is nothing to tell."""
        if not self.num_bad and not self.num_filtered:
            return None
        named = [plain_of(one) for one in self.named]
        told = {"bad": self.num_bad, "filtered": self.num_filtered, "good": self.num_good, "named": named}
        return {**told, "is_cut_off": True} if self.is_cut_off else told

    @classmethod
    def of_plain(cls, plain: dict[str, Any] | None, position: int = 0) -> "BadSamples":
        """Back. ``position``: what was handed out before, where no sample of that was bad."""
        if plain is None:
            return cls(num_good=position)
        named = [BadSample(**one) for one in plain["named"]]
        return cls(plain["bad"], plain["filtered"], plain["good"], plain.get("is_cut_off", False), named)


def plain_of(one: BadSample) -> dict[str, Any]:
    """A record of strings and numbers: an index of another type as its words."""
    plain = asdict(replace(one, error=None))
    for name in ("index", "substitute"):
        if not isinstance(plain[name], int | str | None):
            plain[name] = repr(plain[name])
    assert plain.keys() == {known.name for known in fields(BadSample)}
    del plain["error"]
    return plain
