"""Loaders: a map-style dataset in, an iterable of batches out, one function for each library.

Each is set up as that library's own documentation does for several epochs on one machine, with as many
threads (or processes) as `num_workers` says. Guarantees: `iter()` of what comes back is one epoch, and may
be called again; nothing is imported before it is needed, so that a peer that is not installed costs its
rows, not the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

Collate = Callable[[Any], Any]
NUM_BUFFERED_BATCHES = 3  # SPDL's own default for its sink


def torch_dataloader(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
) -> Iterable[Any]:
    """torch's loader, its processes kept between epochs."""
    return DataLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        collate_fn=collate_fn,
        persistent_workers=num_workers > 0,
    )


def stage_loader(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
    in_order: bool = True,
    stages: Sequence[Any] = (),
    persistent_workers: bool = True,
    **others: Any,
) -> Iterable[Any]:
    """Ours, as a user has it who changed the class name and nothing else; or who gave it stages."""
    from torchstage import StageLoader

    return StageLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        collate_fn=collate_fn,
        persistent_workers=persistent_workers and num_workers > 0,
        in_order=in_order,
        stages=stages,
        **others,
    )


def elastic_stage_loader(
    dataset: Any, batch_size: int, num_workers: int, *, shuffle: bool = False, collate_fn: Collate = default_collate
) -> Iterable[Any]:
    """Ours with our sampler, as for one rank."""
    from torchstage import StageLoader
    from torchstage.samplers import ElasticSampler

    sampler = ElasticSampler(dataset, num_replicas=1, rank=0, shuffle=shuffle)
    return StageLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers, collate_fn=collate_fn)


def torchdata_stateful(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
) -> Iterable[Any]:
    """torchdata's loader with a state, its processes kept between epochs; it brings samplers of its own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        collate_fn=collate_fn,
        persistent_workers=num_workers > 0,
    )


@dataclass(frozen=True, slots=True)
class SpdlEpochs:
    """A pipeline for each epoch, as `spdl.dataloader.DataLoader` makes one in its own `__iter__`."""

    dataset: Any
    sampler: Iterable[int]
    batch_size: int
    num_threads: int
    output_order: str
    collate_fn: Collate

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        pipeline = (
            PipelineBuilder()
            .add_source(self.sampler)
            .pipe(self.dataset.__getitem__, concurrency=self.num_threads, output_order=self.output_order)
            .aggregate(self.batch_size)
            .pipe(self.collate_fn)
            .add_sink(NUM_BUFFERED_BATCHES)
            .build(num_threads=self.num_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def spdl_pipeline(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
    output_order: str = "input",
) -> Iterable[Any]:
    """SPDL: `output_order="input"` keeps the sampler's order, `"completion"` gives it up."""
    return SpdlEpochs(dataset, _sampler(dataset, shuffle), batch_size, num_workers, output_order, collate_fn)


def grain_dataset(
    dataset: Any,
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
) -> Iterable[Any]:
    """Grain: a batch is one element, made by one thread; two a thread are read ahead, as in torch."""
    import grain.python as grain

    source = grain.MapDataset.source(dataset)
    ordered = source.shuffle(seed=0) if shuffle else source
    options = grain.ReadOptions(num_threads=num_workers, prefetch_buffer_size=2 * num_workers)
    return ordered.batch(batch_size, batch_fn=collate_fn).to_iter_dataset(options)


def torchdata_nodes(
    dataset: Any,
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
    whole_batches: bool = False,
) -> Iterable[Any]:
    """torchdata.nodes: a sample a task, or (as in its migration guide) `whole_batches`, a batch a task."""
    from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper

    sampler = _sampler(dataset, shuffle)
    if whole_batches:
        indices = SamplerWrapper(BatchSampler(sampler, batch_size, drop_last=False))
        batches = ParallelMapper(
            indices,
            lambda batch: collate_fn([dataset[index] for index in batch]),
            num_workers=num_workers,
            method="thread",
            in_order=True,
        )
        return Loader(Prefetcher(batches, prefetch_factor=2 * num_workers))
    samples = ParallelMapper(
        SamplerWrapper(sampler), dataset.__getitem__, num_workers=num_workers, method="thread", in_order=True
    )
    return Loader(Mapper(Batcher(samples, batch_size, drop_last=False), collate_fn))


def _sampler(dataset: Any, shuffle: bool) -> RandomSampler | SequentialSampler:
    return RandomSampler(dataset) if shuffle else SequentialSampler(dataset)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table: a loader, its threads or processes, its own options, and what it imports."""

    key: str
    label: str
    package: str
    adapter: Callable[..., Iterable[Any]]
    num_workers: int
    options: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    needs_cuda: bool = False

    def why_skipped(self) -> str | None:
        """The reason why it cannot run here; None if it can."""
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.needs_cuda and not torch.cuda.is_available():
            return "this machine has no CUDA device"
        return None

    def for_all_counts(self) -> Entry:
        """A row for a case that tries several numbers of workers in one process, by `with_workers`."""
        return replace(self, key=self.key.rpartition("-")[0], label=self.label.rpartition(",")[0])

    def with_workers(self, num_workers: int) -> Entry:
        return replace(self, num_workers=num_workers)

    def build(self, dataset: Any, batch_size: int, **common: Any) -> Any:
        """The loader, not yet iterated. `common`: `shuffle`, `collate_fn`."""
        return self.adapter(dataset, batch_size, self.num_workers, **common, **self.options)


def dataloader(num_workers: int) -> Entry:
    label = f"DataLoader, {num_workers} {'worker' if num_workers == 1 else 'workers'}"
    return Entry(f"dataloader-{num_workers}", label, "torch", torch_dataloader, num_workers)


def stageloader(num_workers: int, *, in_order: bool = True) -> Entry:
    key, order = ("stageloader", "") if in_order else ("stageloader-unordered", ", `in_order=False`")
    label = f"**StageLoader**{order}, {_threads(num_workers)}"
    options = {"in_order": in_order}
    return Entry(f"{key}-{num_workers}", label, "torchstage", stage_loader, num_workers, options, ("torchstage",))


def elastic_stageloader(num_workers: int) -> Entry:
    label = f"**StageLoader** with ElasticSampler, {_threads(num_workers)}"
    return Entry(
        f"stageloader-elastic-{num_workers}",
        label,
        "torchstage",
        elastic_stage_loader,
        num_workers,
        {},
        ("torchstage.samplers",),
    )


def stateful_dataloader(num_workers: int) -> Entry:
    label = f"StatefulDataLoader, {num_workers} {'worker' if num_workers == 1 else 'workers'}"
    return Entry(
        f"stateful-{num_workers}",
        label,
        "torchdata",
        torchdata_stateful,
        num_workers,
        {},
        ("torchdata.stateful_dataloader",),
    )


def spdl(num_workers: int, output_order: str) -> Entry:
    label = f"SPDL, {output_order} order, {_threads(num_workers)}"
    options = {"output_order": output_order}
    return Entry(
        f"spdl-{output_order}-{num_workers}",
        label,
        "spdl",
        spdl_pipeline,
        num_workers,
        options,
        ("spdl.pipeline",),
    )


def grain(num_workers: int) -> Entry:
    label = f"Grain, {_threads(num_workers)}"
    return Entry(f"grain-{num_workers}", label, "grain", grain_dataset, num_workers, {}, ("grain.python",))


def nodes(num_workers: int, *, whole_batches: bool = False) -> Entry:
    key, task = ("nodes-batches", "a batch a task") if whole_batches else ("nodes", "a sample a task")
    label = f"torchdata.nodes, {task}, {_threads(num_workers)}"
    options = {"whole_batches": whole_batches}
    return Entry(
        f"{key}-{num_workers}",
        label,
        "torchdata",
        torchdata_nodes,
        num_workers,
        options,
        ("torchdata.nodes",),
    )


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
