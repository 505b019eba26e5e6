"""Errors say where: the stage, the dataset index, the file; and keep nothing alive that nobody needs."""

import dataclasses
import gc
import weakref
from contextlib import suppress

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from raising import Raising, closed_loader_of
from torch.utils.data import Dataset, Subset

from torchstage.errors import file_of

PATIENCE_SECONDS = 20.0

loader_of = closed_loader_of  # the fixture


@pytest.fixture(params=[0, 1, 2])
def num_workers(request):
    return request.param


def notes_of(loader) -> list[str]:
    with pytest.raises(ArithmeticError) as caught:
        for _ in loader:
            pass
    return caught.value.__notes__


def fail(*arguments):
    raise ArithmeticError


class Whole(Raising):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_each_stage_is_named(num_workers, loader_of):
    broken = Raising({6: ArithmeticError()})
    assert notes_of(loader_of(broken, num_workers)) == ["torchstage: raised in stage 'fetch', dataset index 6, batch 1"]
    assert notes_of(loader_of(range(8), num_workers, collate_fn=fail)) == [
        "torchstage: raised in stage 'collate', batch 0"
    ]


def test_an_index_may_be_anything(num_workers, loader_of):
    names = Raising({"b": ArithmeticError()})
    assert notes_of(loader_of(names, num_workers, sampler=["a", "b"], collate_fn=list)) == [
        "torchstage: raised in stage 'fetch', dataset index 'b', batch 0"
    ]


def test_a_batch_that_is_taken_whole_is_named_whole(num_workers, loader_of):
    broken = Whole({6: ArithmeticError()})
    assert notes_of(loader_of(broken, num_workers)) == [
        "torchstage: raised in stage 'fetch', dataset index [4, 5, 6, 7], batch 1"
    ]


def test_without_batching_a_sample_is_named(num_workers, loader_of):
    broken = Raising({6: ArithmeticError()})
    assert notes_of(loader_of(broken, num_workers, batch_size=None)) == [
        "torchstage: raised in stage 'fetch', dataset index 6, batch 6"
    ]


def test_worker_init_fn_is_named(loader_of):
    assert notes_of(loader_of(range(8), worker_init_fn=fail)) == ["torchstage: raised in worker_init_fn(0)"]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_pinning_is_named(num_workers, loader_of):
    loader = loader_of(range(8), num_workers)
    iterator = iter(loader)
    pin = lambda batch, indices: fail()  # noqa: E731  # there is no accelerator to do it
    iterator._recipe = dataclasses.replace(iterator._recipe, pin=pin)
    assert notes_of(iterator) == ["torchstage: raised in stage 'pin_memory', batch 0"]


@pytest.fixture
def images(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        PIL.Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "cat" / "2.png").write_bytes(b"no image")
    return torchvision.datasets.ImageFolder(tmp_path, torchvision.transforms.ToTensor())


@pytest.mark.parametrize(
    ("part", "index"),
    [
        (lambda images: images, 1),
        pytest.param(lambda images: Subset(images, [2, 1]), 1),
        pytest.param(lambda images: Subset(Subset(images, [2, 1]), [1]), 0),
    ],
    ids=["folder", "subset", "subset of a subset"],
)
def test_the_file_of_an_image_is_named(part, index, images, num_workers, loader_of):
    with pytest.raises(PIL.UnidentifiedImageError) as caught:
        list(loader_of(part(images), num_workers, batch_size=1))
    assert caught.value.__notes__[-1].endswith(f"dataset index {index} ({images.samples[1][0]}), batch {index}")


@pytest.mark.parametrize(
    ("part", "index"),
    [
        (lambda images: images, 1),
        (lambda images: Subset(images, [2, 1]), 1),
        (lambda images: Subset(Subset(images, [2, 1]), [1]), 0),
        (lambda images: Subset(images, range(1, 3)), 0),
        pytest.param(lambda images: Subset(images, np.array([2, 1])), 1),
        pytest.param(lambda images: Subset(images, torch.tensor([2, 1])), 1),
    ],
    ids=["folder", "subset", "subset of a subset", "range", "array", "tensor"],
)
def test_without_batching_the_file_of_an_image_is_named(part, index, images, loader_of):
    with pytest.raises(PIL.UnidentifiedImageError) as caught:
        list(loader_of(part(images), batch_size=None))
    assert caught.value.__notes__[-1].endswith(f"dataset index {index} ({images.samples[1][0]}), batch {index}")


@pytest.mark.parametrize(
    "dataset",
    [
        range(3),
        Raising({}),
        Subset(range(3), [0]),
        type("Odd", (), {"samples": 5})(),
        type("Odd", (), {"samples": [object()]})(),
        type("Odd", (), {"samples": [()]})(),
        type("Odd", (), {"samples": []})(),
        type("Odd", (), {"samples": [(7, "label")]})(),
        type("Odd", (), {"indices": {}, "dataset": range(3)})(),
    ],
)
def test_where_no_file_can_be_told_none_is(dataset):
    assert file_of(dataset, 0) is None


def test_a_dataset_that_cannot_tell_its_files_does_not_hide_the_error(num_workers, loader_of):
    class Remote(Raising):
        @property
        def samples(self):
            raise ConnectionError("the index is not here")

    with pytest.raises(ValueError, match="mine"):
        next(iter(loader_of(Remote({2: ValueError("mine")}), num_workers)))


# What it keeps alive ---------------------------------------------------------------------------------------


class Value:
    """Something that can be referenced weakly."""


@pytest.mark.parametrize("place", ["fetch", "collate"])
def test_an_error_that_is_dropped_keeps_no_sample_alive(place, num_workers, loader_of):
    """Samples may be large: they must not wait for the collector."""
    values = []

    class Mixed(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if place == "fetch" and index == 2:
                raise ArithmeticError
            value = Value()
            values.append(weakref.ref(value))
            return value

    def collate(samples):
        if place == "collate":
            raise ArithmeticError
        return len(samples)

    gc.disable()
    try:
        iterator = iter(loader_of(Mixed(), num_workers, collate_fn=collate))
        for _ in range(2):
            with suppress(ArithmeticError):
                next(iterator)
        del iterator
        assert [value() for value in values if value() is not None] == []
    finally:
        gc.enable()


def test_an_error_that_is_kept_does_not_keep_later_batches_alive(loader_of):
    tensors = []

    def collate(samples):
        tensors.append(weakref.ref(tensor := torch.tensor(samples)))
        return tensor

    iterator = iter(loader_of(Raising({2: ValueError("kept")}), collate_fn=collate))
    with pytest.raises(ValueError, match="kept") as kept:
        next(iterator)
    for _ in range(2):
        next(iterator)
    assert tensors[0]() is None
    assert kept.value is not None
