"""Shards: the same pictures as small files and in tar files, on disk, none of their bytes in memory, in.

Before each epoch the system is told to forget the files' bytes. Decoding is made cheap (a draft of an eighth), so that
reading has its say. What a disk does is the machine's: compare rows, not machines.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, default_collate

from benchmarks.adapters import NUM_BUFFERED_BATCHES
from benchmarks.case import Against, Case, Column, Headline, cells
from benchmarks.cases.kept import kept
from benchmarks.cases.photographs import folder
from benchmarks.loaders import Entry, dataloader, grain, spdl, stageloader
from benchmarks.probes import Metrics, close, train_through

NUM_IMAGES, NUM_IMAGES_QUICK = 512, 128
NUM_SHARDS = 8
NUM_EPOCHS = 2  # after one to warm up
BATCH_SIZE = 32
SIDE = 64
VERSION = 1  # raise it when the files change


class Pictures(Dataset[tuple[Tensor, int]]):
    """A file a sample."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return small(self.files[index].read_bytes()), index


def small(data: bytes) -> Tensor:
    """uint8, 3 x SIDE x SIDE."""
    from torchstage.decode import decode_image

    return decode_image(data, (SIDE, SIDE), draft=True)


def number(data: bytes) -> int:
    return int(bytes(data))


def shards(num_images: int) -> list[Path]:
    """Tar files of the photographs, each with its number beside it."""
    return sorted(kept(f"shards-v{VERSION}-{num_images}", partial(_fill, num_images), "*.tar").glob("*.tar"))


def files(num_images: int) -> list[Path]:
    return sorted(folder(num_images).glob("*/*.jpg"), key=lambda path: path.name)


def _fill(num_images: int, path: Path) -> None:
    pictures = files(num_images)
    for shard in range(NUM_SHARDS):
        with tarfile.open(path / f"{shard:02}.tar", "w") as tar:
            for at in range(shard, num_images, NUM_SHARDS):
                for suffix, data in (("jpg", pictures[at].read_bytes()), ("cls", str(at).encode())):
                    member = tarfile.TarInfo(f"{at:05}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


@dataclass(frozen=True, slots=True)
class ColdEpochs:
    """A loader; before each epoch, the files' bytes leave the page cache."""

    loader: Any
    files: list[Path]

    def __iter__(self) -> Iterator[Any]:
        for path in self.files:
            _forget(path)
        yield from self.loader

    def close(self) -> None:
        close(self.loader)


def _forget(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what has not been written to the disk would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _web_dataset(paths: list[Path]) -> Any:
    import webdataset

    found = webdataset.WebDataset([str(path) for path in paths], shardshuffle=False)
    return found.to_tuple("jpg", "cls").map_tuple(small, number)


def web_loader(paths: list[Path], batch_size: int, num_workers: int) -> Iterable[Any]:
    """WebDataset with its own loader: batches are made in the processes."""
    import webdataset

    batches = _web_dataset(paths).batched(batch_size, collation_fn=default_collate)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=num_workers, persistent_workers=True)


def ours_of_shards(paths: list[Path], batch_size: int, num_workers: int) -> Iterable[Any]:
    """The same WebDataset in lanes."""
    from torchstage import StageLoader

    return StageLoader(_web_dataset(paths), batch_size, num_workers=num_workers, persistent_workers=True)


@dataclass(frozen=True, slots=True)
class SpdlShards:
    """Tar files are opened one after another, their pictures decoded in threads."""

    paths: list[Path]
    batch_size: int
    num_threads: int

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        pipeline = (
            PipelineBuilder()
            .add_source(self._members())
            .pipe(self._decode, concurrency=self.num_threads, output_order="input")
            .aggregate(self.batch_size)
            .pipe(default_collate)
            .add_sink(NUM_BUFFERED_BATCHES)
            .build(num_threads=self.num_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _members(self) -> Iterator[tuple[bytes, bytes]]:
        from spdl.io import iter_tarfile

        for path in self.paths:
            found = iter_tarfile(path.read_bytes())
            for (_, picture), (_, label) in zip(found, found, strict=True):
                yield picture, label

    @staticmethod
    def _decode(sample: tuple[bytes, bytes]) -> tuple[Tensor, int]:
        return small(bytes(sample[0])), number(sample[1])


def run(entry: Entry, quick: bool) -> Metrics:
    num_images = NUM_IMAGES_QUICK if quick else NUM_IMAGES
    is_sharded = entry in SHARDED
    paths = shards(num_images) if is_sharded else files(num_images)
    loader = ColdEpochs(entry.build(paths if is_sharded else Pictures(paths), BATCH_SIZE), paths)
    seen: list[int] = []

    def count(batch: Any) -> int:
        seen.extend(batch[1].tolist())
        return len(batch[1])

    metrics = train_through(loader, NUM_EPOCHS, count, warm_up=True)
    close(loader)
    assert set(seen) == set(range(num_images)), f"{entry.key} lost samples"
    assert metrics["num_samples"] == NUM_EPOCHS * num_images, f"{entry.key} gave samples twice"
    return metrics


WEB = Entry("webdataset-2", "tar files: WebDataset, 2 processes", "webdataset", web_loader, 2, {}, ("webdataset",))
OURS_OF_SHARDS = Entry(
    "stageloader-shards-2",
    "tar files: **StageLoader** of that WebDataset, 2 lanes",
    "webdataset",
    ours_of_shards,
    2,
    {},
    ("webdataset", "torchstage"),
)
SPDL_OF_SHARDS = Entry(
    "spdl-shards-2",
    "tar files: SPDL, input order, 2 threads",
    "spdl",
    SpdlShards,
    2,
    {},
    ("spdl.pipeline", "spdl.io"),
)
SHARDED = (WEB, OURS_OF_SHARDS, SPDL_OF_SHARDS)
DATALOADERS = (dataloader(2), dataloader(4))
OURS = stageloader(4)

CASE = Case(
    name="shards",
    title="Small files and tar files, from disk",
    question=(
        f"{NUM_IMAGES} JPEG files of 500 x 375 pixels, each for itself or in {NUM_SHARDS} tar files, whose bytes the "
        f"system was told to forget before each epoch; decoded by a draft to {SIDE} x {SIDE}, batch {BATCH_SIZE}, in "
        f"the order of their names, one epoch to warm up and {NUM_EPOCHS} that are timed. Rows without `tar files` "
        "read small files."
    ),
    entries=(*DATALOADERS, stageloader(2), OURS, spdl(4, "input"), grain(4), *SHARDED),
    left_out_when_quick=(DATALOADERS[1], stageloader(2)),
    run=run,
    imports=("torchstage.decode", "PIL.Image"),
    columns=(
        Column("samples_per_second", "images/s", 0),
        Column("samples_per_second_after_first", "images/s after the first batch", 0),
        Column("cpu_ms_per_sample", "CPU ms an image", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    against=Against("samples_per_second", DATALOADERS),
    headline=Headline(
        unit="images/s, small files",
        ours=cells("samples_per_second", OURS),
        dataloader=cells("samples_per_second", *DATALOADERS),
        peers=cells("samples_per_second", spdl(4, "input"), grain(4)),
        why=(
            "Reads of small files overlap in threads as in processes. Tar files are read in long pieces by one reader "
            "for each lane, process or pipeline: those rows, WebDataset's own among them, are in docs/benchmarks.md."
        ),
    ),
    minutes=0.7,
)
