"""prefetch_epochs, and what changes between two epochs: early work that does not fit any more is done again."""

import threading
import types
import warnings

import numpy as np
import pytest
import torch
from epochs import Noted, Notes, both, loader_of, values_of, wait_for
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from torchstage import Stage
from torchstage.samplers import ElasticSampler

LENGTH = 10
SETTING = types.SimpleNamespace(added=0)
ADDED = 0


def shuffled():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(5)}


class Told(Noted):
    """It has parts, and looks at a variable of its module."""

    def __init__(self, notes):
        super().__init__(LENGTH, notes)
        self.transform = types.SimpleNamespace(scale=1.0, inner=[types.SimpleNamespace(by=0.0)])
        self.mapping = {"a": 1.0}
        self.names = ["x"]

    def __getitem__(self, index):
        row = super().__getitem__(index)
        told = [self.transform.scale, self.transform.inner[0].by, self.mapping["a"], len(self.names), ADDED, self.kind]
        return torch.cat([row, torch.tensor(told, dtype=torch.float64)])

    kind = 0


def _set(name, value):
    return lambda dataset: setattr(dataset, name, value)


def _set_global(dataset):
    global ADDED
    ADDED += 1


CHANGES = {
    "an attribute": _set("added", 1),
    "an element of a list": lambda dataset: dataset.listed.__setitem__(1, 7.0),
    "a list that grows": lambda dataset: dataset.names.append("y"),
    "an entry of a dict": lambda dataset: dataset.mapping.update(a=2.0),
    "an array": lambda dataset: dataset.array.__setitem__(2, 3.0),
    "a part's attribute": lambda dataset: setattr(dataset.transform, "scale", 2.0),
    "a part deep inside": lambda dataset: setattr(dataset.transform.inner[0], "by", 2.0),
    "the whole part": _set("transform", types.SimpleNamespace(scale=5.0, inner=[types.SimpleNamespace(by=1.0)])),
    "its class": lambda dataset: setattr(Told, "kind", Told.kind + 1),
    "a variable of its module": _set_global,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_what_is_changed_between_two_epochs_counts_from_the_first_batch_on(change, num_workers):
    notes = Notes()

    def make(prefetch_epochs):
        return loader_of(Told(notes), prefetch_epochs=prefetch_epochs, num_workers=num_workers, **shuffled())

    def story(loader):
        notes.clear()
        epochs = [values_of(loader)]
        if loader.prefetch_epochs:
            notes.wait_for(2 * LENGTH)  # all of the next epoch is there already
        kind, added = Told.kind, ADDED
        CHANGES[change](loader.dataset)
        epochs += [values_of(loader) for _ in range(2)]
        Told.kind, globals()["ADDED"] = kind, added
        return epochs

    both(make, story)


def test_what_is_changed_and_put_back_while_batches_are_begun_leaves_no_trace():
    notes = Notes()

    def make(prefetch_epochs):
        return loader_of(Noted(LENGTH, notes), prefetch_epochs=prefetch_epochs, **shuffled())

    def story(loader):
        notes.clear()
        notes.allow(LENGTH)
        epochs = [values_of(loader)]  # threads are at the first samples of the next epoch, at most
        loader.dataset.added = 9
        notes.allow(LENGTH)
        if loader.prefetch_epochs:
            notes.wait_for(2 * LENGTH)
        loader.dataset.added = 0
        notes.allow(5 * LENGTH)
        return [*epochs, values_of(loader)]

    both(make, story)


def test_stages_that_were_replaced_count():
    def make(prefetch_epochs):
        return loader_of(Noted(LENGTH), prefetch_epochs=prefetch_epochs, stages=[Stage(torch.neg)], **shuffled())

    def story(loader):
        epochs = [values_of(loader)]
        loader.stages = (Stage(torch.abs),)
        return [*epochs, values_of(loader), values_of(loader)]

    both(make, story)


def test_modes_of_torch_that_are_others_count():
    def make(prefetch_epochs):
        return loader_of(Noted(LENGTH), prefetch_epochs=prefetch_epochs, collate_fn=_with_mode, **shuffled())

    def story(loader):
        epochs = [list(loader)]
        with torch.no_grad():
            epochs += [list(loader), list(loader)]
        return epochs

    epochs = both(make, story)
    assert [[mode for mode, _ in epoch] for epoch in epochs] == [[True] * 5, [False] * 5, [False] * 5]


def _with_mode(samples):
    return torch.is_grad_enabled(), torch.stack(samples).tolist()


SAMPLERS = {
    "distributed": lambda dataset: DistributedSampler(dataset, 2, 1),
    "elastic": lambda dataset: ElasticSampler(dataset, 1, 0),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_epoch_that_is_set_late_is_the_one_that_comes(sampler):
    notes = Notes()

    def make(prefetch_epochs):
        dataset = Noted(LENGTH, notes)
        return loader_of(dataset, prefetch_epochs=prefetch_epochs, sampler=SAMPLERS[sampler](dataset))

    def story(loader):
        notes.clear()
        epochs, num_samples = [], len(loader.sampler)
        for number in (0, 7, 14, 3):
            loader.sampler.set_epoch(number)
            epochs.append(values_of(loader))
            if loader.prefetch_epochs:
                wait_for(lambda: notes.total >= num_samples * (len(epochs) + 1))
        return epochs

    both(make, story)


def test_an_epoch_that_is_set_before_the_last_one_is_over_is_begun_early():
    notes = Notes()
    dataset = Noted(60, notes)
    with loader_of(dataset, sampler=ElasticSampler(dataset, 1, 0)) as loader:
        batches = iter(loader)
        next(batches)
        loader.sampler.set_epoch(5)
        list(batches)
        notes.wait_for(60 + 17 * 2)
        list(loader)
        assert notes.total < 2 * 60 + 17 * 2 + 1  # nothing was made twice


def test_steps_of_the_epoch_s_number_are_learned():
    notes = Notes()
    dataset = Noted(LENGTH, notes)
    with loader_of(dataset, sampler=ElasticSampler(dataset, 1, 0)) as loader:
        for number, total in (0, 2), (10, 4), (20, 5):  # with the one that is begun; the first guess was wrong
            loader.sampler.set_epoch(number)
            list(loader)
            notes.wait_for(total * LENGTH)
        loader.sampler.set_epoch(30)
        list(loader)
        notes.wait_for(6 * LENGTH)


def test_an_epoch_that_is_left_early_is_followed_by_the_next():
    def make(prefetch_epochs):
        return loader_of(Noted(LENGTH), prefetch_epochs=prefetch_epochs, **shuffled())

    def story(loader):
        epochs = []
        for num_batches in (5, 2, 1, 4, 5, 0, 3):
            batches = iter(loader)
            epochs.append(values_of(next(batches) for _ in range(num_batches)))
        return epochs

    both(make, story)


def test_an_order_that_others_draw_from_is_begun_in_vain_three_times():
    generator = torch.Generator().manual_seed(2)
    dataset = Noted(LENGTH)
    other = DataLoader(range(3), generator=generator)
    with loader_of(dataset, shuffle=True, generator=generator) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                list(loader)
                list(other)  # it draws its base seed from there
        with pytest.warns(UserWarning, match="begun 3 epochs early in vain, the last one because the sampler gave"):
            list(loader)
        notes = Notes()
        dataset.notes = notes.number
        list(loader)
        assert notes.total == LENGTH


def test_a_dataset_that_every_epoch_changes_is_named():
    dataset = Noted(LENGTH)
    with loader_of(dataset, **shuffled()) as loader:
        for epoch in range(3):
            dataset.added = epoch
            list(loader)
        dataset.added = 3
        with pytest.warns(UserWarning, match=r"because dataset\.added was changed between two epochs"):
            list(loader)


class Odd(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        return 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, r"RandomSampler draws its order from .* generator=torch.Generator\(\).manual_seed"),
        ({"sampler": RandomSampler(range(4))}, "RandomSampler draws its order from"),
        ({"sampler": Odd()}, "the order of a Odd is not known before it is asked for"),
        ({"batch_sampler": [[0, 1], [2, 3]], "batch_size": 1}, "the batches of a batch sampler of your own, a list"),
        ({"sample_rng": False}, "with sample_rng=False samples draw from the process's"),
    ],
)
def test_where_the_next_epoch_is_not_certain_one_warning_says_what_would_make_it_so(arguments, words):
    notes = Notes()
    with loader_of(Noted(4, notes), **arguments) as loader:
        with pytest.warns(UserWarning, match=f"prefetch_epochs=True begins no epoch early: .*{words}"):
            list(loader)
        list(loader)
        assert notes.total == 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_a_dataset_without_an_order_has_none_that_is_certain():
    with loader_of(Stream(), num_workers=1) as loader:
        with pytest.warns(UserWarning, match="what a Stream reads next is not known before it is asked for it"):
            assert len(list(loader)) == 2
        assert len(list(loader)) == 2


def test_an_array_of_objects_may_be_held():
    def make(prefetch_epochs):
        dataset = Noted(LENGTH)
        dataset.objects = np.array([object(), 3, None], dtype=object)
        dataset.sparse = torch.eye(3).to_sparse()
        dataset.lock = threading.Lock()
        return loader_of(dataset, prefetch_epochs=prefetch_epochs, **shuffled())

    both(make, lambda loader: [values_of(loader) for _ in range(3)])
