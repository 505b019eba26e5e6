"""Adapters: a map-style dataset in, an iterable of batches out, one function for each library.

Each is set up as that library's own documentation does for several epochs on one machine, with as many
threads (or processes) as `num_workers` says; with a CUDA device, memory is pinned where the library has an
argument for it. Guarantees: `iter()` of what comes back is one epoch, and may
be called again; nothing is imported before it is needed, so that a peer that is not installed costs its
rows, not the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
        pin_memory=torch.cuda.is_available(),
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
        pin_memory=torch.cuda.is_available(),
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
        pin_memory=torch.cuda.is_available(),
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


@dataclass(slots=True)
class SpdlProcessEpochs:
    """SPDL with its batches made in processes, which stay between epochs; each gets the dataset once."""

    dataset: Any
    batches: Iterable[list[int]]
    num_processes: int
    output_order: str
    collate_fn: Collate
    pool: ProcessPoolExecutor | None = None

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        if self.pool is None:
            given = (self.dataset, self.collate_fn)
            self.pool = ProcessPoolExecutor(self.num_processes, initializer=_keep, initargs=given)
            self.pool.submit(int).result()  # where processes are forked, they are now, before SPDL has threads
        pipeline = (
            PipelineBuilder()
            .add_source(self.batches)
            .pipe(_batch, executor=self.pool, concurrency=self.num_processes, output_order=self.output_order)
            .add_sink(NUM_BUFFERED_BATCHES)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


_KEPT: list[Any] = []  # in a process of SpdlProcessEpochs: the dataset and the collate function


def _keep(dataset: Any, collate_fn: Collate) -> None:
    torch.set_num_threads(1)  # as DataLoader does in its workers
    _KEPT[:] = [dataset, collate_fn]


def _batch(indices: list[int]) -> Any:
    dataset, collate_fn = _KEPT
    return collate_fn([dataset[index] for index in indices])


def spdl_processes(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
) -> Iterable[Any]:
    """SPDL with a process pool, in input order: a batch a task, or the way there and back would cost more than it."""
    batches = BatchSampler(_sampler(dataset, shuffle), batch_size, drop_last=False)
    return SpdlProcessEpochs(dataset, batches, num_workers, "input", collate_fn)


@dataclass(slots=True)
class GrainProcessEpochs:
    """Grain's processes go on from epoch to epoch where the dataset repeats itself: so many batches each."""

    repeated: Any
    num_batches: int
    iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.iterator is None:
            self.iterator = iter(self.repeated)
        for _ in range(self.num_batches):
            yield next(self.iterator)

    def close(self) -> None:
        self.iterator = None  # the last reference: its processes end


def grain_processes(
    dataset: Any,
    batch_size: int,
    num_workers: int,
    *,
    shuffle: bool = False,
    collate_fn: Collate = default_collate,
) -> Iterable[Any]:
    """Grain in processes, one thread each; two batches a process are read ahead, as in torch."""
    import grain.python as grain

    source = grain.MapDataset.source(dataset)
    batches = (source.shuffle(seed=0) if shuffle else source).batch(batch_size, batch_fn=collate_fn)
    threads = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    processes = grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2)
    return GrainProcessEpochs(batches.repeat().to_iter_dataset(threads).mp_prefetch(processes), len(batches))


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
