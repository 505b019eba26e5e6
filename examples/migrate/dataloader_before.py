"""Training data with DataLoader: photographs in one archive, and text as a stream."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import made
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info
from torchvision.transforms import v2


class Photographs(Dataset):
    """JPEG files in one zip archive, which each worker opens for itself."""

    def __init__(self, path: Path, transform: v2.Transform) -> None:
        self.path = path
        self.transform = transform
        self.archive: zipfile.ZipFile | None = None
        with zipfile.ZipFile(path) as archive:
            self.names = sorted(archive.namelist())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.archive is None:
            self.archive = zipfile.ZipFile(self.path)
        name = self.names[index]
        with Image.open(io.BytesIO(self.archive.read(name))) as image:
            return self.transform(image.convert("RGB")), made.class_number(name)


class Lines(IterableDataset):
    """The bytes of each line that is long enough; each worker reads some of the files. A seventh is masked."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in paths:
            for line in Path(path).read_bytes().splitlines():
                if len(line) >= 64:
                    tokens = torch.frombuffer(bytearray(line[:64]), dtype=torch.uint8)
                    yield tokens.masked_fill(torch.rand(64) < 1 / 7, 0)


def seed_worker(worker_id: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
AUGMENTED = v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), *PLAIN.transforms[2:]])


def make_loader(transform: v2.Transform = PLAIN, rank: int = 0, num_ranks: int = 1) -> DataLoader:
    dataset = Photographs(made.archive(), transform)
    return DataLoader(
        dataset,
        batch_size=8,
        sampler=DistributedSampler(dataset, num_ranks, rank, seed=7),
        num_workers=2,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
        worker_init_fn=seed_worker,
        persistent_workers=True,
    )


def make_lines_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(7)
    return DataLoader(Lines(made.texts()), batch_size=32, num_workers=2, generator=generator)


def main() -> None:
    loader = make_loader(AUGMENTED)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches = list(loader)
        mean = torch.cat([images for images, _ in batches]).mean()
        print(f"epoch {epoch}: {len(batches)} batches of photographs, mean {mean:.2f}")
    lines = list(make_lines_loader())
    print(f"{len(lines)} batches of lines, the last {tuple(lines[-1].shape)}")


if __name__ == "__main__":
    main()
