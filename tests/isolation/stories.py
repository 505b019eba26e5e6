"""Stories: a dataset, the right value of each of its samples, and what threads see of it.

Datasets that need a private copy for each thread are in breaking.py, those that all threads may share in shared.py.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from torch.utils.data import Dataset, get_worker_info

from torchstage import StageLoader

NUM_SAMPLES = 48
BATCH_SIZE = 2
NUM_THREADS = 4
PATIENCE_SECONDS = 8.0
NUM_ROUNDS = 10  # epochs in which a race that cannot be forced may show
PAUSE_SECONDS = 0.00005

Way = Literal["copies", "serial", "either"]


def pause() -> None:
    """Give the GIL away in the middle of something that is not atomic: where it can go wrong, it does."""
    time.sleep(PAUSE_SECONDS)


class Numbered(Dataset):
    """``NUM_SAMPLES`` samples; ``close`` ends what it holds."""

    def __len__(self):
        return NUM_SAMPLES

    def close(self):
        pass


def as_list(samples):
    return list(samples)


@dataclass(frozen=True, slots=True)
class Case:
    """What a loader is given."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] = as_list

    def loader(self, **arguments: Any) -> StageLoader:
        own = {"batch_size": BATCH_SIZE, "num_workers": NUM_THREADS, "collate_fn": self.collate_fn}
        return StageLoader(self.dataset, **{"worker_method": "thread", **own, **arguments})


@dataclass(frozen=True, slots=True)
class Story:
    """``opened(folder)`` makes files there and gives a case; ``right(index)`` needs neither.

    ``suspect``: words of the attribute that is to be named; ``way``: what isolation="auto" does about it.
    """

    opened: Callable[[Path], AbstractContextManager[Case]]
    right: Callable[[int], Any]
    suspect: str = ""
    way: Way = "copies"
    may_crash: bool = False  # shared by threads, it may end the process

    def all_right(self) -> list[Any]:
        return [self.right(index) for index in range(NUM_SAMPLES)]


def story(right: Callable[[int], Any], suspect: str = "", way: Way = "copies", may_crash: bool = False) -> Any:
    """Make a story of a function that makes a dataset, or a case, in a folder."""

    def told(build: Callable[[Path], Any]) -> Story:
        @contextmanager
        def opened(folder: Path) -> Iterator[Case]:
            built = build(folder)
            case = built if isinstance(built, Case) else Case(built)
            try:
                yield case
            finally:
                innermost(case.dataset).close()

        return Story(opened, right, suspect, way, may_crash)

    return told


def innermost(dataset: Any) -> Any:
    """The dataset behind subsets and the last part of a concatenation."""
    while not hasattr(dataset, "close"):
        dataset = dataset.datasets[-1] if hasattr(dataset, "datasets") else dataset.dataset
    return dataset


def values_of(loader: StageLoader) -> list[Any]:
    """The samples of one epoch; in the place of those of a batch that failed, its error."""
    values: list[Any] = []
    iterator = iter(loader)
    while len(values) <= 2 * NUM_SAMPLES:  # an iterator that is closed raises without an end
        try:
            values += next(iterator)
        except StopIteration:
            return values
        except Exception as error:
            values += [f"{type(error).__name__}: {error}"] * BATCH_SIZE
    return values


def breaks(told: Story, case: Case, num_rounds: int = NUM_ROUNDS) -> bool:
    """Whether a sample is wrong, or fails, when eight threads share the dataset."""
    loader = case.loader(isolation="shared", num_workers=8)
    return any(values_of(loader) != told.all_right() for _ in range(num_rounds))


@contextmanager
def caught_warnings() -> Iterator[list[str]]:
    """The messages of user warnings of the block."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield messages
    messages += [str(warning.message) for warning in caught]


class Inside:
    """Who was inside at once. Holds nothing that a search for changing state could mistake for the dataset's own."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.arrivals: SimpleQueue[str] = SimpleQueue()
        self.departures: SimpleQueue[None] = SimpleQueue()
        self.steps: SimpleQueue[int] = SimpleQueue()  # +1: somebody went in, -1: out
        self.thread = threading.local()

    def meet(self) -> None:
        """Wait, at a thread's first call, until ``num_threads`` threads are inside."""
        if hasattr(self.thread, "was_here"):
            return
        self.thread.was_here = True
        self.arrivals.put(threading.current_thread().name)
        if self.arrivals.qsize() >= self.num_threads:
            for _ in range(self.num_threads):
                self.departures.put(None)
        self.departures.get(timeout=PATIENCE_SECONDS)  # queue.Empty: the others did not come

    def most_at_once(self) -> int:
        num_inside = most = 0
        while not self.steps.empty():
            num_inside += self.steps.get()
            most = max(most, num_inside)
        return most


class Watched(Dataset):
    """A dataset, and who is inside it at once. Its later samples need all threads, each for the first time."""

    def __init__(self, inner: Any, num_threads: int) -> None:
        self.inner = inner
        self.inside = Inside(num_threads)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        self.inside.steps.put(1)
        try:
            if index >= NUM_SAMPLES // 4 and self.inside.num_threads > 1:
                self.inside.meet()
            return self.inner[index]
        finally:
            self.inside.steps.put(-1)


class WatchedBatches(Watched):
    """The same for a dataset that takes whole batches."""

    def __getitems__(self, indices):
        if indices[0] >= NUM_SAMPLES // 4:
            self.inside.meet()
        return self.inner.__getitems__(indices)


def with_info(samples):
    """A collate function: the samples, and the worker info of the thread."""
    return samples, get_worker_info()


def seen_datasets(loader: StageLoader) -> list[Any]:
    """What worker info said was the dataset, batch by batch, and which thread said so."""
    seen = [(info.id, info.dataset) for _, info in loader]
    assert seen, "no batch came"
    return seen
