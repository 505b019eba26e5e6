"""Inline lane: an iterable dataset and a seed in, its batches out, made in the caller's thread.

Guarantees: it draws what one lane (``lanes=1``) draws with the same seed, and nothing from the process's generators;
all else is as torch does it for ``num_workers=0``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch.utils.data._utils.worker as torch_worker
import torch.utils.data.dataloader as torch_dataloader
import torch.utils.data.graph_settings as torch_graph
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng
from torchstage.lanes import base_seed_of
from torchstage.transfer import pinned

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher  # torch leaves it untyped
_apply_sharding: Callable[..., Any] = vars(torch_graph)["apply_sharding"]
_numpy_seed: Callable[[int, int], list[int]] = vars(torch_worker)["_generate_state"]


class InlineLane(_BaseDataLoaderIter):
    """``num_workers=0`` with a seed."""

    _dataset: Any
    _collate_fn: Any
    _timeout: float
    _pin_memory_device: Any

    def __init__(self, loader: "StageLoader[Any]", seed: int, epoch: int) -> None:
        super().__init__(cast(Any, loader))  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        if self._timeout != 0:
            raise AssertionError(f"StageLoader: timeout={self._timeout} needs num_workers > 0, got num_workers=0")
        dataset: Any = loader.dataset
        if isinstance(dataset, IterDataPipe):
            _apply_sharding(dataset, self._world_size, self._rank)
        base_seed = base_seed_of(seed, epoch)
        self._scope = rng.Scope.of_worker(base_seed, 0, _numpy_seed(base_seed, 0))
        self._fetcher: Any = None
        self._pin = pinned(self._pin_memory_device) if self._pin_memory else None

    def _next_data(self) -> Any:
        index = cast(Any, self)._next_index()
        with rng.drawing_from(self._scope):
            if self._fetcher is None:
                arguments = self._auto_collation, self._collate_fn, self._drop_last
                self._fetcher = _create_fetcher(self._dataset_kind, self._dataset, *arguments)
            batch = self._fetcher.fetch(index)
        return batch if self._pin is None else self._pin(batch, ())
