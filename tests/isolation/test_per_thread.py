"""One copy of a dataset for each thread: what is copied, what stays shared, and when a copy ends."""

import gc
import queue

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from torchstage import StageLoader

from .breaking import COPIED
from .breaking_handles import Seeking
from .breaking_state import Counting
from .stories import (
    NUM_SAMPLES,
    NUM_THREADS,
    Case,
    Inside,
    Numbered,
    caught_warnings,
    pause,
    seen_datasets,
    values_of,
    with_info,
)

BIG_BYTES = 64 << 20


class Counted(Numbered):
    """Each sample tells how many this copy of the dataset has made, and where its big things are."""

    def __init__(self, num_bytes=1000):
        self.count = 0
        self.array = np.ones(num_bytes, np.uint8)
        self.tensor = torch.ones(num_bytes, dtype=torch.uint8)
        self.paths = [str(number) for number in range(1000)]
        self.scale = 1
        self.inside = Inside(NUM_THREADS)  # shared by all copies: C objects

    def __getitem__(self, index):
        self.count += 1
        count = self.count
        if index >= NUM_SAMPLES // 4:
            self.inside.meet()
        pause()
        return count * self.scale, self.count == count


class Held(Numbered):
    """The same with all that it counts on in a part of its own."""

    def __init__(self):
        self.part = Counted()

    def __getitem__(self, index):
        return self.part[index]


def counts_of(loader):
    """What each thread counted, in the order of the batches; every sample was alone with its copy."""
    counts: dict[int, list[int]] = {}
    for samples, info in loader:
        assert all(is_alone for _, is_alone in samples)
        counts.setdefault(info.id, []).extend(count for count, _ in samples)
    return counts


def loader_of(dataset, **arguments) -> StageLoader:
    return Case(dataset, with_info).loader(**arguments)


class ByThread(Numbered):
    """Each sample tells which thread made it, and the how many-th of this copy it is."""

    def __init__(self):
        self.count = 0
        self.inside = Inside(NUM_THREADS)

    def __getitem__(self, index):
        self.count += 1
        count = self.count
        if index >= NUM_SAMPLES // 4:
            self.inside.meet()
        return get_worker_info().id, count


def numbering_of(loader):
    """For each thread, the numbers of its samples."""
    numbers: dict[int, list[int]] = {}
    for samples in loader:
        for thread, number in samples:
            numbers.setdefault(thread, []).append(number)
    return {thread: sorted(found) for thread, found in numbers.items()}


def assert_each_thread_counts_for_itself(numbers):
    assert len(numbers) == NUM_THREADS
    assert sum(map(len, numbers.values())) == NUM_SAMPLES
    for found in numbers.values():
        assert found == list(range(1, len(found) + 1))


# By hand ---------------------------------------------------------------------------------------------------


def test_shared_is_shared_whatever_it_holds(path):
    with path.open("rb") as file, caught_warnings() as messages:
        dataset = Seeking(file)
        loader = loader_of(dataset, isolation="shared")
        iterator = iter(loader)
        assert all(seen is dataset for _, seen in seen_datasets([next(iterator)]))
        del iterator
    assert messages == []


@pytest.mark.timing
def test_serial_is_one_thread_at_a_time(tmp_path):
    class Busy(Numbered):
        def __init__(self):
            self.steps = queue.SimpleQueue()

        def __getitem__(self, index):
            self.steps.put(1)
            pause()
            self.steps.put(-1)
            return index

    def most_at_once(isolation):
        dataset = Busy()
        values_of(Case(dataset).loader(isolation=isolation))
        num_inside = most = 0
        while not dataset.steps.empty():
            num_inside += dataset.steps.get()
            most = max(most, num_inside)
        return most

    assert most_at_once("serial") == 1
    assert most_at_once("shared") > 1
    assert most_at_once("auto") > 1


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_each_thread_has_one_copy(isolation):
    assert_each_thread_counts_for_itself(
        numbering_of(Case(ByThread()).loader(isolation=isolation)),
    )


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_worker_info_names_the_copy(isolation):
    dataset = Counted()
    seen = seen_datasets(loader_of(dataset, isolation=isolation))
    copies = {thread: {id(one) for number, one in seen if number == thread} for thread, _ in seen}
    assert all(len(found) == 1 for found in copies.values())
    assert len(set.union(*copies.values())) == len(copies) > 1
    assert all(type(one) is Counted for _, one in seen)


@pytest.mark.parametrize("build", [Counted, Held])
@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_what_is_big_stays_shared(build, isolation):
    dataset = build()
    part = dataset.part if build is Held else dataset
    for _, copy in seen_datasets(loader_of(dataset, isolation=isolation)):
        copied = copy.part if build is Held else copy
        assert copied is not part or isolation == "auto"
        assert copied.array is part.array or copied.array.base is part.array
        assert copied.tensor.data_ptr() == part.tensor.data_ptr()
        assert copied.inside.arrivals is part.inside.arrivals


def test_a_list_of_a_million_paths_is_not_copied():
    dataset = Counted()
    dataset.paths = [f"{number}.jpg" for number in range(1_000_000)]
    for _, copy in seen_datasets(loader_of(dataset)):
        assert copy.paths is dataset.paths


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_eight_copies_take_no_memory(isolation):
    dataset = Counted(BIG_BYTES)
    list(loader_of(Counted(), isolation=isolation, num_workers=NUM_THREADS))  # what is loaded once
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    iterator = iter(loader_of(dataset, isolation=isolation))
    batches = [next(iterator) for _ in range(NUM_SAMPLES // 4)]
    growth = process.memory_info().rss - before
    assert len(batches) == NUM_SAMPLES // 4
    assert growth < BIG_BYTES // 2
    del iterator


# The user's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_the_users_own_is_left_as_it_was(isolation, is_persistent):
    dataset = Held()
    with loader_of(dataset, isolation=isolation, persistent_workers=is_persistent) as loader:
        for _ in range(2):
            counts_of(loader)
            assert dataset.part.count == 0


def plain_state(value, depth=0):
    """What can be compared of an object's attributes."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return str(value.get_state())
    if hasattr(value, "getstate"):
        return value.getstate()
    if isinstance(value, list | tuple) and depth < 5:
        return [plain_state(inner, depth + 1) for inner in value]
    if isinstance(value, dict) and depth < 5:
        return {key: plain_state(inner, depth + 1) for key, inner in value.items()}
    if hasattr(value, "tell"):
        return value.tell(), value.closed
    if hasattr(value, "__dict__") and depth < 5:
        return {name: plain_state(inner, depth + 1) for name, inner in vars(value).items()}
    return value if isinstance(value, int | float | str | bytes | bytearray) else type(value)


UNTOUCHED = [name for name in COPIED if name not in ("lazily_opened_images", "a_tar_archive")]


@pytest.mark.parametrize("name", UNTOUCHED)
def test_no_epoch_changes_the_users_own(name, tmp_path):
    with COPIED[name].opened(tmp_path) as case:
        before = plain_state(case.dataset), plain_state(getattr(case.collate_fn, "__self__", case.collate_fn))
        values_of(case.loader())
        after = plain_state(case.dataset), plain_state(getattr(case.collate_fn, "__self__", case.collate_fn))
        assert after == before


# One of each kind of thing that is copied; the others are copied by the same code.
IN_USE = [name for number, name in enumerate(COPIED) if number % 3 == 0]


@pytest.mark.parametrize("name", IN_USE)
def test_the_users_own_can_be_used_meanwhile_and_afterwards(name, tmp_path):
    """By the thread that it belongs to, while the loader's threads use theirs."""
    told = COPIED[name]
    with told.opened(tmp_path) as case:
        iterator = iter(case.loader())
        batches = [next(iterator)]
        for index in range(NUM_SAMPLES // 2):
            assert case.collate_fn([case.dataset[index]]) == [told.right(index)]
        batches += list(iterator)
        assert [value for batch in batches for value in batch] == told.all_right()
        assert case.collate_fn([case.dataset[5]]) == [told.right(5)]


# From epoch to epoch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_each_epoch_has_fresh_copies_as_worker_processes_have(isolation):
    loader = Case(dataset := ByThread()).loader(isolation=isolation)
    for _ in range(3):
        dataset.inside = Inside(NUM_THREADS)
        assert_each_thread_counts_for_itself(numbering_of(loader))


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_the_copies_of_persistent_workers_go_on(isolation):
    dataset = ByThread()
    with Case(dataset).loader(isolation=isolation, persistent_workers=True) as loader:
        first = numbering_of(loader)
        assert_each_thread_counts_for_itself(first)
        second = numbering_of(loader)
    for thread, found in second.items():
        begin = len(first[thread]) + 1
        assert found == list(range(begin, begin + len(found)))


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_what_the_user_changes_between_epochs_is_seen(isolation):
    dataset = Counted()
    loader = loader_of(dataset, isolation=isolation)
    counts_of(loader)
    dataset.scale = 1000
    dataset.inside = Inside(NUM_THREADS)
    counts = counts_of(loader)
    assert counts
    assert all(count % 1000 == 0 for found in counts.values() for count in found)


def test_what_the_user_replaces_between_epochs_is_seen(path):
    with path.open("rb") as file, path.open("rb") as other:
        dataset = Seeking(file)
        loader = Case(dataset).loader()
        assert values_of(loader) == list(range(NUM_SAMPLES))
        longer = path.with_name("longer")
        longer.write_bytes(b"".join(b"%7d\n" % (number + 1000) for number in range(NUM_SAMPLES)))
        with longer.open("rb") as dataset.file:
            assert values_of(loader) == list(range(1000, 1000 + NUM_SAMPLES))
        assert not other.closed


def test_two_epochs_at_once_have_copies_of_their_own():
    loader = Case(Counting()).loader()
    for pair in zip(loader, loader, strict=True):
        assert pair[0] == pair[1]
        assert -1 not in pair[0]


def test_parts_that_two_share_stay_shared_within_a_copy():
    """One memo for all: what dataset and collate_fn have in common, they have in common in each copy."""

    class Sharing(Numbered):
        def __init__(self):
            self.seen = [None]

        def __getitem__(self, index):
            self.seen[0] = index
            pause()
            return index, self.seen[0] == index

        def collate(self, samples):
            return samples, self.seen is get_worker_info().dataset.seen

    dataset = Sharing()
    for samples, is_the_same in Case(dataset, dataset.collate).loader():
        assert is_the_same
        assert all(is_right for _, is_right in samples)
