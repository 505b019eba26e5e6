"""Worker epoch: batches of worker processes as they are handed out in, where the epoch is out, and back.

Guarantees: it holds neither the iterator nor the loader.
"""

import copy
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from torchstage.marks import keeper_of
from torchstage.reader_state import WORKERS, Resume, drawing_base_seed, follow, state_with
from torchstage.replay import Replay

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

EXTRA = (
    "StageLoader.state_dict: the state of an iterable dataset in worker processes is kept by torchdata's stateful "
    "workers. Install them: pip install 'torchstage[stateful]'. Threads need nothing (worker_method='thread')."
)
NO_ORDER = (
    "StageLoader.state_dict: worker processes with in_order=False do not tell which batches were handed out. Use "
    "in_order=True, or threads (worker_method='thread')."
)


class WorkerEpoch:
    """An epoch of an iterable dataset that worker processes read."""

    def __init__(self, loader: "StageLoader[Any]", resume: Resume | None) -> None:
        if resume is not None:
            resume.check_kind(WORKERS)
            follow(loader, resume)
        self.resume = resume
        self.is_started = False
        self.is_finished = False
        self.has_state = keeper_of(loader.dataset) is not None
        self.own: Any = None  # what torchdata's workers tell
        self.has_own = False  # whether it is theirs to tell
        self.base_seed = None if resume is None else resume.base_seed
        self.shared_seed = None if resume is None else resume.shared_seed
        self.num_batches = 0 if resume is None else resume.num_batches
        self.replay = Replay([0 if resume is None or resume.own is not None else resume.num_batches], [False])
        self._stream = loader.stream
        self._is_kept = bool(loader.persistent_workers)

    @property
    def is_pending(self) -> bool:
        """Whether a state was loaded, and nothing handed out since."""
        return self.resume is not None and self.num_batches == self.resume.num_batches and not self.is_finished

    def drawing_base_seed(self, generator: torch.Generator | None) -> AbstractContextManager[None]:
        return drawing_base_seed(self._stream, self.base_seed, generator)

    def seeds(self, base_seed: int, shared_seed: int | None) -> tuple[int, int | None]:
        """Those that it has, given those that were drawn for it."""
        resume = self.resume
        if resume is not None and resume.base_seed is not None:
            base_seed, shared_seed = resume.base_seed, resume.shared_seed
        self.base_seed, self.shared_seed = base_seed, shared_seed
        return base_seed, shared_seed

    def begin(self) -> None:
        """The first batch is asked for."""
        if self.is_started:
            return
        self.is_started = True
        self.replay.begin()

    def hand_out(self) -> None:
        """The caller gets the next batch, or the error in its place."""
        self.num_batches += 1

    def state(self, loader: "StageLoader[Any]") -> dict[str, Any]:
        if not loader.in_order and self.is_started:
            raise RuntimeError(NO_ORDER)
        if self.has_state and not self.has_own and self.base_seed is not None:
            raise ImportError(EXTRA)
        if self.is_finished or self.base_seed is None:
            is_known = self._is_kept and self.base_seed is not None
            own = copy.deepcopy(self.own) if is_known else None
            base_seed = self.base_seed if is_known else None
            return state_with(loader, WORKERS, is_boundary=True, own=own, base_seed=base_seed)
        return state_with(
            loader,
            WORKERS,
            num_batches=self.num_batches,
            base_seed=self.base_seed,
            shared_seed=self.shared_seed,
            own=copy.deepcopy(self.own),
        )
