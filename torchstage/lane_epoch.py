"""Lane epoch: batches of lanes as they are handed out in, where the epoch is out, and back.

Guarantees: what was made ahead and not handed out does not count; it holds neither the iterator nor the loader, so that
it tells where an epoch was left after both are gone.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import torch

from torchstage.cuts import Cut, Opening
from torchstage.marks import Mark, Start
from torchstage.reader_state import LANES, Resume, bad_of, drawing_base_seed, follow, num_readers, state_with
from torchstage.replay import Replay
from torchstage.scope_states import Texts

if TYPE_CHECKING:
    from torchstage.loader import StageLoader


@dataclass(slots=True)
class _Lane:
    """Where a lane is, as far as its batches were handed out."""

    mark: Mark | None = None  # the latest; None: it is at the beginning of its epoch
    num_since: int = 0  # batches handed out after that
    has_ended: bool = False
    has_state: bool = False
    draws_at_start: Any = None
    is_start_known: bool = False
    texts: Texts | None = None


class LaneEpoch:
    """An epoch of an iterable dataset that lanes read."""

    def __init__(
        self, loader: "StageLoader[Any]", resume: Resume | None, previous: Optional["LaneEpoch"] = None
    ) -> None:
        """``previous``: the one that the same lanes read before."""
        if resume is not None:
            resume.check_kind(LANES)
            follow(loader, resume)
        self.resume = resume
        self.bad = bad_of(resume)
        self.is_started = False
        self.is_finished = False
        self.num_steps = loader.snapshot_every_n_steps or 0
        self.base_seed = None if resume is None else resume.base_seed
        self.shared_seed = None if resume is None else resume.shared_seed
        self.num_batches = 0 if resume is None else resume.num_batches
        self.next_lane = 0 if resume is None else resume.next_lane
        self._stream = loader.stream
        self._is_kept = bool(loader.persistent_workers)
        self._is_live: Callable[[], bool] = lambda: False
        self.openings = [Opening() for _ in range(num_readers(loader))]
        self._starts = _starts(resume, previous, len(self.openings))
        self._lanes = [_Lane() if start is None else _of_start(start) for start in self._starts]
        known = [(0, True) if start is None else (start.num_since, start.has_state) for start in self._starts]
        self.replay = Replay(*zip(*known, strict=True))
        if previous is not None and previous.is_finished and resume is None:
            self._lanes = [_at_end(lane) for lane in previous._lanes]

    @property
    def is_pending(self) -> bool:
        """Whether a state was loaded, and nothing handed out since."""
        return self.resume is not None and self.num_batches == self.resume.num_batches and not self.is_finished

    def drawing_base_seed(self, generator: torch.Generator | None) -> AbstractContextManager[None]:
        return drawing_base_seed(self._stream, self.base_seed, generator)

    def seeds(self, base_seed: int, first_shared_seed: int | None, shared_seed: int | None) -> tuple[Any, Any, Any]:
        """Those that this epoch has, given those that were drawn for it: of the lanes, and of a data pipe where they
        are set up, and where they are read again."""
        if self.resume is not None and self.resume.base_seed is not None:
            base_seed = self.resume.base_seed
        if self.resume is not None and self.resume.shared_seed is not None:
            first_shared_seed = self.resume.shared_seed
        self.base_seed = base_seed
        self.shared_seed = shared_seed if first_shared_seed is None else first_shared_seed
        return base_seed, first_shared_seed, shared_seed

    def starts(self) -> list[Start | None]:
        """Where each lane begins; None: where it is."""
        return self._starts

    def begin(self, is_live: Callable[[], bool]) -> None:
        """The first batch is asked for. ``is_live``: whether the lanes may still do what they are told."""
        self._is_live = is_live
        self.is_started = True
        self.replay.begin()

    def is_live(self) -> bool:
        """Whether anybody may still want what the lanes make."""
        return self._is_live()

    def hand_out(self, cut: Cut) -> None:
        """The caller gets this batch, the error in its place, or the next lane's batch if there is none, or nothing is
        left of it."""
        lane = self._lanes[cut.lane]
        if not cut.has_ended:
            self.num_batches += not cut.has_failed and not cut.is_left_out
            self.next_lane = (cut.lane + 1) % len(self._lanes)
        if cut.has_failed:  # a later state is to have it go on from there once more
            return
        lane.has_state = lane.has_state or cut.has_state
        lane.num_since += 1
        if cut.mark is not None or cut.has_ended or cut.is_last:
            lane.mark, lane.num_since, lane.has_ended = cut.mark or lane.mark, 0, cut.has_ended or cut.is_last

    def finish(self) -> None:
        """Every batch was handed out."""
        self.is_finished = True

    # States -----------------------------------------------------------------------------------------------------

    def state(self, loader: "StageLoader[Any]") -> dict[str, Any]:
        """Raises what a lane's ``state_dict`` raised."""
        is_kept = self._is_kept and self.base_seed is not None
        if self.is_finished:
            ends = [self._told(number, _at_end(lane)) for number, lane in enumerate(self._lanes)] if is_kept else None
            return state_with(
                loader,
                LANES,
                is_boundary=True,
                num_epochs=loader.num_lane_epochs,
                base_seed=self.base_seed if is_kept else None,
                readers=ends,
            )
        if self.is_started:
            for number, lane in enumerate(self._lanes):
                self._wait_for_start(number, lane)
        return state_with(
            loader,
            LANES,
            bad=self.bad.plain(),
            num_batches=self.num_batches,
            num_epochs=loader.num_lane_epochs,
            base_seed=self.base_seed,
            shared_seed=self.shared_seed,
            readers=[self._told(number, lane) for number, lane in enumerate(self._lanes)],
            next_lane=self.next_lane,
        )

    def _wait_for_start(self, number: int, lane: _Lane) -> None:
        """A lane that was asked for its first batch, and perhaps has to finish others before, tells how it begins. One
        that was not asked yet, because ``prefetch_bytes`` left no room for it, is at its beginning."""
        if lane.is_start_known or lane.has_ended or not self.openings[number].is_asked:
            return
        opening = self.openings[number].wait(self._is_live)
        if opening is not None:
            lane.is_start_known = True
            lane.draws_at_start = opening.draws
            if lane.mark is None:  # it may have no state before its iterator is made: then it is as it was made
                lane.mark = opening if opening.error is None else Mark(0, draws=opening.draws)

    def _told(self, number: int, lane: _Lane) -> dict[str, Any]:
        mark = lane.mark or Mark(0)
        if mark.error is not None:
            raise mark.error
        if lane.texts is None:
            lane.texts = Texts(self.base_seed or 0, number)
        texts = lane.texts
        is_inside = mark.num_batches > 0
        at_end = mark.draws if lane.has_ended and not is_inside else None
        return {
            "num_batches": mark.num_batches,
            "num_since": lane.num_since,
            "num_read": mark.num_read,
            "has_ended": lane.has_ended,
            "has_state": lane.has_state,
            "dataset": mark.dataset,
            "iterator": mark.iterator,
            "draws": texts.of(mark.draws) if is_inside else None,
            "draws_at_start": texts.of(at_end or lane.draws_at_start),
        }


def _starts(resume: Resume | None, previous: LaneEpoch | None, num_lanes: int) -> list[Start | None]:
    if resume is not None and resume.readers is not None:
        return list(resume.readers)
    if previous is None or previous.resume is None or not previous.is_finished:
        return [None] * num_lanes
    # Lanes that had ended when the state was saved did not read anything in the epoch that was resumed.
    starts = previous.starts()
    return [
        None if start is None or not start.has_ended else Start(start.mark, draws_at_start=start.draws_at_start)
        for start in starts
    ]


def _of_start(start: Start) -> _Lane:
    return _Lane(
        mark=start.mark,
        num_since=start.num_since,
        has_ended=start.has_ended,
        has_state=start.has_state,
        draws_at_start=start.draws_at_start,
        is_start_known=True,
    )


def _at_end(lane: _Lane) -> _Lane:
    """A lane that has finished its epoch, at the beginning of the next."""
    mark = lane.mark if lane.mark is not None and lane.mark.num_batches == 0 else Mark(0)
    draws = lane.draws_at_start if mark.draws is None else mark.draws
    return _Lane(mark=mark, has_state=lane.has_state, draws_at_start=draws, is_start_known=True, texts=lane.texts)
