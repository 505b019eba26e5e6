"""Training data that can be resumed, with torchdata's StatefulDataLoader: photographs, and text as a stream."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made
import torch
from PIL import Image
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.transforms import v2


class Photographs(Dataset):
    def __init__(self, folder: Path, transform: v2.Transform) -> None:
        self.paths = sorted(path for path in folder.iterdir() if path.name != "rocket-03.jpg")  # known to be broken
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            return self.transform(image.convert("RGB")), made.class_number(path.name)


class Lines(IterableDataset):
    """The bytes of each line that is long enough; each worker reads some of the files, and knows where it is."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.num_read = self.start = 0  # lines of this worker

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        lines = [line for path in paths for line in Path(path).read_bytes().splitlines() if len(line) >= 64]
        self.num_read, self.start = self.start, 0
        while self.num_read < len(lines):
            self.num_read += 1
            yield torch.frombuffer(bytearray(lines[self.num_read - 1][:64]), dtype=torch.uint8)
        self.num_read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_read = self.start = state["num_read"]


PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
AUGMENTED = v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), *PLAIN.transforms[2:]])


def make_loader(transform: v2.Transform = PLAIN, rank: int = 0, num_ranks: int = 1) -> StatefulDataLoader:
    dataset = Photographs(made.folder(), transform)
    sampler = DistributedSampler(dataset, num_ranks, rank, seed=7)
    return StatefulDataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)


def make_lines_loader() -> StatefulDataLoader:
    return StatefulDataLoader(Lines(made.texts()), batch_size=32, num_workers=2, snapshot_every_n_steps=1)


def cut_and_resumed(make: Any, num_batches: int) -> tuple[list[Any], list[Any]]:
    """The batches of an epoch, and those of one that ended after some, with what another run then got."""
    whole = list(make())
    loader = make()
    cut = []
    for batch in loader:
        cut.append(batch)
        if len(cut) == num_batches:
            state = loader.state_dict()
            break
    loader = make()
    loader.load_state_dict(state)
    return whole, cut + list(loader)


def main() -> None:
    whole, resumed = cut_and_resumed(make_loader, 2)
    is_same = all(torch.equal(images, again) for (images, _), (again, _) in zip(whole, resumed, strict=True))
    print(f"{len(whole)} batches of photographs, the same after a resume: {'yes' if is_same else 'no'}")
    whole, resumed = cut_and_resumed(make_lines_loader, 3)
    is_same = all(map(torch.equal, whole, resumed)) and len(whole) == len(resumed)
    print(f"{len(whole)} batches of lines, the same after a resume: {'yes' if is_same else 'no'}")


if __name__ == "__main__":
    main()
