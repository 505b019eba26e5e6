"""Prepared: a StageLoader class in, one that an Accelerator takes for a loader that it has prepared, out.

Guarantees: a state says where the loader is after the batches that were handed out, also when the loop was left; what
ranks must have alike, they have before the first batch of each epoch.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin  # pyright: ignore[reportMissingTypeStubs]
from accelerate.state import GradientState  # pyright: ignore[reportMissingTypeStubs]
from accelerate.utils import (  # pyright: ignore[reportMissingTypeStubs]
    broadcast_object_list,  # pyright: ignore[reportUnknownVariableType]
    synchronize_rng_states,
)

from torchstage.arguments import ITERABLE
from torchstage.samplers import ElasticSampler

OURS = ("iteration", "num_batches", "num_ranks", "shared_seed")  # what a state has beside the loader's own


@dataclass(frozen=True)
class Sharing:
    """How ranks share a loader's samples."""

    num_ranks: int = 1
    is_elastic: bool = False  # by an ElasticSampler: its padding may be in any rank's last batch
    has_shared_seed: bool = False  # the first rank's, which nobody has given
    rng_types: tuple[str, ...] = ()  # of the process, that are made alike before each epoch
    generator: torch.Generator | None = None  # the sampler's, likewise


class Prepared(DataLoaderStateMixin):
    """Over a StageLoader class: what an Accelerator asks of its loaders."""

    _is_accelerate_prepared = True
    _sharing = Sharing()

    def begin_with(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self.gradient_state = GradientState()
        self.iteration: int = 0
        self._num_batches: int = 0  # handed out in this epoch, or before the place where it begins
        self._num_to_skip = 0
        self._is_placed = False  # the next epoch begins inside
        self._is_inside = False
        self._is_seed_shared = not sharing.has_shared_seed
        self._epochs_before: int | None = 0  # that are not in the caller's numbers; None: the next number tells
        self._before: dict[str, Any] | None = None

    # What an Accelerator asks -----------------------------------------------------------------------------------

    @property
    def _drop_last(self) -> bool:
        """Whether nothing is left over. An elastic sampler's padding is not at the end of all ranks' batches."""
        loader: Any = self
        return loader.drop_last or self._sharing.is_elastic

    @property
    def total_batch_size(self) -> int:
        loader: Any = self
        sizes = (getattr(owner, "batch_size", None) for owner in (loader, loader.batch_sampler, loader.sampler))
        return next((size for size in sizes if size), 1) * self._sharing.num_ranks

    @property
    def total_dataset_length(self) -> int:
        loader: Any = self
        return len(loader.dataset)

    def get_sampler(self) -> Any:
        loader: Any = self
        return loader.sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is next."""
        before = self.iteration - epoch if self._epochs_before is None else self._epochs_before
        self.iteration, self._epochs_before = epoch + before, before
        self._tell_epoch()

    def _tell_epoch(self) -> None:
        loader: Any = self
        dealt_out = [getattr(one, "batch_sampler", None) for one in (loader.batch_sampler, loader.sampler)]  # by it
        samplers = [loader.sampler, loader.batch_sampler, *dealt_out]
        held = [getattr(sampler, "sampler", None) for sampler in samplers]
        known: list[Any] = [*samplers, *held, loader.dataset]
        for number, owner in enumerate(known):
            if callable(getattr(owner, "set_epoch", None)) and not any(owner is one for one in known[:number]):
                owner.set_epoch(self.iteration)

    # Batches ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        loader: Any = super()
        begin: Callable[[], Iterator[Any]] = loader.__iter__
        return self._pass(begin)

    def _pass(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        self._before = None
        self._num_batches = self._num_batches if self._is_placed else 0
        self._is_placed = False
        self._tell_epoch()
        self._make_alike()
        self.begin()
        self._is_inside = True
        try:
            batches = begin()
            self._num_batches += sum(1 for _ in islice(batches, self._num_to_skip))
            self._num_to_skip = 0
            is_iterable = isinstance(getattr(self, "dataset", None), ITERABLE)
            for batch in self._reading_ahead(batches) if is_iterable else self._asking(batches):
                self._num_batches += 1
                yield batch
            self.iteration += 1
        except GeneratorExit:  # the loop was left
            self.iteration += self.end_of_dataloader
            raise
        finally:
            self._is_inside = False
            self.end()

    def _asking(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The sampler knows whether it has more."""
        loader: Any = self
        for batch in batches:
            self.end_of_dataloader = loader._epoch.is_finished()
            yield batch

    def _reading_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Only the next batch tells whether this one was the last. The state is that before it, also when the loop is
        left: the batch that was read ahead was not handed out."""
        end = object()
        batch = next(batches, end)
        while batch is not end:
            self._before = self._own_state()
            following = next(batches, end)
            if following is end:
                self._before = None
                self.end_of_dataloader = True
            yield batch
            batch = following

    def _make_alike(self) -> None:
        """All ranks come here."""
        sharing = self._sharing
        if not self._is_seed_shared:
            seeds: Any = broadcast_object_list([self._shared_seed()])
            self._share_seed(seeds[0])
        if sharing.rng_types:
            synchronize_rng_states([*sharing.rng_types], sharing.generator)

    def _shared_seed(self) -> int:
        loader: Any = self
        return loader.sampler.seed if self._sharing.is_elastic else loader.seed

    def _share_seed(self, seed: int) -> None:
        owner: Any = self
        if self._sharing.is_elastic:
            owner = owner.sampler
        owner.seed = seed
        self._is_seed_shared = True

    # Going on ---------------------------------------------------------------------------------------------------

    def skip_first_batches(self, num_batches: int) -> "Prepared":
        """Let the next epoch begin behind so many batches of this rank. That is where a loaded state begins anyway."""
        loader: Any = self
        if self._is_placed:
            if num_batches != self._num_batches:
                raise ValueError(
                    f"torchstage: a loaded state has this loader begin behind {self._num_batches} batches, and "
                    f"skip_first_batches says {num_batches}. Leave skip_first_batches out: the state is enough."
                )
        elif isinstance(loader.sampler, ElasticSampler) and num_batches:
            loader.sampler.start_at(num_batches * loader.batch_size * loader.sampler.num_replicas)
            self._num_batches, self._is_placed = num_batches, True
        else:
            self._num_to_skip = num_batches  # they are read
        return self

    def number_epochs_from_here(self) -> None:
        """The next number that ``set_epoch`` gets means the epoch that a loaded state is of: the caller counts anew."""
        self._epochs_before = None

    def _own_state(self) -> dict[str, Any]:
        loader: Any = super()
        return loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the batches that were handed out."""
        state = self._own_state() if self._before is None else self._before
        is_over = state["is_boundary"]
        return {
            **state,
            "iteration": self.iteration + bool(self._is_inside and self.end_of_dataloader and is_over),
            "num_batches": 0 if is_over else self._num_batches,
            "num_ranks": self._sharing.num_ranks,
            "shared_seed": self._shared_seed() if self._sharing.has_shared_seed else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there; with it, in the epoch that it was in. Raises ValueError for a place that only as many ranks as
        there were can find."""
        loader: Any = super()
        sampler: Any = self.get_sampler()
        sharing = self._sharing
        own = {name: value for name, value in state_dict.items() if name not in OURS}
        num_batches, num_ranks = state_dict.get("num_batches", 0), state_dict.get("num_ranks", sharing.num_ranks)
        if num_ranks != sharing.num_ranks and not isinstance(sampler, ElasticSampler):
            raise ValueError(
                f"torchstage: this state was saved by {num_ranks} ranks and there are {sharing.num_ranks}. Only an "
                "ElasticSampler can go on with another number: shuffle=True gives one on several ranks."
            )
        if sharing.has_shared_seed and state_dict.get("shared_seed") is not None:
            self._share_seed(state_dict["shared_seed"])
        loader.load_state_dict(own)
        self.iteration = int(state_dict.get("iteration", self.iteration))
        self._num_batches, self._is_placed = num_batches, num_batches > 0
        self._num_to_skip, self._before = 0, None


@functools.cache
def prepared_class(loader_class: type[Any]) -> type[Any]:
    members = {"__doc__": loader_class.__doc__, "__module__": loader_class.__module__}
    return type(loader_class.__name__, (Prepared, loader_class), members)
