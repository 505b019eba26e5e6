"""Inline lane: an iterable dataset and a seed in, its batches out, made in the caller's thread.

Guarantees: it draws what one lane (``lanes=1``) draws with the same seed, and nothing from the process's generators;
all else is as torch does it for ``num_workers=0``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.utils.data.dataloader as torch_dataloader
import torch.utils.data.graph_settings as torch_graph
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng
from torchstage.inline_epoch import InlineEpoch
from torchstage.inline_reader import Told
from torchstage.lanes import base_seed_of
from torchstage.marks import draws_into
from torchstage.reader_state import unmoved
from torchstage.scope_states import Texts, drawn_of, seeded
from torchstage.transfer import pinned

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher  # torch leaves it untyped
_apply_sharding: Callable[..., Any] = vars(torch_graph)["apply_sharding"]


class InlineLane(Told, _BaseDataLoaderIter):
    """``num_workers=0`` with a seed."""

    _dataset: Any
    _collate_fn: Any
    _timeout: float
    _pin_memory_device: Any

    def __init__(self, loader: "StageLoader[Any]", home: "StageLoader[Any]", seed: int, number: int) -> None:
        """``home``: whose iterator it is; ``number``: of the epoch."""
        self._dataset_fetcher: Any = None
        epoch: InlineEpoch = home.new_reader_epoch(lambda resume, latest: InlineEpoch(home, resume, latest))
        self._follow(epoch, home)
        generator: torch.Generator = cast(Any, loader).generator or torch.default_generator
        with nullcontext() if epoch.base_seed is None else unmoved(generator):
            cast(Any, _BaseDataLoaderIter).__init__(self, loader)
        if self._timeout != 0:
            raise AssertionError(f"StageLoader: timeout={self._timeout} needs num_workers > 0, got num_workers=0")
        dataset: Any = loader.dataset
        if isinstance(dataset, IterDataPipe):
            _apply_sharding(dataset, self._world_size, self._rank)
        epoch.base_seed = base_seed_of(seed, number)
        epoch.texts = Texts(epoch.base_seed, 0)
        self._scope = seeded(epoch.base_seed, 0)
        self._pin = pinned(self._pin_memory_device) if self._pin_memory else None
        self._num_yielded = epoch.num_batches

    def _next_data(self) -> Any:
        with rng.drawing_from(self._scope):
            return self._good(self._made)

    def _open(self) -> None:
        self._dataset_fetcher = self._begin_at(self._new_fetcher)
        start = self._epoch.start
        if start is not None and start.mark is not None and start.mark.num_batches:
            draws_into(self._scope, start.mark.draws, self._epoch.base_seed or 0, 0)

    def _made(self) -> Any:
        batch = self._dataset_fetcher.fetch(cast(Any, self)._next_index())
        return batch if self._pin is None else self._pin(batch, ())

    def _new_fetcher(self) -> Any:
        arguments = self._auto_collation, self._collate_fn, self._drop_last
        return self._sieved(_create_fetcher(self._dataset_kind, self._dataset, *arguments))

    def _draws(self) -> Any:
        return drawn_of(self._scope)
