"""Arguments: a DataLoader in, the arguments that make a StageLoader of it, out.

Guarantees: the loader is not changed; a StageLoader gives all its arguments, also those of a class of the user's.
"""

import inspect
import warnings
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from torchstage.loader import StageLoader

LOADER_ARGUMENTS = tuple(name for name in inspect.signature(StageLoader).parameters if name != "dataset")
DATA_LOADER: Any = DataLoader  # untyped, as the loaders of others are
STAGE_LOADER: Any = StageLoader
ITERABLE: Any = IterableDataset
NEED_WORKERS = ("prefetch_factor", "persistent_workers", "prefetch_epochs", "timeout")


def class_for(loader: Any) -> Any:
    """Its own class, if that is one of StageLoader's."""
    return loader.__class__ if isinstance(loader, STAGE_LOADER) else STAGE_LOADER


def is_convertible(loader: Any) -> bool:
    """A DataLoader of the user's own way to iterate cannot become another one."""
    if not isinstance(loader, DATA_LOADER):
        return False
    kind: Any = loader.__class__
    is_of_torchdata = kind.__module__.partition(".")[0] == "torchdata"
    if is_of_torchdata or kind.__iter__ in (DATA_LOADER.__iter__, STAGE_LOADER.__iter__):
        return True
    warnings.warn(
        f"torchstage: a {kind.__name__} has an __iter__ of its own, and stays as it is. Make it a subclass "
        "of torchstage.StageLoader to have it converted.",
        stacklevel=2,
    )
    return False


def arguments_of(loader: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What makes a StageLoader of the loader. Its context of worker processes is left out: threads stand for them."""
    kept = set(inspect.signature(DATA_LOADER.__init__).parameters) - {"multiprocessing_context"}
    if isinstance(loader, STAGE_LOADER):  # a class of the user's may have **kwargs for StageLoader's arguments
        kept = {*inspect.signature(type(loader).__init__).parameters, *LOADER_ARGUMENTS, "dataset"}
    kept -= {"self", "shuffle", "batch_size", "sampler", "batch_sampler", "drop_last", "feed"}
    arguments = {name: getattr(loader, name) for name in kept if name in vars(loader)} | _order_of(loader)
    arguments |= given
    if not arguments["num_workers"]:
        for name in NEED_WORKERS:
            if name not in given:
                arguments.pop(name, None)
    return arguments


def _order_of(loader: Any) -> dict[str, Any]:
    if loader.batch_sampler is not None and loader.batch_size is None:
        return {"batch_sampler": loader.batch_sampler}
    order = {"batch_size": loader.batch_size}
    if type(loader.batch_sampler) is BatchSampler or isinstance(loader.dataset, ITERABLE):
        order["drop_last"] = loader.drop_last
    return order if isinstance(loader.dataset, ITERABLE) else {**order, "sampler": loader.sampler}
