"""Errors of time: what is late is named, with the stack of the thread that is late, and can still be waited for."""

import re
import threading
import time

import pytest
from torch.utils.data import Dataset

from torchstage import StageLoader

pytestmark = pytest.mark.timing  # it is about how long things take

PATIENCE_SECONDS = 20.0
TIMEOUT_SECONDS = 0.1


class Held(Dataset):
    """Holds one sample back until it is let go."""

    def __init__(self, held):
        self.held = held
        self.let_go = threading.Event()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == self.held:
            self.wait_for_the_network()
        return index

    def wait_for_the_network(self):
        assert self.let_go.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_is_late_is_named_with_its_threads_stack(num_workers):
    dataset = Held(5)
    iterator = iter(StageLoader(dataset, batch_size=4, num_workers=num_workers, timeout=TIMEOUT_SECONDS))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"^DataLoader timed out after {TIMEOUT_SECONDS} seconds: ") as caught:
        next(iterator)
    assert TIMEOUT_SECONDS <= time.monotonic() - begin < TIMEOUT_SECONDS + 10
    words = str(caught.value)
    assert "stage 'fetch', dataset index 5, batch 1 is late, in thread torchstage-fetch-" in words
    assert re.search(r"in wait_for_the_network\n\s+assert self.let_go.wait", words)
    assert caught.value.__cause__ is None
    dataset.let_go.set()


def test_what_was_late_is_delivered_when_it_comes():
    dataset = Held(5)
    iterator = iter(StageLoader(dataset, batch_size=4, num_workers=2, timeout=TIMEOUT_SECONDS))
    next(iterator)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dataset index 5"):
            next(iterator)
    dataset.let_go.set()
    values = []
    while len(values) < 12:
        try:
            values += next(iterator).tolist()
        except RuntimeError:  # a machine this slow may be late once more
            continue
    assert values == list(range(4, 16))


def test_a_late_collate_is_named_as_well():
    let_go = threading.Event()

    def collate(samples):
        assert let_go.wait(PATIENCE_SECONDS)
        return samples

    iterator = iter(StageLoader(range(4), batch_size=4, num_workers=2, collate_fn=collate, timeout=TIMEOUT_SECONDS))
    with pytest.raises(RuntimeError, match=r"stage 'collate', batch 0 is late, in thread torchstage-(?s:.*)in collate"):
        next(iterator)
    let_go.set()


def test_a_sample_that_no_thread_has_begun_is_late_without_a_stack():
    """Batch 1 waits behind batch 0, which the only thread is in; handed out is whatever is done."""
    dataset = Held(0)
    loader = StageLoader(dataset, num_workers=1, timeout=TIMEOUT_SECONDS)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="dataset index 0, batch 0 is late, in thread"):
        next(iterator)
    dataset.let_go.set()


def test_in_time_nothing_is_said():
    loader = StageLoader(range(16), batch_size=4, num_workers=2, timeout=PATIENCE_SECONDS)
    assert len(list(loader)) == 4


def test_a_late_file_is_named(tmp_path):
    class Files(Held):
        samples = [("a.jpg", 0), ("b.jpg", 1)]  # noqa: RUF012

    dataset = Files(1)
    iterator = iter(StageLoader(dataset, sampler=[0, 1], num_workers=1, timeout=TIMEOUT_SECONDS))
    next(iterator)
    with pytest.raises(RuntimeError, match=r"dataset index 1 \(b\.jpg\), batch 1 is late"):
        next(iterator)
    dataset.let_go.set()


def test_a_timeout_needs_threads():
    with pytest.raises(AssertionError, match="needs num_workers > 0"):
        iter(StageLoader(range(4), timeout=1))
