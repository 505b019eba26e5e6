"""Lanes of data pipes and of Hugging Face's iterable datasets: what DataLoader's workers give, draws and shards too."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.compare import assert_same
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchstage import StageLoader
from torchstage.iterators import ThreadedIterator
from torchstage.lanes import LaneIterator

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # torch's own workers
]


def assert_same_epochs(dataset: Any, num_epochs: int = 3, **arguments: Any) -> None:
    """The dataset gives the same batches in lanes as in DataLoader's workers, for several epochs."""

    def epochs(loader_class: type[DataLoader]) -> Any:
        torch.manual_seed(11)
        loader = loader_class(dataset, **arguments)
        batches = []
        for _ in range(num_epochs):
            iterator = iter(loader)
            assert loader_class is DataLoader or type(iterator) is LaneIterator
            batches.append(list(iterator))
        loader._iterator = None
        return batches, float(torch.rand(()))

    assert_same(epochs(StageLoader), epochs(DataLoader), str(arguments))


# Data pipes -------------------------------------------------------------------------------------------------


def pipe_of(num_samples: int) -> Any:
    return IterableWrapper(range(num_samples)).shuffle().sharding_filter().map(lambda number: 10 * number)


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_shuffled_and_sharded_pipe(num_workers: int, persistent_workers: bool) -> None:
    for shuffle in (None, True, False):
        arguments = {"num_workers": num_workers, "persistent_workers": persistent_workers, "shuffle": shuffle}
        assert_same_epochs(pipe_of(20), batch_size=4, **arguments)


def test_a_pipe_that_does_not_shard_is_read_by_each_lane() -> None:
    assert_same_epochs(IterableWrapper(range(5)).batch(2), batch_size=None, num_workers=2)


class Drawing(IterDataPipe):
    """A pipe of the user's that draws."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.rand(()) for _ in range(4))


def test_a_pipe_draws_as_in_its_worker() -> None:
    assert_same_epochs(Drawing().map(lambda value: value + torch.rand(())), batch_size=2, num_workers=2)


def test_a_pipe_inline_is_torch_s_own() -> None:
    for loader_class in (StageLoader, DataLoader):
        torch.manual_seed(1)
        assert sorted(torch.cat([*loader_class(pipe_of(7), batch_size=3)]).tolist()) == [*range(0, 70, 10)]


class Squares(MapDataPipe):
    def __init__(self) -> None:
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.threads.add(threading.current_thread().name.rpartition("-")[0])
        return index**2


def test_a_map_pipe_is_a_map_style_dataset() -> None:
    pipe = Squares()
    loader = StageLoader(pipe.map(str), batch_size=4, num_workers=2, isolation="shared")
    assert type(iter(loader)) is ThreadedIterator
    assert list(loader) == list(DataLoader(pipe.map(str), batch_size=4))
    assert "torchstage-fetch" in pipe.threads


# Hugging Face datasets --------------------------------------------------------------------------------------


def numbers(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for number in range(5):
            yield {"number": 10 * shard + number, "word": f"w{number}"}


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets")


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_each_lane_of_a_streamed_dataset_reads_its_shards(datasets: Any, num_workers: int) -> None:
    dataset = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [*range(6)]})
    assert_same_epochs(dataset, batch_size=4, num_workers=num_workers, num_epochs=2)
    assert_same_epochs(dataset.shuffle(seed=3, buffer_size=10), batch_size=4, num_workers=num_workers, num_epochs=2)


def test_mapped_filtered_and_formatted_streams(datasets: Any) -> None:
    dataset = datasets.Dataset.from_dict({"number": [*range(20)]}).to_iterable_dataset(num_shards=4)
    doubled = dataset.map(lambda row: {"twice": 2 * row["number"]}).filter(lambda row: row["number"] % 3 > 0)
    assert_same_epochs(doubled, batch_size=3, num_workers=2, num_epochs=2)
    assert_same_epochs(doubled.with_format("torch"), batch_size=3, num_workers=2, num_epochs=2)
    assert_same_epochs(doubled.take(7), batch_size=3, num_workers=2, num_epochs=2)


def test_kept_lanes_see_the_epoch_that_is_set(datasets: Any) -> None:
    """The package keeps it in shared memory for the sake of kept workers: so the lanes' copies share it, too."""

    def epochs(loader_class: type[DataLoader]) -> Any:
        dataset = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [*range(4)]})
        dataset = dataset.shuffle(seed=3, buffer_size=10)
        loader = loader_class(dataset, batch_size=None, num_workers=2, persistent_workers=True)
        read = []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            read.append([row["number"] for row in loader])
        loader._iterator = None
        return read

    ours = epochs(StageLoader)
    assert ours == epochs(DataLoader)
    assert ours[0] != ours[1]


def test_one_lane_reads_all_shards(datasets: Any) -> None:
    dataset = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [*range(3)]})
    loader = StageLoader(dataset, batch_size=4, num_workers=4, lanes=1)
    assert [row for batch in loader for row in batch["number"].tolist()] == [row["number"] for row in dataset]
