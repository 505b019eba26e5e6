"""Photographs with SPDL: read by coroutines, decoded in threads, batched. One of the files is broken."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import made
import torch
from PIL import Image
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler
from torchvision.transforms import v2

Batch = tuple[torch.Tensor, torch.Tensor, list[str]]


class Read:
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    async def __call__(self, index: int) -> tuple[str, bytes]:
        path = self.paths[index]
        return path.name, await asyncio.to_thread(path.read_bytes)


def decode(item: tuple[str, bytes]) -> tuple[str, Image.Image]:
    name, data = item
    with Image.open(io.BytesIO(data)) as image:
        return name, image.convert("RGB")


class Transform:
    def __init__(self, transform: v2.Transform) -> None:
        self.transform = transform

    def __call__(self, item: tuple[str, Image.Image]) -> tuple[torch.Tensor, int, str]:
        name, image = item
        return self.transform(image), made.class_number(name), name


def collate(samples: list[tuple[torch.Tensor, int, str]]) -> Batch:
    images, labels, names = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels), list(names)


PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


class Loader:
    """Builds the pipeline anew for each epoch, in the order of that epoch."""

    def __init__(self, transform: v2.Transform, rank: int, num_ranks: int) -> None:
        self.paths = sorted(made.folder().iterdir())
        self.transform = transform
        self.sampler = DistributedRandomSampler(len(self.paths), rank=rank, world_size=num_ranks)
        self.epoch = 0

    def __iter__(self) -> Iterator[Batch]:
        self.sampler.shuffle(seed=self.epoch)
        self.epoch += 1
        pipeline = (
            PipelineBuilder()
            .add_source(self.sampler)
            .pipe(Read(self.paths), concurrency=16, output_order="input")
            .pipe(decode, concurrency=2, output_order="input")
            .pipe(Transform(self.transform), concurrency=2, output_order="input")
            .aggregate(8)
            .pipe(collate)
            .add_sink(4)
            .build(num_threads=4, max_failures=4)
        )
        with pipeline.auto_stop():
            yield from pipeline


def make_loader(transform: v2.Transform = PLAIN, rank: int = 0, num_ranks: int = 1) -> Loader:
    return Loader(transform, rank, num_ranks)


def main() -> None:
    loader = make_loader()
    for epoch in range(2):
        batches = list(loader)
        names = [name for _, _, names in batches for name in names]
        print(f"epoch {epoch}: {len(batches)} batches, {len(names)} photographs, {names[0]} first")


if __name__ == "__main__":
    main()
