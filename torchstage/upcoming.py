"""Upcoming: an epoch that is handed out in, what is expected of the one after it out, so that it can be begun early.

Guarantees: what was begun early is used only for a batch that would be made just so now: of the same indices, with the
same draws, by the same functions over the same dataset, in which nobody was seen to change anything meanwhile; neither
the sampler nor the counts of epochs notice.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, MapDataPipe

from torchstage.alike import alike
from torchstage.engine.early import Admission, Early
from torchstage.epoch import Epoch
from torchstage.errors import warn_user
from torchstage.forecast import order_of, why_uncertain
from torchstage.looking import type_of
from torchstage.order import Places, can_repeat, samplers_of, seeds_of
from torchstage.plan import Plan, Source
from torchstage.sampling import Sampling
from torchstage.seeds import Seeds
from torchstage.unchanged import Held

MAX_IN_VAIN = 3  # epochs in a row, then nothing is begun early any more: the work would only take cores from training


def check_prefetch_epochs(prefetch_epochs: Any, persistent_workers: bool) -> None:
    """Raise for a loader whose threads do not live on between two epochs."""
    if not isinstance(prefetch_epochs, bool):
        raise TypeError(f"StageLoader: prefetch_epochs must be True or False, got {prefetch_epochs!r}.")
    if prefetch_epochs and not persistent_workers:
        raise ValueError(
            "StageLoader: prefetch_epochs=True needs persistent_workers=True (and num_workers > 0): the threads go on "
            "between two epochs, with the dataset and the base seed that they have. Give both, or neither."
        )


def why_never(loader: Any) -> str | None:
    """Why no epoch of the loader can be begun early, and what would help; None: it can."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset | MapDataPipe):
        return (
            f"what a {type_of(dataset).__name__} reads next is not known before it is asked for it. Only map-style "
            "datasets have an order."
        )
    if not loader.sample_rng:
        return (
            "with sample_rng=False samples draw from the process's random generators, and would draw from them too "
            "early. Leave sample_rng=False out."
        )
    return why_uncertain(Sampling.of(loader))


class Upcoming:
    """What one iterator knows of the epoch that comes next. What was begun of it is the iterator's, and is not reached
    from here."""

    def __init__(self, loader: Any) -> None:
        self.source: Source | None = None  # of the epoch that is handed out
        self._samplers = samplers_of(loader)
        self._dataset = loader.dataset
        self._seed: int | None = loader.seed
        self._num_begun: Counter[int] = loader.num_begun
        self._is_over = False
        self._num_in_vain = 0
        self._number: int | None = None  # of the epoch that is handed out
        self._step = 1  # from one epoch's number to the next's; 0 where nobody calls set_epoch
        self._num_resets: int | None = None
        self._resets_step = 1  # iterators are made once an epoch, but by some frameworks more often

    @staticmethod
    def of(loader: Any) -> "Upcoming | None":
        """None: the loader does not want it, or cannot have it, of which it warns."""
        if not loader.prefetch_epochs:
            return None
        why = why_never(loader)
        if why is None:
            return Upcoming(loader)
        warn_user(f"StageLoader: prefetch_epochs=True begins no epoch early: {why}")
        return None

    def follow(self, epoch: Epoch, source: Source, base_seed: int, num_resets: int, early: Early) -> None:
        """This epoch begins. ``early``: what was begun of it, and where the next one will be begun."""
        if self._number is not None and epoch.number is not None:
            self._step = epoch.number - self._number
        if self._num_resets is not None:
            self._resets_step = num_resets - self._num_resets
        self._number, self._num_resets, self.source = epoch.number, num_resets, source
        if not self._is_over:
            early.follow(partial(self._foresee, epoch, base_seed, num_resets + self._resets_step))

    def _foresee(self, epoch: Epoch, base_seed: int, num_resets: int) -> "Foreseen | None":
        """What comes after this epoch, whose order has come to its end. ``num_resets``: by then."""
        source = self.source
        if self._is_over or source is None or source.plan.is_on_trial:
            return None
        try:
            number = epoch.sampling.epoch
            if number is not None and number == epoch.number:  # nobody has set the next one yet
                number += self._step
            seeds = seeds_of(self._seed, self._samplers, base_seed, num_resets, Counter(self._num_begun), number)
            order = order_of(epoch.sampling, number)
            places = Places(self._dataset) if can_repeat(self._samplers, self._dataset) else None
            return Foreseen(self, source.plan, seeds, partial(Source, order, places=places))
        except Exception:  # the sampler's own: it is raised when that is asked for the epoch
            return None

    def was_right(self) -> None:
        """All that was begun early is used."""
        self._num_in_vain = 0

    def was_wrong(self, why: str) -> None:
        """It is not."""
        self._num_in_vain += 1
        if self._num_in_vain >= MAX_IN_VAIN and not self._is_over:
            self._is_over = True
            warn_user(
                f"StageLoader: prefetch_epochs=True has begun {MAX_IN_VAIN} epochs early in vain, the last one because "
                f"{why}. No epoch is begun early from here on. See docs/epochs.md for what has to stay as it is."
            )


class Foreseen:
    """What is expected of one epoch."""

    def __init__(self, upcoming: Upcoming, after: Plan, seeds: Seeds, source_of: Callable[[Plan], Source]) -> None:
        """``after``: the plan of the epoch before it, which is expected to last."""
        self._upcoming = upcoming
        self._after = after
        self._plan = after.with_seeds(seeds)
        self._source = source_of(self._plan)
        self._held = None if after.is_elsewhere else Held(**after.roots)
        self._meddled: str | None = None  # what was found changed while batches were made
        self._is_over = False
        self._agreed: Plan | None = None

    def admission(self) -> Admission | None:
        source = self._upcoming.source
        if self._is_over or source is None or source.plan is not self._after:
            return None
        try:
            return next(self._source)
        except Exception:  # the end; or the sampler's own error, which it raises once more in its epoch
            self._is_over = True
            return None

    def put(self, item: None, /) -> None:
        """Look now, too: what is changed for a while and then put back would not be seen later."""
        if self._held is None or self._meddled is not None:
            return
        try:
            self._meddled = self._held.rebound()
        except Exception as error:  # it is being changed just now
            self._meddled = f"something ({error!r})"

    def came(self) -> None:
        self._upcoming.was_right()

    def is_as(self, early: Admission, admitted: Admission) -> bool:
        source = self._upcoming.source
        assert source is not None
        why = None if source.plan is self._agreed else self._why_not(source.plan)
        if why is None and not (early[1].takes_whole is admitted[1].takes_whole and _is_same(early, admitted)):
            why = "the sampler gave another order than was foreseen"
        if why is not None:
            if not source.plan.is_on_trial:
                self._upcoming.was_wrong(why)
            return False
        self._agreed = source.plan
        return True

    def _why_not(self, plan: Plan) -> str | None:
        if not alike(plan.seeds, self._plan.seeds):
            return "the epoch's number, or how often it was begun, is another one than was foreseen"
        if not alike(plan.made_with, self._plan.made_with):
            return "the stages, where they run, or torch's modes are others now"
        try:
            changed = self._meddled or (None if self._held is None else self._held.changed())
        except Exception as error:
            changed = f"something ({error!r})"
        return None if changed is None else f"{changed} was changed between two epochs"


def _is_same(early: Admission, admitted: Admission) -> bool:
    return alike(early[0], admitted[0]) and alike(early[2], admitted[2])
