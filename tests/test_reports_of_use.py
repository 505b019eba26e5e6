"""Reports of use: speed of a start, errors and the programming interface. Each test cites the report it answers."""

import inspect
import statistics
import threading
import time

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)
from watching import loader_threads, seconds_until_no_loader_thread

from torchstage import StageLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # 16 threads on few cores
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # torch's own workers
]

PATIENCE_SECONDS = 20.0


class Calls(Dataset):
    """Each sample is what a function makes of its index."""

    def __init__(self, function, length=64):
        self.function = function
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.function(index)


# Start-up and epochs ---------------------------------------------------------------------------------------


def test_ur_016_all_threads_share_each_batch():
    """UR-016: a batch is given to one worker whole, so the first one takes the full serial time. Here sixteen samples
    of one batch must be inside at the same moment, or none of them gets out."""
    together = threading.Barrier(16)

    def sample(index):
        if index % 64 >= 16:
            together.wait(PATIENCE_SECONDS)
        return index

    loader = StageLoader(Calls(sample, 256), batch_size=64, num_workers=16)
    assert [batch[0].item() for batch in loader] == [0, 64, 128, 192]


@pytest.mark.timing
def test_ur_016_the_first_batch_does_not_take_the_serial_time(record_property):
    """UR-016, by the clock: 64 waits of 20 ms by 16 threads are 80 ms; one after another they are 1.28 s."""
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        with StageLoader(Calls(lambda index: time.sleep(0.02) or index), batch_size=64, num_workers=16) as loader:
            next(iter(loader))
        seconds.append(time.monotonic() - begin)
    record_property("seconds", seconds)
    assert min(seconds) < 0.64


@pytest.mark.timing
@pytest.mark.parametrize("persistent", [False, True])
def test_ur_017_a_new_epoch_starts_at_once(persistent, record_property):
    """UR-017, without prefetching across epochs: epochs of three batches, each begins in less than 50 ms."""
    waits = []
    with StageLoader(range(12), batch_size=4, num_workers=8, persistent_workers=persistent) as loader:
        for _ in range(10):
            begin = time.monotonic()
            iterator = iter(loader)
            next(iterator)
            waits.append(time.monotonic() - begin)
            assert len(list(iterator)) == 2
    record_property("waits", waits)
    assert statistics.median(waits[1:]) < 0.05


# Errors ----------------------------------------------------------------------------------------------------


class HTTPLikeError(Exception):
    """Its constructor wants three arguments."""

    def __init__(self, url, code, message):
        super().__init__(message)
        self.url, self.code, self.message = url, code, message


class LockedError(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


def raise_http_error(index):
    raise HTTPLikeError("http://example", 404, "gone")


def raise_unpicklable(index):
    raise LockedError


def raise_chained(index):
    try:
        raise OSError("the disk")
    except OSError as cause:
        raise HTTPLikeError("http://example", 500, "chained") from cause


@pytest.mark.parametrize("sample", [raise_http_error, raise_unpicklable, raise_chained])
def test_ur_061_the_exception_that_was_raised_arrives(sample):
    """UR-061: an exception whose constructor wants several arguments arrives as a TypeError about that."""
    with pytest.raises((HTTPLikeError, LockedError)) as caught:
        next(iter(StageLoader(Calls(sample), batch_size=4, num_workers=2)))
    error = caught.value
    assert caught.traceback[-1].name == sample.__name__
    assert error.__notes__ == ["torchstage: raised in stage 'fetch', dataset index 0, batch 0"]
    if isinstance(error, HTTPLikeError):
        assert error.url == "http://example"
        assert error.code in (404, 500)
    assert isinstance(error.__cause__, OSError) == (sample is raise_chained)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda: {"seq": torch.zeros(5)}, "sample['seq'] of dataset index 37 is Tensor of shape (5,)"),
        (dict, "sample of dataset index 37 is dict with keys []"),
        (lambda: {"seq": None}, "sample['seq'] of dataset index 37 is NoneType"),
    ],
)
def test_ur_062_the_sample_that_does_not_fit_is_named(odd, words):
    """UR-062: 'stack expects each tensor to be equal size' does not say which sample, nor which field."""
    dataset = Calls(lambda index: odd() if index == 37 else {"seq": torch.zeros(9)})
    with pytest.raises((RuntimeError, KeyError, TypeError)) as caught:
        next(iter(StageLoader(dataset, batch_size=64, num_workers=2)))
    diagnosis, _ = caught.value.__notes__
    assert words in diagnosis
    assert "63 of 64 samples have" in diagnosis
    assert "(9,)" in diagnosis or "'seq'" in diagnosis


@pytest.mark.timing
@pytest.mark.parametrize("num_workers", [1, 2])
def test_ur_065_a_timeout_names_what_is_stuck(num_workers):
    """UR-065, raise: a sample blocks for ever. Also with one thread."""
    let_go = threading.Event()

    def read_the_socket(index):
        assert let_go.wait(PATIENCE_SECONDS)
        return index

    iterator = iter(StageLoader(Calls(read_the_socket), batch_size=4, num_workers=num_workers, timeout=0.2))
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds") as caught:
        next(iterator)
    assert time.monotonic() - begin < 10
    for words in ("stage 'fetch'", "dataset index 0", "read_the_socket", "let_go.wait"):
        assert words in str(caught.value)
    let_go.set()


# The programming interface ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_ur_072_a_change_to_the_dataset_is_seen_from_the_next_epochs_first_sample(num_workers, persistent):
    """UR-072: with workers that stay, a change to the dataset never arrives."""
    dataset = Calls(lambda index: dataset.size, 32)
    loader = StageLoader(
        dataset, batch_size=4, num_workers=num_workers, persistent_workers=persistent and num_workers > 0
    )
    for size in (64, 96, 128):
        dataset.size = size
        assert {value for batch in loader for value in batch.tolist()} == {size}
    dataset.size = 160
    for batch in loader:
        assert batch.tolist() == [160] * 4
        break
    loader.close()


@pytest.mark.parametrize("length", [0, 1, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ur_074_small_and_empty_datasets(length, shuffle, drop_last):
    """UR-074: an empty dataset, fewer samples than threads: as DataLoader, and no thread stays."""

    def lengths_of(loader_class, num_workers):
        try:
            loader = loader_class(
                range(length), batch_size=4, shuffle=shuffle, drop_last=drop_last, num_workers=num_workers
            )
            return [len(batch) for batch in loader]
        except Exception as error:
            return type(error), str(error)

    expected = lengths_of(DataLoader, 0)
    for num_workers in (0, 1, 8):
        assert lengths_of(StageLoader, num_workers) == expected
        seconds_until_no_loader_thread()


def test_ur_074_the_class_of_an_empty_dataset_is_named():
    """UR-074: a wrong path gives an empty dataset, and torch's message speaks of num_samples only."""

    class Photographs(list):
        pass

    with pytest.raises(ValueError, match="num_samples") as caught:
        StageLoader(Photographs(), shuffle=True)
    assert "Photographs, has length 0" in caught.value.__notes__[0]


def arguments_of(loader) -> dict:
    """Every constructor argument, read from the attribute of the same name, as Lightning does it."""
    names = [name for name in inspect.signature(StageLoader.__init__).parameters if name != "self"]
    return {name: getattr(loader, name) for name in names if name != "shuffle"}


def test_ur_075_every_argument_can_be_read_under_its_own_name():
    """UR-075: frameworks rebuild a loader from its attributes."""
    generator, init, collate = torch.Generator(), print, list
    given = {
        "dataset": range(40),
        "batch_size": 4,
        "num_workers": 2,
        "collate_fn": collate,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 5.0,
        "worker_init_fn": init,
        "multiprocessing_context": None,
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "",
        "in_order": False,
        "isolation": "serial",
    }
    loader = StageLoader(**given)
    assert {name: getattr(loader, name) for name in given} == given
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    missing = [name for name in inspect.signature(StageLoader).parameters if not hasattr(loader, name)]
    assert missing == ["shuffle"]  # as in torch: the sampler says it


def rebuilt(loader, sampler):
    """The same loader with another sampler, as Lightning makes it."""
    arguments = arguments_of(loader)
    arguments.update(sampler=sampler, batch_sampler=None)
    return type(loader)(**arguments)


def test_ur_075_a_loader_rebuilt_with_a_sampler_for_each_rank_keeps_everything_else():
    """UR-075: with two ranks the samples do not overlap."""
    dataset = Calls(lambda index: index, 40)
    loader = StageLoader(dataset, 4, True, num_workers=2, drop_last=True, isolation="serial", prefetch_factor=5)
    assert isinstance(loader.sampler, RandomSampler)
    seen = []
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True)
        again = rebuilt(loader, sampler)
        assert type(again) is StageLoader
        assert again.sampler is sampler
        differences = {name for name, value in arguments_of(again).items() if value is not getattr(loader, name)} - {
            "sampler",
            "batch_sampler",
        }
        assert differences == set()
        seen.append({value for batch in again for value in batch.tolist()})
    assert seen[0] | seen[1] == set(range(40))
    assert not seen[0] & seen[1]


def test_ur_075_a_custom_batch_sampler_and_a_subclass_with_an_argument_of_its_own():
    """UR-075: a user's subclass is rebuilt as itself."""

    class Named(StageLoader):
        def __init__(self, *arguments, name="", **keywords):
            super().__init__(*arguments, **keywords)
            self.name = name

    dataset = Calls(lambda index: index, 12)
    batches = BatchSampler(SequentialSampler(dataset), 3, drop_last=False)
    loader = Named(dataset, batch_sampler=batches, num_workers=2, name="training")
    arguments = arguments_of(loader)
    for name in ("batch_size", "sampler", "drop_last"):
        arguments.pop(name)
    arguments["batch_sampler"] = type(batches)(DistributedSampler(dataset, 2, 1, shuffle=False), 3, drop_last=False)
    again = Named(name=loader.name, **arguments)
    assert (type(again), again.name) == (Named, "training")
    assert [batch.tolist() for batch in again] == [[1, 3, 5], [7, 9, 11]]


def test_ur_076_each_thread_has_its_own_worker_info():
    """UR-076: where worker info is the process's, threads see each other's. Here eight threads, a DataLoader and the
    main thread ask at once."""

    def info(index=0):
        seen = get_worker_info()
        return seen.id, seen.num_workers, seen.seed, threading.current_thread().name, id(seen.dataset)

    set_up, collated = [], []
    dataset = Calls(info)

    def collate(samples):
        collated.append(info())
        return samples

    loader = StageLoader(
        dataset, batch_size=8, num_workers=8, collate_fn=collate, worker_init_fn=lambda number: set_up.append(info())
    )
    processes = DataLoader(Calls(lambda index: get_worker_info().id, 16), batch_size=4, num_workers=2)
    sampled = []
    for samples, batch in zip(loader, [*processes, *processes], strict=True):
        assert get_worker_info() is None
        sampled += samples
        assert len(set(batch.tolist())) == 1
    everything = {*set_up, *collated, *sampled}
    assert {number for number, *_ in set_up} == set(range(8))
    assert len(everything) == 8  # in a thread the same answer everywhere and always
    assert {num_workers for _, num_workers, *_ in everything} == {8}
    assert len({seed - number for number, _, seed, *_ in everything}) == 1
    assert {held for *_, held in everything} == {id(dataset)}
    assert get_worker_info() is None
    assert loader_threads() == []
