"""What tests of epochs share: a dataset whose samples are counted, a gate that lets no sample be made, two loaders that
must give the same."""

import random
import threading
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils.data import Dataset

from torchstage import StageLoader

PATIENCE_SECONDS = 30.0
NOTES = []  # outside of the datasets, which stay as they are


def note(number, index):
    if number is not None:
        NOTES[number](index)


class Noted(Dataset):
    """Samples that tell their index and what they drew; each one made is noted."""

    def __init__(self, length, notes=None):
        self.length = length
        self.notes = None if notes is None else notes.number
        self.added = 0
        self.listed = [0.0] * 3
        self.array = np.zeros(4)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        note(self.notes, index)
        drawn = [torch.rand(()).item(), random.random(), np.random.rand()]
        return torch.tensor([index, self.added, self.listed[1], float(self.array[2]), *drawn], dtype=torch.float64)


class Notes:
    """How often each sample was made; while it is closed, none is."""

    def __init__(self):
        self._indices = []
        self._is_open = threading.Event()
        self._is_open.set()
        self._left = None
        self.number = len(NOTES)
        NOTES.append(self)

    def __call__(self, index):
        assert self._is_open.wait(PATIENCE_SECONDS), "nobody opened"
        left = self._left
        assert left is None or left.acquire(timeout=PATIENCE_SECONDS), "nobody allowed more"
        self._indices.append(index)

    @property
    def made(self):
        return Counter(self._indices)

    @property
    def total(self):
        return len(self._indices)

    def clear(self):
        self._indices.clear()

    def allow(self, num_samples):
        """So many more, from now on."""
        self._left = self._left or threading.Semaphore(0)
        self._left.release(num_samples)

    @contextmanager
    def closed(self):
        self._is_open.clear()
        try:
            yield
        finally:
            self._is_open.set()

    def wait_for(self, total):
        """Until that many samples were made, and a moment in which one too many would be."""
        wait_for(lambda: self.total >= total)
        time.sleep(0.02)
        assert self.total == total


def wait_for(is_so):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)


def loader_of(dataset, *, prefetch_epochs=True, num_workers=2, batch_size=2, **arguments):
    return StageLoader(
        dataset,
        batch_size,
        num_workers=num_workers,
        persistent_workers=True,
        prefetch_epochs=prefetch_epochs,
        worker_method=arguments.pop("worker_method", "thread"),
        **arguments,
    )


def values_of(batches):
    return [batch.tolist() for batch in batches]


def both(make, story):
    """What the story gives with a loader that begins epochs early, which must be what it gives with one that does
    not."""
    got = []
    for prefetch_epochs in (True, False):
        torch.manual_seed(31)
        with make(prefetch_epochs) as loader:
            got.append((story(loader), torch.get_rng_state().tolist()))
    assert got[0] == got[1]
    return got[0][0]
