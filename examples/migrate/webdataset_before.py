"""Photographs in tar shards with WebDataset: shards shared among ranks and workers, shuffled, decoded, batched."""

import made
import torch
import webdataset as wds
from PIL import Image
from torchvision.transforms import v2

PLAIN = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def transform(sample: tuple[Image.Image, int, str]) -> tuple[torch.Tensor, int, str]:
    image, label, key = sample
    return PLAIN(image), label, key


def make_loader() -> wds.WebLoader:
    dataset = (
        wds.WebDataset(made.shards(), shardshuffle=100, detshuffle=True, seed=7, nodesplitter=wds.split_by_node)
        .shuffle(16, seed=7)
        .decode("pil")
        .to_tuple("jpg", "cls", "__key__")
        .map(transform)
        .batched(8)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def main() -> None:
    batches = list(make_loader())
    keys = [key for _, _, keys in batches for key in keys]
    print(f"{len(batches)} batches, {len(set(keys))} photographs, {keys[0]} first")


if __name__ == "__main__":
    main()
