"""Isolation between loaders: whoever reaches what cannot be copied takes turns with everyone else who does; whoever has
copies meets nobody."""

import copy
import threading
import time
from contextlib import closing

import pytest
from crowd import ALL, Crowd, Lazy, LazyOfClass, Opened, open_for_good, open_to_copy, record_of, write_records
from torch.utils.data import ConcatDataset, Dataset, Subset

from torchstage import StageLoader, isolation

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. dataset:UserWarning")  # other tests look at it

NUM_SAMPLES = 40


class Reader(Dataset):
    """Holds a file that cannot be copied: from the start, or from its first sample on."""

    file = None

    def __init__(self, path, is_lazy=False):
        self.crowd = Crowd()
        self.path = path
        if not is_lazy:
            self.file = open_for_good(path)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        with self.crowd:
            if self.file is None:
                type(self).file = open_to_copy(self.path)  # everyone's of this class
            time.sleep(0.001)  # long against everything else, so that whoever may come in does
        return index

    def close(self):
        if self.file is not None:
            self.file.close()
        type(self).file = None


@pytest.fixture
def reader_of(tmp_path):
    (tmp_path / "file").touch()
    return lambda is_lazy=False: Reader(tmp_path / "file", is_lazy)


def loader_of(dataset, num_workers=2, **arguments) -> StageLoader:
    return StageLoader(dataset, batch_size=4, num_workers=num_workers, **arguments)


def take_turns(first, second) -> None:
    """A batch from the one, a batch from the other; both read ahead meanwhile."""
    for _ in zip(first, second, strict=True):
        pass


def xfail(reason):
    return pytest.mark.xfail(strict=True, reason=reason)


@pytest.fixture
def no_handle_yet(monkeypatch):
    """As at the start of a program: that other tests' datasets had handles would be noticed."""
    monkeypatch.setattr(isolation, "_serialised", set())


@pytest.mark.parametrize(
    ("num_workers", "other_num_workers"),
    [(2, 2), (1, 1), (2, 0), (0, 2)],
)
def test_loaders_over_parts_of_one_dataset_use_it_in_turn(num_workers, other_num_workers, reader_of, no_handle_yet):
    with closing(reader_of()) as dataset:
        first = loader_of(Subset(dataset, range(0, 40, 2)), num_workers)
        second = loader_of(Subset(dataset, range(1, 40, 2)), other_num_workers)
        take_turns(first, second)
        assert dataset.crowd.most() == 1


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_file_that_was_opened_for_the_first_sample_is_used_in_turn_from_then_on(num_workers, reader_of):
    with closing(reader_of(is_lazy=True)) as dataset:
        first, second = loader_of(dataset, num_workers), loader_of(dataset, num_workers)
        for _ in first:
            pass
        take_turns(first, second)
        assert dataset.crowd.most() == 1


def test_also_the_sample_right_after_the_one_that_opened_the_file_has_its_turn(tmp_path):
    """1. Thread 0 makes the first sample, which opens the file. 2. It begins another, and stays in it. 3. Another
    loader finds the file too, and has to wait."""
    path = write_records(tmp_path / "records")
    has_begun, may_end = threading.Event(), threading.Event()

    class Slow(LazyOfClass):
        def read(self, index):
            if LazyOfClass.file is not None and not has_begun.is_set():
                has_begun.set()
                assert may_end.wait(20)
            return super().read(index)

    with closing(Slow(path)) as dataset:
        first, second = (StageLoader(dataset, num_workers=2, timeout=timeout) for timeout in (20, 1))
        iterator = iter(first)
        next(iterator)
        assert has_begun.wait(20)
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            next(iter(second))
        may_end.set()
        for loader in (first, second):
            loader.close()
        assert dataset.crowd.most() == 1


def test_an_inline_loop_inside_a_loop_of_threads_uses_the_dataset_in_turn(reader_of, no_handle_yet):
    with closing(reader_of()) as dataset:
        for number, _ in enumerate(loader_of(dataset)):
            if number == 1:
                for _ in loader_of(Subset(dataset, range(8)), num_workers=0):
                    pass
        assert dataset.crowd.most() == 1


def test_iterators_of_one_loader_use_its_dataset_in_turn(reader_of):
    with closing(reader_of()) as dataset:
        loader = loader_of(dataset)
        take_turns(loader, loader)
        assert dataset.crowd.most() == 1


def test_a_loop_inside_a_loop_uses_the_dataset_in_turn(reader_of):
    """Validation in the middle of an epoch, while the training loader reads ahead."""
    with closing(reader_of()) as dataset:
        for number, _ in enumerate(loader_of(dataset)):
            if number in (1, 4):
                for _ in loader_of(Subset(dataset, range(8))):
                    pass
        assert dataset.crowd.most() == 1


def test_a_loader_over_several_files_takes_turns_at_each_of_them(reader_of):
    with closing(reader_of()) as one, closing(reader_of()) as other:
        both = loader_of(ConcatDataset([one, other]), sampler=range(40, 80))
        take_turns(both, loader_of(other))
        assert other.crowd.most() == 1


def test_a_copy_with_other_transforms_takes_turns_at_the_file_of_both(reader_of):
    """copy.copy(train) with another transform is how many make a validation set."""
    with closing(reader_of()) as dataset:
        take_turns(loader_of(dataset), loader_of(copy.copy(dataset)))
        assert dataset.crowd.most() == 1


# Copies need no turns --------------------------------------------------------------------------------------


def samples_of_both(first, second):
    """What two loaders give that are asked batch by batch, each beside the other."""
    pairs = list(zip(first, second, strict=True))
    return [[value for pair in pairs for value in pair[at].tolist()] for at in (0, 1)]


@pytest.mark.parametrize("kind", [lambda path: Opened(path, open_to_copy), Lazy], ids=["opened", "lazy"])
@pytest.mark.parametrize("is_one_loader", [True, False])
def test_loaders_with_copies_use_one_dataset_at_the_same_time(kind, is_one_loader, tmp_path):
    with closing(kind(write_records(tmp_path / "records"))) as dataset:
        first = loader_of(dataset, num_workers=1)
        second = first if is_one_loader else loader_of(dataset, num_workers=1)
        dataset.meets_from = 16  # a thread of the one needs one of the other
        assert samples_of_both(first, second) == [ALL, ALL]
        assert dataset.crowd.most() == 2


def test_the_users_own_loop_may_use_the_dataset_beside_copies_of_it(tmp_path):
    """A file has one position: the loader's threads leave the user's own alone."""
    with closing(Opened(write_records(tmp_path / "records"), open_to_copy)) as dataset:
        for number, batch in enumerate(loader_of(dataset)):
            assert batch.tolist() == ALL[4 * number : 4 * number + 4]
            assert [dataset[index] for index in (60, 3, 33)] == [60, 3, 33]
        assert number == len(ALL) // 4 - 1


def test_a_dataset_with_a_file_of_its_own_may_read_on_through_a_loader_over_another(tmp_path):
    """A loader inside a dataset, iterated since before."""
    path = write_records(tmp_path / "records")
    with closing(Opened(path, open_to_copy)) as words, loader_of(words, num_workers=1, timeout=20) as inner:
        iterator = iter(inner)
        next(iterator)

        class Paired(Opened):
            def read(self, index):
                return int(record_of(self.file, index)) + next(iterator).tolist()[0]

        with closing(Paired(path, open_to_copy)) as paired, loader_of(paired, 1, sampler=range(8)) as loader:
            values = [value for batch in loader for value in batch.tolist()]
        assert values == [index + 4 * (index + 1) for index in range(8)]


@xfail("the thread that waits for the other loader's thread holds the lock that this one needs")
def test_a_dataset_with_a_file_may_read_on_through_a_loader_over_another(reader_of):
    """A loader inside a dataset, iterated since before: its threads were there first. One sample asks for more batches
    than may be in flight, so some of them are begun and needed while its thread is inside of the dataset."""
    with closing(reader_of()) as words:
        inner = loader_of(words, sampler=[*range(NUM_SAMPLES)] * 3, timeout=1)  # a way out of a wait for ever

        class Paired(Reader):
            def __getitem__(self, index):
                return super().__getitem__(index) + sum(len(next(iterator)) for _ in range(12))  # 9 are in flight

        with inner:
            iterator = iter(inner)
            next(iterator)
            with closing(Paired(words.path)) as paired:
                paired.words = iterator
                with loader_of(paired, sampler=range(2)) as loader:
                    assert [batch.tolist() for batch in loader] == [[48, 49]]
