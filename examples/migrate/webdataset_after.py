"""The same shards with StageLoader, in two ways: indexed, or as a stream that WebDataset reads."""

import io
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import made
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import v2

from torchstage import Stage, StageLoader
from torchstage.samplers import ElasticSampler

PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


# ---------------------------------------------------------------- indexed: any sample at any time


class Place(NamedTuple):
    shard: int
    offset: int
    num_bytes: int


class Shards(Dataset):
    """Tar shards on a local disk. Where each member lies is looked up once, from the headers alone."""

    def __init__(self, paths: list[str]) -> None:
        self.samples: list[tuple[str, dict[str, Place]]] = []
        for shard, path in enumerate(paths):
            members: dict[str, dict[str, Place]] = {}
            with tarfile.open(path, "r:") as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    folder, slash, name = member.name.rpartition("/")
                    stem, _, field = name.partition(".")
                    places = members.setdefault(folder + slash + stem, {})
                    places[field] = Place(shard, member.offset_data, member.size)
            self.samples += members.items()
        self.files = [Path(path).open("rb") for path in paths]  # noqa: SIM115 - see close

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[bytes, bytes, str]:
        key, places = self.samples[index]
        return self.read(places["jpg"]), self.read(places["cls"]), key

    def read(self, place: Place) -> bytes:
        file = self.files[place.shard]  # each thread has files of its own
        file.seek(place.offset)
        return file.read(place.num_bytes)

    def close(self) -> None:
        for file in self.files:
            file.close()


def decode(sample: tuple[bytes, bytes, str]) -> tuple[Image.Image, int, str]:
    data, label, key = sample
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB"), int(label), key


def transform(sample: tuple[Image.Image, int, str]) -> tuple[torch.Tensor, int, str]:
    image, label, key = sample
    return PLAIN(image), label, key


def collate(samples: list[tuple[torch.Tensor, int, str]]) -> list[Any]:
    images, labels, keys = zip(*samples, strict=True)
    return [torch.stack(images), torch.tensor(labels), list(keys)]


STAGES = [Stage(decode), Stage(transform)]


def make_loader(rank: int = 0, num_ranks: int = 1, num_workers: int = 2) -> StageLoader:
    dataset = Shards(made.shards())
    sampler = ElasticSampler(dataset, num_ranks, rank, seed=7)
    return StageLoader(dataset, 8, sampler=sampler, num_workers=num_workers, stages=STAGES, collate_fn=collate)


# ---------------------------------------------------------------- as a stream: WebDataset reads, in lanes


def make_stream_loader(**arguments: Any) -> StageLoader:
    import webdataset as wds

    dataset = (
        wds.WebDataset(made.shards(), shardshuffle=100, detshuffle=True, seed=7, nodesplitter=wds.split_by_node)
        .shuffle(16, seed=7)
        .to_tuple("jpg", "cls", "__key__")
    )
    return StageLoader(dataset, **{"batch_size": 8, "num_workers": 2, **arguments}, stages=STAGES, collate_fn=collate)


def main() -> None:
    loader = make_loader()
    with closing(loader.dataset):
        batches = list(loader)
    keys = [key for _, _, keys in batches for key in keys]
    print(f"indexed: {len(batches)} batches, {len(set(keys))} photographs, {keys[0]} first")
    batches = list(make_stream_loader())
    keys = [key for _, _, keys in batches for key in keys]
    print(f"as a stream: {len(batches)} batches, {len(set(keys))} photographs, {keys[0]} first")


if __name__ == "__main__":
    main()
