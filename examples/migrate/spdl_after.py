"""The same with StageLoader: read by coroutines, decoded in threads, batched. One of the files is broken."""

import asyncio
import io
import warnings
from collections.abc import Iterable
from pathlib import Path

import made
import torch
from PIL import Image
from torchvision.transforms import v2

from torchstage import StagedDataset, StageLoader
from torchstage.samplers import ElasticSampler

Batch = tuple[torch.Tensor, torch.Tensor, list[str]]


class Photographs(StagedDataset):
    """The stages, as methods."""

    def __init__(self, paths: list[Path], transform: v2.Transform) -> None:
        self.samples = [(str(path), made.class_number(path.name)) for path in paths]  # so that reports name the file
        self.apply = transform

    def __len__(self) -> int:
        return len(self.samples)

    async def fetch(self, index: int) -> tuple[str, bytes]:
        path = Path(self.samples[index][0])
        return path.name, await asyncio.to_thread(path.read_bytes)

    def decode(self, item: tuple[str, bytes]) -> tuple[str, Image.Image]:
        name, data = item
        with Image.open(io.BytesIO(data)) as image:
            return name, image.convert("RGB")

    def transform(self, item: tuple[str, Image.Image]) -> tuple[torch.Tensor, int, str]:
        name, image = item
        return self.apply(image), made.class_number(name), name


def collate(samples: list[tuple[torch.Tensor, int, str]]) -> Batch:
    images, labels, names = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels), list(names)


PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def make_loader(
    transform: v2.Transform = PLAIN, rank: int = 0, num_ranks: int = 1, order: Iterable[int] | None = None
) -> StageLoader:
    dataset = Photographs(sorted(made.folder().iterdir()), transform)
    if order is None:
        order = ElasticSampler(dataset, num_ranks, rank, seed=7, tail="drop")
    return StageLoader(
        dataset,
        batch_size=8,
        sampler=order,
        num_workers=2,
        collate_fn=collate,
        on_error="skip",
        max_bad_samples=4,
    )


def main() -> None:
    warnings.filterwarnings("ignore", "StageLoader: 1 bad sample")  # said below
    loader = make_loader()
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches = list(loader)
        names = [name for _, _, names in batches for name in names]
        print(f"epoch {epoch}: {len(batches)} batches, {len(names)} photographs, {names[0]} first")
    print(f"left out: {loader.stats().bad[-1]}")


if __name__ == "__main__":
    main()
