"""Pictures: a number in, a small JPEG file of it out; datasets that decode them and transform them at random."""

import io
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torchvision.transforms as v1
from PIL import Image, ImageDraw
from torch.utils.data import Dataset, IterableDataset
from torchvision.transforms import v2

SIDE = 24


@lru_cache
def jpeg(number: int) -> bytes:
    """No two are alike, nor two corners of one."""
    picture = Image.linear_gradient("L").resize((SIDE + 8, SIDE)).convert("RGB")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((number % 11, number % 7, 12 + number % 13, 18), fill=(number * 37 % 256, 200, number * 91 % 256))
    draw.rectangle((20, 2 + number % 9, 28, 14), fill=(255, number * 53 % 256, 30))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    return file.getvalue()


def with_v1() -> Callable[[Any], torch.Tensor]:
    return v1.Compose(
        [
            v1.RandomResizedCrop(16),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v1.RandomApply([v1.GaussianBlur(3)]),
            v1.RandomChoice([v1.RandomRotation(40), v1.RandomInvert(), v1.RandomSolarize(100)]),  # Python's random
            v1.ToTensor(),
            v1.RandomErasing(value="random"),
        ]
    )


def with_v2() -> Callable[[Any], torch.Tensor]:
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.RandomApply([v2.GaussianBlur(3)]),
            v2.RandomChoice([v2.RandomRotation(40), v2.RandomInvert(), v2.RandomSolarize(100)]),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomErasing(value="random"),
        ]
    )


def with_v2_on_pictures() -> Callable[[Any], torch.Tensor]:
    return v2.Compose(
        [v2.RandomResizedCrop(16), v2.RandAugment(), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )


TRANSFORMS = {"v1": with_v1, "v2": with_v2, "v2 on pictures": with_v2_on_pictures}


class Pictures(Dataset[Any]):
    """(index, pixels): what torchvision's folders do, from memory."""

    def __init__(self, length: int, transform: Callable[[Any], torch.Tensor]) -> None:
        self.length = length
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with Image.open(io.BytesIO(jpeg(index))) as picture:
            return index, self.transform(picture.convert("RGB"))


class Stream(IterableDataset[Any]):
    """The same, one after another; with a state of its own."""

    def __init__(self, length: int, transform: Callable[[Any], torch.Tensor]) -> None:
        self.pictures = Pictures(length, transform)
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.pictures):
            self.position += 1
            yield self.pictures[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Mixed:
    """What torchvision shows for MixUp and CutMix: a ``collate_fn`` that mixes the samples of a batch."""

    def __init__(self, num_classes: int) -> None:
        self.mix = v2.RandomChoice([v2.MixUp(num_classes=num_classes), v2.CutMix(num_classes=num_classes)])

    def __call__(self, samples: list[Any]) -> Any:
        labels, pixels = torch.utils.data.default_collate(samples)
        mixed, shares = self.mix(pixels, labels)
        return labels, torch.cat([mixed.flatten(1), shares.flatten(1)], 1)
