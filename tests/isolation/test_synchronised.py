"""Datasets that look after threads themselves: locks, queues, events. They go on doing it right, and never hang."""

import queue
import threading

import pytest

from .breaking_handles import RECORD_BYTES
from .stories import NUM_SAMPLES, NUM_THREADS, PATIENCE_SECONDS, Case, Numbered, caught_warnings, pause, values_of

RIGHT = list(range(NUM_SAMPLES))


class Pooled(Numbered):
    """A few files in a queue: whoever needs one takes it, and puts it back."""

    def __init__(self, path, num_files=2):
        self.files = queue.Queue()
        for _ in range(num_files):
            self.files.put(path.open("rb"))

    def __getitem__(self, index):
        file = self.files.get(timeout=PATIENCE_SECONDS)
        try:
            file.seek(index * RECORD_BYTES)
            pause()
            return int(file.read(RECORD_BYTES))
        finally:
            self.files.put(file)

    def close(self):
        while not self.files.empty():
            self.files.get().close()


class Locked(Numbered):
    """One file behind a lock."""

    def __init__(self, path):
        self.file = path.open("rb")
        self.lock = threading.RLock()

    def __getitem__(self, index):
        with self.lock:
            self.file.seek(index * RECORD_BYTES)
            pause()
            return int(self.file.read(RECORD_BYTES))

    def close(self):
        self.file.close()


class Limited(Numbered):
    """No more than two at once."""

    def __init__(self, path):
        self.places = threading.BoundedSemaphore(2)

    def __getitem__(self, index):
        with self.places:
            pause()
            return index


class Conditioned(Numbered):
    """A turn for each: waits until it is free."""

    def __init__(self, path):
        self.condition = threading.Condition()
        self.is_taken = False

    def __getitem__(self, index):
        with self.condition:
            assert self.condition.wait_for(lambda: not self.is_taken, PATIENCE_SECONDS)
            self.is_taken = True
        pause()
        with self.condition:
            self.is_taken = False
            self.condition.notify()
        return index


class Announced(Numbered):
    """The first sample opens the gate for the others."""

    def __init__(self, path):
        self.gate = threading.Event()

    def __getitem__(self, index):
        if index == 0:
            self.gate.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        return index


KINDS = [Pooled, Locked, Limited, Conditioned, Announced]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ["auto", "shared", "per_thread"])
def test_it_stays_right(kind, isolation, path, short_switch_interval):
    dataset = kind(path)
    with caught_warnings():
        loader = Case(dataset).loader(isolation=isolation)
        for _ in range(2):
            assert values_of(loader) == RIGHT
    dataset.close()


@pytest.mark.parametrize("kind", [Locked, Limited, Conditioned, Announced])
def test_nothing_is_said(kind, path):
    dataset = kind(path)
    with caught_warnings() as messages:
        assert values_of(Case(dataset).loader(num_workers=NUM_THREADS)) == RIGHT
    assert messages == []
    dataset.close()


@pytest.mark.parametrize("kind", [Limited, Conditioned, Announced])
def test_who_waits_outside_is_woken(kind, path):
    """The user's own objects are those that the threads use."""
    dataset = kind(path)
    seen = []

    def collate(samples):
        seen.append(samples)
        return samples

    values_of(Case(dataset, collate).loader())
    if kind is Announced:
        assert dataset.gate.is_set()
    assert sorted(value for samples in seen for value in samples) == RIGHT


def test_a_consumer_may_lead_its_dataset_on():
    """Its threads wait for an event of the consumer's, batch by batch."""

    class Led(Numbered):
        def __init__(self):
            self.gates = [threading.Event() for _ in range(NUM_SAMPLES)]

        def __getitem__(self, index):
            assert self.gates[index].wait(PATIENCE_SECONDS)
            return index

    dataset = Led()
    iterator = iter(Case(dataset).loader())
    for index in range(0, NUM_SAMPLES, 2):
        dataset.gates[index].set()
        dataset.gates[index + 1].set()
        assert next(iterator) == [index, index + 1]
    del iterator
