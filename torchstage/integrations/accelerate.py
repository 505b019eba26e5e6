"""Accelerate: an Accelerator in; one whose ``prepare`` keeps StageLoaders, shared out and with their state, out.

Guarantees: what ``prepare`` returns is a StageLoader of the same class, with the same arguments; several ranks share
one order; ``save_state`` and ``load_state`` of the Accelerator have each rank's place in the epoch; loaders of others
are prepared as always.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

try:  # it has no types
    from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
    from accelerate.data_loader import (  # pyright: ignore[reportMissingTypeStubs]
        BatchSamplerShard,
        IterableDatasetShard,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "accelerate":
        raise
    raise ImportError(
        "torchstage.integrations.accelerate needs accelerate: pip install 'torchstage[accelerate]'."
    ) from error

from torchstage.arguments import DATA_LOADER, ITERABLE, STAGE_LOADER, arguments_of, class_for, is_convertible
from torchstage.integrations.prepared import Prepared, Sharing, prepared_class
from torchstage.samplers import ElasticSampler


def keep_stage_loaders(
    accelerator: Accelerator,
    *,
    convert: bool = False,
    loader_arguments: Callable[[], dict[str, Any]] = dict,
) -> Accelerator:
    """Let ``accelerator.prepare`` keep StageLoaders; it is returned.

    Batches arrive on the accelerator's device. On several ranks a shuffled loader has an ElasticSampler, so that its
    state is good for any number of ranks; the batches of any other map-style loader are dealt out as accelerate does
    it; an iterable dataset is read by every rank, which keeps its part. A ``DistributedSampler`` is left as it is.

    After ``load_state`` a loader goes on by itself; ``accelerator.skip_first_batches`` may say so, too.

    Args:
        accelerator: the one whose ``prepare`` is changed.
        convert: make StageLoaders of DataLoaders too.
        loader_arguments: gives StageLoader's arguments, to stand for the loaders' own.

    Raises ValueError from ``prepare`` for ``split_batches`` and ``dispatch_batches``, which need accelerate's loaders.
    """
    known: Any = accelerator
    theirs, skip_theirs = known.prepare_data_loader, known.skip_first_batches

    @functools.wraps(theirs)
    def prepare_data_loader(data_loader: Any, *arguments: Any, **others: Any) -> Any:
        is_ours = isinstance(data_loader, STAGE_LOADER)
        wants = is_ours or (convert and isinstance(data_loader, DATA_LOADER) and not _is_prepared(data_loader))
        if not wants or _is_prepared(data_loader) or not is_convertible(data_loader):
            return theirs(data_loader, *arguments, **others)
        placement = others.get("device_placement", arguments[0] if arguments else None)
        made = prepared(accelerator, data_loader, placement, loader_arguments())
        return theirs(made)  # which keeps a list of them

    @functools.wraps(skip_theirs)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, Prepared):
            return dataloader.skip_first_batches(num_batches)
        return skip_theirs(dataloader, num_batches)

    known.prepare_data_loader = prepare_data_loader
    known.skip_first_batches = skip_first_batches

    def save(models: Any, weights: Any, folder: str) -> None:
        _save(known, Path(folder))

    def load(models: Any, folder: str) -> None:
        _load(known, Path(folder))

    known.register_save_state_pre_hook(save)
    known.register_load_state_pre_hook(load)
    return accelerator


def _is_prepared(loader: Any) -> bool:
    return getattr(loader, "_is_accelerate_prepared", False)


# The state of each rank, in a file of its own: accelerate has one for all of them, which each would write over.


def _save(accelerator: Any, folder: Path) -> None:
    for number, loader in _numbered(accelerator):
        torch.save(loader.state_dict(), folder / name_of(number, accelerator.process_index))


def _load(accelerator: Any, folder: Path) -> None:
    for number, loader in _numbered(accelerator):
        path = folder / name_of(number, accelerator.process_index)
        if not path.exists():  # there were fewer ranks
            path = folder / name_of(number, 0)
        if path.exists():
            loader.load_state_dict(torch.load(path, weights_only=True))
        else:
            warnings.warn(
                f"torchstage: {folder} has no state of loader {number}, which begins an epoch. It was saved without "
                "keep_stage_loaders: call accelerator.skip_first_batches to go on inside an epoch.",
                stacklevel=2,
            )


def _numbered(accelerator: Any) -> list[tuple[int, Prepared]]:
    """Those of ours, with their numbers among all that were prepared."""
    return [pair for pair in enumerate(accelerator._dataloaders) if isinstance(pair[1], Prepared)]


def name_of(number: int, rank: int) -> str:
    return f"stage_loader_{number}_rank_{rank}.pt"


# Sharing out ----------------------------------------------------------------------------------------------------


def prepared(accelerator: Any, loader: Any, device_placement: bool | None, given: dict[str, Any]) -> Any:
    """A loader like this one, for this rank."""
    if accelerator.split_batches or accelerator.dispatch_batches:
        raise ValueError(
            "torchstage: accelerate's split_batches and dispatch_batches need its own loaders. Leave them out, or "
            "prepare a DataLoader."
        )
    arguments = arguments_of(loader, given)
    sharing = _share_out(accelerator, loader, arguments) if accelerator.num_processes > 1 else Sharing()
    is_placed = accelerator.device_placement if device_placement is None else device_placement
    if is_placed and arguments.get("device") is None and accelerator.device.type != "cpu":
        arguments["device"] = accelerator.device
    made = prepared_class(class_for(loader))(**arguments)
    made.begin_with(sharing)
    return made


def _share_out(accelerator: Any, loader: Any, arguments: dict[str, Any]) -> Sharing:
    """Give this rank its part."""
    num_ranks, rank = accelerator.num_processes, accelerator.process_index
    rng_types = tuple(str(getattr(kind, "value", kind)) for kind in accelerator.rng_types or ())
    of_process = tuple(kind for kind in rng_types if kind != "generator")
    has_seed = arguments.get("seed") is not None
    if isinstance(loader.dataset, ITERABLE):
        arguments["dataset"] = IterableDatasetShard(
            loader.dataset, loader.batch_size or 1, loader.drop_last, num_ranks, rank, split_batches=False
        )
        if not has_seed:  # all ranks read the whole, so what it draws must be alike
            arguments["seed"] = _seed(None)
        return Sharing(num_ranks, has_shared_seed=not has_seed, rng_types=of_process)
    sampler: Any = loader.sampler if loader.batch_size is not None else getattr(loader.batch_sampler, "sampler", None)
    if isinstance(getattr(sampler, "num_replicas", None), int):
        return Sharing(num_ranks, isinstance(sampler, ElasticSampler), rng_types=of_process)
    generator = getattr(sampler, "generator", None)
    if _is_plain_shuffle(loader, sampler):
        seed = arguments["seed"] if has_seed else _seed(generator)
        tail = "drop" if arguments["drop_last"] else "pad" if accelerator.even_batches else "exact"
        arguments["sampler"] = ElasticSampler(loader.dataset, num_ranks, rank, seed=seed, tail=tail)
        return Sharing(num_ranks, is_elastic=True, has_shared_seed=not has_seed, rng_types=of_process)
    if generator is None and hasattr(sampler, "generator"):  # else each rank would draw an order of its own
        sampler.generator = generator = torch.Generator().manual_seed(torch.initial_seed())
    _deal_out(accelerator, loader, arguments)
    if isinstance(generator, torch.Generator):
        return Sharing(num_ranks, rng_types=(*of_process, "generator"), generator=generator)
    return Sharing(num_ranks, rng_types=of_process)


def _is_plain_shuffle(loader: Any, sampler: Any) -> bool:
    """``shuffle=True``, which an ElasticSampler does too."""
    if type(sampler) is not RandomSampler or sampler.replacement or loader.batch_size is None:
        return False
    return len(sampler) == len(loader.dataset) == len(sampler.data_source)


def _deal_out(accelerator: Any, loader: Any, arguments: dict[str, Any]) -> None:
    """Whole batches, in turn."""
    is_sampler = loader.batch_sampler is None
    if is_sampler and not isinstance(loader.sampler, BatchSampler):
        raise ValueError(
            "torchstage: with batch_size=None there are no batches to deal out to several ranks. Give batch_size, a "
            "batch_sampler, or a sampler with num_replicas, such as torchstage.samplers.ElasticSampler."
        )
    shard = BatchSamplerShard(
        loader.sampler if is_sampler else loader.batch_sampler,
        accelerator.num_processes,
        accelerator.process_index,
        split_batches=False,
        even_batches=accelerator.even_batches,
    )
    if is_sampler:
        arguments["sampler"] = shard
        return
    for name in ("batch_size", "sampler", "drop_last"):
        arguments.pop(name, None)
    arguments["batch_sampler"] = shard


def _seed(generator: torch.Generator | None) -> int:
    """That which the user has given to the generator, or to the process: a resumed program gives it again."""
    return (torch.initial_seed() if generator is None else generator.initial_seed()) % 2**63
