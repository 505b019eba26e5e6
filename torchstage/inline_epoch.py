"""Inline epoch: an iterable dataset that the caller's thread reads in, where it is out, and back.

Nothing is made ahead, so it is asked when somebody asks for the state. When its iterator is dropped, as a ``break`` out
of a for loop does, it is asked for the last time.

Guarantees: it holds neither the iterator nor the loader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchstage.draws import OF_PROCESS, PROCESS, States, text_of
from torchstage.marks import Mark, Reader, Start
from torchstage.reader_state import INLINE, Resume, bad_of, state_with
from torchstage.replay import Replay
from torchstage.scope_states import Texts
from torchstage.seeds import set_state, state_of

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

THE_DATASET = "the dataset"  # in messages


@dataclass(frozen=True, slots=True)
class Inside:
    """Where the reader of an epoch is."""

    mark: Mark
    has_state: bool  # whether the mark tells it
    has_ended: bool = False  # whether the dataset has no more
    num_since: int = 0  # batches handed out after the mark


class InlineEpoch:
    """An epoch of an iterable dataset with ``num_workers=0``."""

    def __init__(self, loader: "StageLoader[Any]", resume: Resume | None, latest: Any) -> None:
        if resume is not None:
            resume.check_kind(INLINE)
        self.resume = resume
        self.bad = bad_of(resume)
        self.is_started = False
        self.is_finished = False
        self.is_reported = False  # whether the caller was told of bad samples
        self.is_torn = False  # whether reading was interrupted inside a batch, and the dataset is at none's beginning
        self.num_batches = 0 if resume is None else resume.num_batches
        known: Reader | None = getattr(latest, "reader", None)
        self.reader = known if known is not None and known.dataset is loader.dataset else Reader(loader.dataset)
        self.start: Start | None = None
        if resume is not None and resume.readers is not None:
            self.start = resume.readers[0]
        elif isinstance(latest, InlineEpoch) and latest.is_over and known is self.reader:
            self.start = Start(latest.between())
        self.has_state = self.start is not None and self.start.has_state
        self.replay = Replay([0 if self.start is None else self.start.num_since], [self.has_state])
        self.base_seed: int | None = None if resume is None else resume.base_seed
        self.texts: Texts | None = None  # of a reader with generators of its own
        self.opening: Mark | None = None
        self.left: Inside | None = None  # where it was when its iterator was dropped
        self.look: Callable[[], Callable[[], Inside] | None] = lambda: None
        self._at_start: tuple[Any, ...] = ()
        self._texts: States | None = None

    @property
    def is_over(self) -> bool:
        """Whether it goes on from where its dataset had ended."""
        return self.resume is not None and self.start is not None and self.start.has_ended

    def between(self) -> Mark:
        """Where the dataset begins when it is read next."""
        known = None if self.start is None else self.start.mark
        return self.reader.opening(None, THE_DATASET) if known is None else known

    @property
    def is_pending(self) -> bool:
        """Whether a state was loaded, and nothing handed out since."""
        return self.resume is not None and self.num_batches == self.resume.num_batches and not self.is_finished

    def before(self) -> Inside:
        """Where it is, told by where it began: what it was interrupted in is read once more, too."""
        if self.start is not None and self.start.mark is not None:
            num_new = self.num_batches - (0 if self.resume is None else self.resume.num_batches)
            return Inside(self.start.mark, self.has_state, num_since=self.start.num_since + num_new)
        is_known = self.opening is not None and self.opening.error is None
        return Inside(
            self.opening if is_known and self.opening else Mark(0), self.has_state, num_since=self.num_batches
        )

    def begin(self) -> None:
        """The first batch is asked for."""
        if self.is_started:
            return
        self.is_started = True
        self.replay.begin()

    # States -----------------------------------------------------------------------------------------------------

    def remember(self, generator: torch.Generator | None) -> None:
        """The generators, before the dataset's iterator is made: 20 us."""
        self._at_start = tuple(
            state_of(known) for known in (*OF_PROCESS.values(), *([] if generator is None else [generator]))
        )

    def state(self, loader: "StageLoader[Any]") -> dict[str, Any]:
        """Raises what a ``state_dict`` of the user's raises."""
        num_epochs = loader.num_lane_epochs
        if self.is_finished:
            end = self.between() if self.is_over else self.reader.mark(None, 0, None, THE_DATASET)
            is_new = not self.is_started  # it may have no state before it is read for the first time
            is_told = end.dataset is not None or (end.error is not None and not is_new)
            readers = [self._told(Inside(end, True))] if is_told else None
            return state_with(loader, INLINE, is_boundary=True, num_epochs=num_epochs, readers=readers)
        look = self.look()
        inside = self.left if look is None else look()
        return state_with(
            loader,
            INLINE,
            bad=self.bad.plain(),
            num_batches=self.num_batches,
            num_epochs=num_epochs,
            base_seed=self.base_seed,
            readers=None if inside is None else [self._told(inside)],
        )

    def _told(self, inside: "Inside") -> dict[str, Any]:
        mark, is_exact = inside.mark, inside.has_state or inside.has_ended
        if mark.error is not None:
            raise mark.error
        return {
            "num_batches": mark.num_batches,
            "num_since": inside.num_since,
            "num_read": mark.num_read,
            "has_ended": inside.has_ended,
            "has_state": inside.has_state,
            "dataset": mark.dataset,
            "iterator": mark.iterator,
            "draws": None if self.texts is None or not is_exact else self.texts.of(mark.draws),
            "draws_at_start": None if self.is_finished or not self._at_start else self._texts_at_start(),
        }

    def _texts_at_start(self) -> States:
        if self._texts is None:
            scratch = (torch.Generator(), Random(), np.random.RandomState(), torch.Generator())
            self._texts = {}
            for name, generator, state in zip((*PROCESS, "loader"), scratch, self._at_start, strict=False):
                set_state(generator, state)
                self._texts[name] = text_of(generator)
        return self._texts
