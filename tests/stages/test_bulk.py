"""Bulk reads and datasets that are known: a batch is read in one go, its samples are decoded by many threads; and the
batches stay DataLoader's."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset

from tests.parity.compare import assert_same, story
from tests.stages.placing import FUNCTIONS, PATIENCE_SECONDS, Composed, Numbers
from torchstage import Stage, StagedDataset, StageLoader

LENGTH = 21


class Bulk(StagedDataset):
    """Reads a batch at once."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fetch_many(self, indices: Sequence[int]) -> list[int]:
        return [10 * index for index in indices]

    def decode(self, value: int) -> int:
        return value + 1


class AsyncBulk(Bulk):
    async def fetch_many(self, indices: Sequence[int]) -> list[int]:
        return [10 * index for index in indices]


class Getitems(Numbers):
    """As those of the library ``datasets``."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


KNOWN: dict[str, Callable[[], Any]] = {
    "numbers": lambda: Numbers(LENGTH),
    "subset": lambda: Subset(Numbers(40), range(3, 30)),
    "concat": lambda: ConcatDataset([Numbers(5), Numbers(9)]),
    "getitems": lambda: Getitems(LENGTH),
    "subset of getitems": lambda: Subset(Getitems(40), [5, 1, 7, 7, 20]),
    "concat of getitems": lambda: ConcatDataset([Getitems(5), Numbers(9)]),
    "bulk": lambda: Bulk(),
    "async bulk": lambda: AsyncBulk(),
    "subset of bulk": lambda: Subset(Bulk(), range(4, 17)),
}


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("words", ["", "t t", "2 a", "a x", "x 2"])
@pytest.mark.parametrize("name", KNOWN)
def test_the_batches_are_dataloaders(name, words, num_workers, somewhere):
    functions, dataset = FUNCTIONS[: len(words.split())], KNOWN[name]()
    for arguments in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 5, "drop_last": True, "shuffle": True}):
        torch.manual_seed(0)
        expected = list(DataLoader(Composed(dataset, functions), **arguments))
        torch.manual_seed(0)
        stages = somewhere.stages(functions, words)
        with StageLoader(dataset, num_workers=num_workers, stages=stages, **arguments) as loader:
            assert_same(list(loader), expected)


def total(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return tensors[0].sum() + tensors[1]


def stacked(samples: list[Any]) -> list[Any]:
    return samples


TENSORS = TensorDataset(torch.arange(84.0).reshape(21, 4), torch.arange(21))


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("collate_fn", [None, stacked])
@pytest.mark.parametrize("words", ["", "t", "2", "a", "x"])
@pytest.mark.parametrize("dataset", [TENSORS, Subset(TENSORS, range(2, 19)), StackDataset(TENSORS, Numbers(LENGTH))])
def test_tensors(dataset, words, collate_fn, num_workers, somewhere):
    first = repr if isinstance(dataset, StackDataset) else total
    functions = [first][: len(words.split())]
    stages = somewhere.stages(functions, words)
    for arguments in ({"batch_size": 4, "shuffle": True}, {"batch_size": None}, {"batch_size": 5, "drop_last": True}):
        torch.manual_seed(0)
        expected = list(DataLoader(Composed(dataset, functions), collate_fn=collate_fn, **arguments))
        torch.manual_seed(0)
        with StageLoader(dataset, num_workers=num_workers, stages=stages, collate_fn=collate_fn, **arguments) as loader:
            assert_same(list(loader), expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real JPEGs of two classes."""
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("images")
    for number in range(12):
        (path / ("cat", "dog")[number % 2]).mkdir(exist_ok=True)
        pixels = torch.arange(3 * 32 * 40).add(number * 17).remainder(251).byte().reshape(32, 40, 3).numpy()
        image.fromarray(pixels).save(path / ("cat", "dog")[number % 2] / f"{number}.jpg")
    return path


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("words", ["", "t", "2", "a", "x"])
def test_an_image_folder(words, num_workers, folder, somewhere):
    datasets = pytest.importorskip("torchvision.datasets")
    transforms = pytest.importorskip("torchvision.transforms")
    dataset = datasets.ImageFolder(
        str(folder), transforms.Compose([transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()])
    )
    for part in (dataset, Subset(dataset, [7, 1, 3]), ConcatDataset([dataset, dataset])):
        functions = [negative][: len(words.split())]
        expected = list(DataLoader(Composed(part, functions), 5))
        with StageLoader(part, 5, num_workers=num_workers, stages=somewhere.stages(functions, words)) as loader:
            assert_same(list(loader), expected)


def negative(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return 1 - sample[0], sample[1]


# Bulk reads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_the_samples_of_a_batch_that_was_read_at_once_are_decoded_together(is_async):
    together = threading.Barrier(3)

    class Meets(AsyncBulk if is_async else Bulk):
        def decode(self, value: int) -> int:
            if value >= 300:  # the third batch and those after it: the first samples are made alone
                together.wait(PATIENCE_SECONDS)
            return value

    with StageLoader(Meets(60), 15, num_workers=3, isolation="shared") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(0, 600, 10))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("stages", [[], [Stage(abs)], [Stage(abs, concurrency=1)]])
def test_too_few_values_are_a_clear_error_in_their_place(stages, is_async, num_workers):
    class Short(Bulk):
        def fetch_many(self, indices: Sequence[int]) -> list[int]:
            return super().fetch_many(indices)[: 3 if indices[0] == 8 else None]

    class AsyncShort(Short):
        async def fetch_many(self, indices: Sequence[int]) -> list[int]:
            return super().fetch_many(indices)

    with StageLoader((AsyncShort if is_async else Short)(20), 4, num_workers=num_workers, stages=stages) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [torch.Tensor] * 2 + [ValueError] + [torch.Tensor] * 2
    assert "was given 4 indices and returned 3 values" in str(events[2])
    assert events[2].__notes__[0].startswith("torchstage: raised in stage 'fetch'")
    assert events[2].__notes__[0].endswith("batch 2")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_getitems_that_gives_too_few_is_an_error_where_stages_follow(num_workers):
    class Short(Getitems):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return super().__getitems__(indices)[:-1]

    with StageLoader(Short(8), 4, num_workers=num_workers, stages=[Stage(abs)]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [ValueError] * 2
    assert "3 samples came for 4 indices" in str(events[0])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stages", [[], [Stage(abs)]])
def test_an_error_of_a_bulk_read_fails_its_batch_alone(stages, num_workers):
    class Fails(Bulk):
        def fetch_many(self, indices: Sequence[int]) -> list[int]:
            if 9 in indices:
                raise OSError("the disk is gone")
            return super().fetch_many(indices)

    with StageLoader(Fails(20), 4, num_workers=num_workers, stages=stages) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [torch.Tensor] * 2 + [OSError] + [torch.Tensor] * 2


@pytest.mark.parametrize("words", ["", "t", "2 a"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_empty_batches_of_bulk_reads(num_workers, words, somewhere):
    stages = somewhere.stages([abs, abs], words)
    for dataset in (Bulk(), AsyncBulk(), Getitems(LENGTH)):
        arguments: dict[str, Any] = {"batch_sampler": [[1, 2], [], [3]], "collate_fn": list}
        with StageLoader(dataset, num_workers=num_workers, stages=stages, **arguments) as loader:
            assert_same(list(loader), list(DataLoader(dataset, **arguments)))
