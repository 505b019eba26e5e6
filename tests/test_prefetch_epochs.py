"""prefetch_epochs: the next epoch's first batches are there when it begins, and are what they would have been."""

import gc
import threading
import weakref

import pytest
import torch
from epochs import Noted, Notes, both, loader_of, note, values_of, wait_for
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from torchstage import Stage, StageLoader
from torchstage.samplers import ElasticSampler

LENGTH, BATCH_SIZE = 10, 2  # five batches an epoch


def shuffled(generator=None):
    return {"shuffle": True, "generator": generator or torch.Generator().manual_seed(5)}


def test_the_first_batches_of_an_epoch_are_there_when_it_begins():
    """UR-017: three batches an epoch, and a consumer that works between them."""
    notes = Notes()
    with loader_of(Noted(6, notes)) as loader:
        list(loader)
        for epoch in range(1, 4):
            notes.wait_for(6 * (epoch + 1))  # nobody asked for this epoch yet
            with notes.closed():
                batches = iter(loader)
                got = [next(batches) for _ in range(3)]  # nothing of it is left to be made
                assert next(batches, None) is None
            assert [batch[:, 0].tolist() for batch in got] == [[0, 1], [2, 3], [4, 5]]


def test_nothing_is_made_twice():
    notes = Notes()
    with loader_of(Noted(LENGTH, notes), **shuffled()) as loader:
        for _ in range(4):
            list(loader)
        notes.wait_for(5 * LENGTH)
        assert set(notes.made.values()) == {5}


def test_without_it_nothing_is_made_early():
    notes = Notes()
    with loader_of(Noted(6, notes), prefetch_epochs=False) as loader:
        list(loader)
        assert notes.total == 6


def test_no_more_is_begun_than_may_be_in_flight():
    notes = Notes()
    with loader_of(Noted(40, notes)) as loader:
        list(loader)
        notes.wait_for(40 + 17 * BATCH_SIZE)


ORDERS = {
    "sequential": lambda dataset: {},
    "with a seed": lambda dataset: {"seed": 3},
    "shuffled": lambda dataset: shuffled(),
    "shuffled, with a seed": lambda dataset: {**shuffled(), "seed": 3},
    "random, with replacement": lambda dataset: {
        "sampler": RandomSampler(dataset, True, 14, generator=torch.Generator().manual_seed(1))
    },
    "random, more than there are": lambda dataset: {
        "sampler": RandomSampler(dataset, num_samples=13, generator=torch.Generator().manual_seed(1))
    },
    "a subset": lambda dataset: {
        "sampler": SubsetRandomSampler([3, 1, 4, 1, 5, 9], generator=torch.Generator().manual_seed(1))
    },
    "a subset by an array": lambda dataset: {
        "sampler": SubsetRandomSampler(torch.tensor([3, 1, 4, 5, 9]), generator=torch.Generator().manual_seed(1))
    },
    "weighted": lambda dataset: {
        "sampler": WeightedRandomSampler([1.0] * LENGTH, 12, generator=torch.Generator().manual_seed(1))
    },
    "distributed": lambda dataset: {"sampler": DistributedSampler(dataset, 2, 1)},
    "more ranks than samples": lambda dataset: {"sampler": DistributedSampler(dataset, 12, 11)},
    "elastic": lambda dataset: {"sampler": ElasticSampler(dataset, 2, 0, seed=4)},
    "elastic, dropped": lambda dataset: {"sampler": ElasticSampler(dataset, 3, 0, tail="drop"), "drop_last": True},
}


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_told", [True, False], ids=["set_epoch", "not told"])
def test_every_batch_of_every_epoch_is_what_it_is_without(num_workers, order, is_told):
    def make(prefetch_epochs):
        dataset = Noted(LENGTH)
        return loader_of(dataset, prefetch_epochs=prefetch_epochs, num_workers=num_workers, **ORDERS[order](dataset))

    def story(loader):
        epochs = []
        for epoch in range(5):
            if is_told and hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            epochs.append(values_of(loader))
        return epochs

    epochs = both(make, story)
    assert len({str(epoch) for epoch in epochs}) == 5  # each draws anew


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_that_is_certain_is_begun_early(order):
    notes = Notes()
    dataset = Noted(LENGTH, notes)
    with loader_of(dataset, **ORDERS[order](dataset)) as loader:
        num_samples = 0
        for epoch in range(3):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            num_samples += sum(len(batch) for batch in loader)
        wait_for(lambda: notes.total >= num_samples * 4 // 3)
        assert notes.total == num_samples * 4 // 3


MAKERS = {
    "batches off": lambda: {"batch_size": None},
    "stages": lambda: {"stages": [Stage(_doubled), Stage(_drawn, concurrency=2)]},
    "an async stage": lambda: {"stages": [Stage(_async_doubled)]},
    "one at a time": lambda: {"isolation": "serial"},
    "copies for each thread": lambda: {"isolation": "per_thread"},
    "unordered": lambda: {"in_order": False, "num_workers": 1},
    "a device": lambda: {"device": "cpu"},
    "a bound on bytes": lambda: {"prefetch_bytes": 400},
    "collate_fn": lambda: {"collate_fn": _stacked},
    "a tail dropped": lambda: {"batch_size": 3, "drop_last": True},
    "few ahead": lambda: {"prefetch_factor": 1, "batch_size": 5},
}


def _doubled(value):
    return value * 2


def _drawn(value):
    return value + torch.rand(())


async def _async_doubled(value):
    return value * 2


def _stacked(samples):
    return torch.stack(samples) + torch.rand(())


@pytest.mark.parametrize("maker", MAKERS)
def test_batches_that_are_made_in_another_way_are_what_they_are_without(maker):
    def make(prefetch_epochs):
        return loader_of(Noted(LENGTH), prefetch_epochs=prefetch_epochs, **MAKERS[maker](), **shuffled())

    both(make, lambda loader: [values_of(loader) for _ in range(4)])


@pytest.mark.parametrize("maker", MAKERS)
def test_batches_that_are_made_in_another_way_are_begun_early_too(maker):
    notes = Notes()
    with loader_of(Noted(LENGTH, notes), **MAKERS[maker](), **shuffled()) as loader:
        for _ in range(4):
            list(loader)
        wait_for(lambda: notes.total > 4 * LENGTH)
        assert max(notes.made.values()) == 5  # four epochs, and one that is begun: none was begun in vain


def test_a_dataset_that_gives_whole_batches_gives_them_early_too():
    tensors = torch.arange(12.0)

    def make(prefetch_epochs):
        return loader_of(TensorDataset(tensors), prefetch_epochs=prefetch_epochs, **shuffled())

    both(make, lambda loader: [[batch[0].tolist() for batch in loader] for _ in range(4)])


def test_worker_init_fn_runs_once_in_each_thread():
    calls = []
    with loader_of(Noted(6), worker_init_fn=calls.append) as loader:
        for _ in range(3):
            list(loader)
    assert calls == [0, 1]


def test_close_ends_what_was_begun():
    notes = Notes()
    loader = loader_of(Noted(LENGTH, notes))
    list(loader)
    loader.close()
    made = notes.total
    assert made <= 2 * LENGTH
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("torchstage-fetch")]
    assert len(list(loader)) == 5  # it can be iterated again
    loader.close()


class Thing:
    """A sample that somebody may watch."""


class Things(Noted):
    def __getitem__(self, index):
        note(self.notes, index)
        thing = Thing()
        ALIVE.add(thing)
        return thing


ALIVE = weakref.WeakSet()


def test_what_was_begun_goes_with_the_loader_at_once():
    notes = Notes()
    gc.collect()
    gc.disable()
    try:
        loader = loader_of(Things(6, notes), collate_fn=list)
        list(loader)
        notes.wait_for(12)
        wait_for(lambda: len(ALIVE) == 6)
        del loader
        wait_for(lambda: not len(ALIVE))
    finally:
        gc.enable()


def test_what_the_user_lets_go_of_goes_in_later_epochs_too():
    with loader_of(Things(6), collate_fn=list) as loader:
        for _ in range(3):
            for batch in loader:
                assert len(batch) == 2
                latest = weakref.ref(batch[0])
                del batch
                wait_for(lambda latest=latest: latest() is None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"persistent_workers": False}, "needs persistent_workers=True"),
        ({"num_workers": 0, "persistent_workers": False}, "needs persistent_workers=True"),
        ({"num_workers": 0}, "persistent_workers"),
    ],
)
def test_a_loader_that_cannot_keep_its_threads_is_refused(arguments, words):
    arguments = {"num_workers": 2, "persistent_workers": True, **arguments}
    with pytest.raises(ValueError, match=words):
        StageLoader(range(4), prefetch_epochs=True, **arguments)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_it_is_true_or_false(value):
    with pytest.raises(TypeError, match="prefetch_epochs must be True or False"):
        StageLoader(range(4), prefetch_epochs=value)
