"""prefetch_epochs: states, errors, and everything else that happens between two epochs."""

import pytest
import torch
from epochs import Noted, Notes, both, loader_of, note, values_of, wait_for
from torch.utils.data import Dataset

from torchstage.samplers import ElasticSampler

LENGTH = 10


def shuffled():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(5)}


ORDERS = {
    "sequential": lambda dataset: {},
    "shuffled": lambda dataset: shuffled(),
    "elastic": lambda dataset: {"sampler": ElasticSampler(dataset, 1, 0)},
}


@pytest.mark.parametrize("order", ORDERS)
def test_states_are_the_same_after_each_batch_and_between_epochs(order):
    notes = Notes()

    def make(prefetch_epochs):
        dataset = Noted(LENGTH, notes)
        return loader_of(dataset, prefetch_epochs=prefetch_epochs, **ORDERS[order](dataset))

    def story(loader):
        notes.clear()
        states = [loader.state_dict()]
        for epoch in range(3):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for _ in loader:
                states.append(loader.state_dict())
            if loader.prefetch_epochs:
                notes.wait_for((epoch + 2) * LENGTH)
            states.append(loader.state_dict())
        return states

    states = both(make, story)
    assert all(states[at]["position"] == 0 and states[at]["is_boundary"] for at in (6, 12, 18))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("at", [0, 2, 5, 6, 9, 11])
def test_a_state_that_is_loaded_between_epochs_counts(order, at):
    def make(prefetch_epochs):
        dataset = Noted(LENGTH)
        return loader_of(dataset, prefetch_epochs=prefetch_epochs, **ORDERS[order](dataset))

    def story(loader):
        states, epochs = [loader.state_dict()], []
        for epoch in range(3):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                epochs.append(batch.tolist())
                states.append(loader.state_dict())
        loader.load_state_dict(states[at])
        for _ in range(3):
            epochs += values_of(loader)
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(loader.sampler.epoch + 1)
        return epochs

    both(make, story)


class Failing(Dataset):
    def __init__(self, notes=None):
        self.notes = None if notes is None else notes.number

    def __len__(self):
        return 6

    def __getitem__(self, index):
        note(self.notes, index)
        if index in (0, 5):
            raise LookupError(index)
        return index


def outcomes_of(batches):
    found = []
    while True:
        try:
            found.append(next(batches).tolist())
        except StopIteration:
            return found
        except LookupError as error:
            found.append((repr(error), error.__notes__))


def test_an_error_in_the_first_batch_of_the_next_epoch_is_raised_there_alone():
    notes = Notes()

    def make(prefetch_epochs):
        return loader_of(Failing(notes), prefetch_epochs=prefetch_epochs, num_workers=1)

    def story(loader):
        notes.clear()
        epochs = []
        for epoch in range(3):
            epochs.append(outcomes_of(iter(loader)))
            if loader.prefetch_epochs:
                notes.wait_for(5 * (epoch + 2))  # the sample after the first one is not asked for
        return epochs

    epochs = both(make, story)
    where = "torchstage: raised in stage 'fetch', dataset index"
    first, last = f"{where} 0, batch 0", f"{where} 5, batch 2"
    assert epochs[0] == [("LookupError(0)", [first]), [2, 3], ("LookupError(5)", [last])]
    assert epochs[1:] == [epochs[0]] * 2


def test_an_error_that_nobody_comes_to_is_never_raised():
    notes = Notes()
    with loader_of(Failing(notes), num_workers=1) as loader:
        outcomes_of(iter(loader))
        notes.wait_for(10)


def test_a_sampler_that_fails_fails_in_its_place():
    class Short(Noted):
        fails = False

        def __len__(self):
            if self.fails:
                raise LookupError("no length")
            return self.length

    dataset = Short(LENGTH)
    with loader_of(dataset, sampler=ElasticSampler(dataset, 1, 0)) as loader:
        assert len(list(loader)) == 5
        dataset.fails = True
        with pytest.raises(LookupError, match="no length"):
            list(loader)
        dataset.fails = False
        assert len(list(loader)) == 5


def test_batches_are_counted_when_they_are_handed_out_and_samples_where_they_are_made():
    notes = Notes()
    with loader_of(Noted(LENGTH, notes)) as loader:
        list(loader)
        notes.wait_for(2 * LENGTH)
        wait_for(lambda: all(stage.samples == 2 * LENGTH for stage in loader.stats().stages))
        assert (loader.stats().batches, loader.stats().batches_in_flight) == (5, 5)
        list(loader)
        assert loader.stats().batches == 10


def test_a_time_out_is_that_of_the_batch_that_is_waited_for():
    notes = Notes()
    with loader_of(Noted(4, notes), timeout=0.3) as loader:
        list(loader)
        notes.wait_for(8)
        with notes.closed():
            assert len(list(loader)) == 2  # the epoch after it is stuck, and nobody waits for that
            with pytest.raises(RuntimeError, match=r"DataLoader timed out .* dataset index 0, batch 0 is late"):
                next(iter(loader))
        assert len(list(loader)) == 2


class Counted(Dataset):
    """Each sample made is a byte in a file, whichever process makes it."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        with self.path.open("ab") as file:
            file.write(b".")
        return torch.tensor([index, torch.rand(()).item()], dtype=torch.float64)

    def num_made(self):
        return self.path.stat().st_size


@pytest.mark.parametrize("order", ORDERS)
def test_processes_begin_the_next_epoch_too(order, tmp_path):
    paths = iter([tmp_path / "early", tmp_path / "not"])

    def make(prefetch_epochs):
        dataset = Counted(next(paths))
        return loader_of(
            dataset, prefetch_epochs=prefetch_epochs, worker_method="multiprocessing", **ORDERS[order](dataset)
        )

    def story(loader):
        epochs = []
        for epoch in range(3):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            epochs.append(values_of(loader))
            made = (epoch + 1 + loader.prefetch_epochs) * LENGTH
            wait_for(lambda made=made: loader.dataset.num_made() >= made)
            assert loader.dataset.num_made() == made
        return epochs

    both(make, story)


def test_threads_and_processes_make_the_same_early(tmp_path):
    def epochs_of(worker_method):
        dataset = Counted(tmp_path / worker_method)
        with loader_of(dataset, worker_method=worker_method, seed=2, **shuffled()) as loader:
            return [values_of(loader) for _ in range(3)]

    assert epochs_of("thread") == epochs_of("multiprocessing")
