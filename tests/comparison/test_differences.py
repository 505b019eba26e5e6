"""Differences: each kind is found, and said with its batch, its field, its sample and its dataset index."""

import functools
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torchstage
from tests.comparison.values import batches, places, with_other
from torchstage import StageLoader, compare
from torchstage.comparison.report import LoadersDiffer

Pair = namedtuple("Pair", ["first", "second"])
VALUES = torch.arange(200.0).reshape(20, 10)
BATCHES = [{"image": VALUES[at : at + 4].clone(), "labels": list("abcd"), "id": (at, 0.0)} for at in range(0, 20, 4)]


def loader_of(batches, epochs_differ=None):
    """A function that gives an iterator for each epoch. ``epochs_differ``: what changes the batches of the second."""
    num_begun = [0]

    def begin():
        num_begun[0] += 1
        found = [dict(batch) if isinstance(batch, dict) else batch for batch in batches]
        if epochs_differ is not None and num_begun[0] == 2:
            epochs_differ(found)
        return iter(found)

    return begin


def changed(change):
    """The batches, of which the third is changed."""
    batches = [{**batch, "image": batch["image"].clone()} for batch in BATCHES]
    batches[2] = change(batches[2]) or batches[2]
    return batches


def only(found):
    assert not found.equal
    [difference] = found.differences
    assert found.num_more == 0
    return difference


def compared(change, **arguments):
    one, other = loader_of(BATCHES), loader_of(changed(change))
    return only(compare(one, other, epochs=1, timed_epochs=0, **arguments))


def set_value(batch):
    batch["image"][1, 5] = -1


def set_zero(batch):
    batch["id"] = (8, -0.0)


KINDS = {
    "value": (set_value, "['image']", "95.0 at [1, 5]", "-1.0 at [1, 5]"),
    "dtype": (lambda b: {**b, "image": b["image"].double()}, "['image']", "float32 tensor", "float64 tensor"),
    "shape": (lambda b: {**b, "image": b["image"][:, :9]}, "['image']", "shape [4, 10]", "shape [4, 9]"),
    "item": (lambda b: {**b, "labels": ["a", "b", "x", "d"]}, "['labels']", "'c'", "'x'"),
    "tuple": (lambda b: {**b, "labels": tuple("abcd")}, "['labels']", "list of 4 str", "tuple of 4 str"),
    "keys": (lambda b: dict(reversed(b.items())), "", "keys 'image', 'labels', 'id'", "keys 'id', 'labels', 'image'"),
    "missing": (lambda b: {"image": b["image"], "id": b["id"]}, "", "dict of 3", "dict of 2"),
    "zero": (set_zero, "['id'][1]", "float: 0.0", "float: -0.0"),
    "integer": (lambda b: {**b, "id": (np.int64(8), 0.0)}, "['id'][0]", "int: 8", "numpy.int64"),
    "array": (lambda b: {**b, "image": b["image"].numpy()}, "['image']", "float32 tensor", "float32) array"),
    "named": (lambda b: {**b, "id": Pair(8, 0.0)}, "['id']", "tuple of 2", "Pair of 2"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_is_named_by_batch_field_and_what_both_have(kind):
    change, field, reference, candidate = KINDS[kind]
    difference = compared(change)
    assert (difference.epoch, difference.batch, difference.field) == (0, 2, field)
    assert reference in difference.reference
    assert candidate in difference.candidate
    assert f"epoch 0, batch 2{field and ', '}{field}" in str(difference)


def test_the_sample_is_named_and_its_index_is_not_guessed():
    difference = compared(set_value)
    assert (difference.sample, difference.index) == (1, None)
    assert "sample 1, dataset index unknown" in str(difference)


def test_nan_of_other_bits_is_a_difference_and_of_the_same_bits_is_none():
    nan = [torch.tensor([0x7FC00000 + at, 0], dtype=torch.int32).view(torch.float32) for at in range(2)]
    assert compare([nan[0]], [nan[0].clone()], epochs=1, timed_epochs=0).equal
    difference = only(compare([nan[0]], [nan[1]], epochs=1, timed_epochs=0))
    assert "0x7fc00000" in difference.reference
    assert "0x7fc00001" in difference.candidate


def test_large_samples_are_told_by_their_least_greatest_and_mean_value():
    batches = [torch.zeros(3, 500), torch.zeros(3, 500)]
    batches[1][2] += 1
    difference = only(compare([batches[0]], [batches[1]], epochs=1, timed_epochs=0))
    assert difference.sample == 2
    assert "min 1, max 1, mean 1" in difference.candidate


def test_batches_in_another_order_are_told_as_such():
    found = compare(BATCHES, [BATCHES[0], BATCHES[2], BATCHES[1], *BATCHES[3:]], epochs=1, timed_epochs=0)
    assert [difference.batch for difference in found.differences] == [1, 2]
    assert found.differences[0].note == "the candidate's batch 1 is the reference's batch 2"
    assert "epoch 0 has the same samples on both sides, in another order" in found.notes


def test_a_missing_last_batch_is_found_and_the_numbers_are_said():
    one, other = loader_of(BATCHES), loader_of(BATCHES[:-1])
    difference = only(compare(one, other, epochs=1, timed_epochs=0))
    assert (difference.batch, difference.candidate) == (4, "no batch: the epoch is over")
    assert difference.note == "the reference gives 5 batches, the candidate 4 batches"


@pytest.mark.fuzz
@settings(max_examples=50)
@given(st.lists(batches, min_size=1, max_size=3), st.data())
def test_one_other_leaf_anywhere_is_a_difference_in_every_order(given_batches, data):
    at = data.draw(st.integers(0, len(given_batches) - 1))
    changed = list(given_batches)
    changed[at] = with_other(changed[at], data.draw(st.sampled_from(places(changed[at]))), data.draw)
    for order in ("exact", "any"):
        assert compare(given_batches, list(given_batches), epochs=1, timed_epochs=0, order=order).equal
        found = compare(given_batches, changed, epochs=1, timed_epochs=0, order=order)
        assert not found.equal
        assert str(found)
        assert order == "any" or {difference.batch for difference in found.differences} == {at}


def test_what_is_not_read_is_not_claimed():
    one, other = loader_of(BATCHES), loader_of(BATCHES[:-1])
    found = compare(one, other, epochs=1, timed_epochs=0, max_batches=4)
    assert found.equal
    assert found.scope == "4 batches in 1 epoch, of each no more than the first 4"


def test_what_is_compared_by_pickle_is_said():
    batches = [[torch.ones(1), functools.partial(len, "a")]]
    found = compare(batches, batches, epochs=1, timed_epochs=0)
    assert found.equal
    assert found.notes == ("[1], a functools.partial, is compared by its pickle",)


def test_another_length_is_a_difference():
    class Longer(list):
        def __len__(self):
            return 9

    difference = compare(BATCHES, Longer(BATCHES), epochs=1, timed_epochs=0).differences[0]
    assert (difference.batch, difference.reference, difference.candidate) == (None, "len() is 5", "len() is 9")


def test_a_difference_in_the_second_epoch_alone_is_found():
    one, other = loader_of(BATCHES), loader_of(BATCHES, lambda batches: batches[0].update(id=(1, 1.0)))
    found = compare(one, other, epochs=2, timed_epochs=0)
    assert [(d.epoch, d.batch, d.field) for d in found.differences] == [(1, 0, "['id'][0]"), (1, 0, "['id'][1]")]
    assert compare(loader_of(BATCHES), loader_of(BATCHES), epochs=2, timed_epochs=0).equal


def test_differences_beyond_the_first_ones_are_counted():
    one, other = [torch.zeros(2)] * 30, [torch.ones(2)] * 30
    found = compare(one, other, epochs=1, timed_epochs=0, max_differences=4)
    assert (len(found.differences), found.num_more) == (4, 26)
    assert "and 26 more" in str(found)


def test_a_tolerance_lets_pass_what_is_near_and_nothing_else():
    one = [torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]]), torch.tensor([1])]
    near, far = one[0].clone(), one[0].clone()
    near[0, 1] += 1e-6
    far[0, 1] += 1e-3
    assert not compare(one, [near, one[1]], epochs=1, timed_epochs=0).equal
    assert compare(one, [near, one[1]], epochs=1, timed_epochs=0, tolerance=1e-5).equal
    difference = only(compare(one, [far, one[1]], epochs=1, timed_epochs=0, tolerance=1e-5))
    assert difference.reference == "2.0 at [0, 1]"
    assert not compare(one, [near, one[1] + 1], epochs=1, timed_epochs=0, tolerance=10.0).equal
    assert not compare(one, [near.double(), one[1]], epochs=1, timed_epochs=0, tolerance=1e-5).equal
    assert not compare([np.ones(2)], [np.ones(2) + 1e-3], epochs=1, timed_epochs=0, tolerance=(0, 1e-4)).equal


class Fails(Dataset):
    def __init__(self, index=None, error=ValueError):
        self.index, self.error = index, error

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.index:
            raise self.error(f"no sample {index}")
        return torch.tensor(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_error_in_the_same_place_is_equal_and_said(num_workers):
    reference = DataLoader(Fails(5), batch_size=4, num_workers=num_workers)  # torch's processes reword the message
    found = compare(reference, StageLoader(Fails(5), batch_size=4, num_workers=2), epochs=1, timed_epochs=0)
    assert found.equal, found
    assert "1 errors are the same on both sides" in found.notes


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Fails(), "a batch, int64 tensor of shape [4]"),
        (Fails(6), "raises ValueError: no sample 6"),
        (Fails(5, KeyError), "raises KeyError: 'no sample 5'"),
    ],
)
def test_another_error_or_none_is_a_difference(candidate, words):
    one, other = DataLoader(Fails(5), batch_size=4), StageLoader(candidate, batch_size=4, num_workers=2)
    difference = only(compare(one, other, epochs=1, timed_epochs=0))
    assert (difference.batch, difference.reference) == (1, "raises ValueError: no sample 5")
    assert words in difference.candidate


def test_a_loader_that_hangs_is_left_alone_and_is_never_equal():
    ends = threading.Event()

    def hangs():
        yield torch.ones(2)
        ends.wait()

    try:
        difference = only(compare(lambda: iter([torch.ones(2)] * 2), hangs, timeout=3.0))
        assert (difference.batch, difference.candidate) == (1, "nothing in 3 s")
        assert not compare(hangs, hangs, timeout=3.0).equal
    finally:
        ends.set()


def test_a_loader_that_raises_for_ever_is_left_alone():
    class Broken:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("gone")

    found = compare(Broken(), Broken(), epochs=1, timed_epochs=0)
    assert only(found).reference == "nothing but errors, 100 in a row"


def test_nothing_on_both_sides_is_not_called_equal():
    assert "nothing was compared" in only(compare([], [], epochs=2, timed_epochs=0)).note


def test_an_exception_says_what_print_says():
    compare(BATCHES, BATCHES, timed_epochs=0).raise_if_different()
    with pytest.raises(LoadersDiffer, match=r"epoch 0, batch 0, sample 0") as caught:
        compare([torch.zeros(2)], [torch.ones(2)], timed_epochs=0).raise_if_different()
    assert isinstance(caught.value, AssertionError)
    assert not caught.value.comparison.equal


def test_random_generators_are_seeded_alike_and_left_as_they_were():
    def draws():
        return DataLoader(TensorDataset(VALUES), batch_size=4, shuffle=True, collate_fn=noisy)

    def noisy(samples):
        return torch.rand(2), np.random.rand(2)

    torch.manual_seed(7)
    np.random.seed(7)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(7)
    np.random.seed(7)
    assert compare(draws, draws).equal
    assert not compare(draws, draws, seed=None, timed_epochs=0).equal
    assert compare(draws, draws, seed=5, timed_epochs=0).notes == ()
    torch.manual_seed(7)
    np.random.seed(7)
    compare(draws, draws, timed_epochs=0)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


def test_one_generator_for_both_loaders_is_noticed():
    generator = torch.Generator()
    loaders = [DataLoader(VALUES, batch_size=4, shuffle=True, generator=generator) for _ in range(2)]
    found = compare(*loaders, timed_epochs=0)
    assert not found.equal
    assert any("one generator object" in note for note in found.notes)


def test_epochs_that_are_the_same_are_noticed():
    sampler = [torch.utils.data.DistributedSampler(VALUES, num_replicas=2, rank=0) for _ in range(2)]
    loaders = [DataLoader(VALUES, batch_size=2, sampler=each) for each in sampler]
    assert any("pass set_epoch=True" in note for note in compare(*loaders, timed_epochs=0).notes)
    assert compare(*loaders, timed_epochs=0, set_epoch=True).notes == ()
    assert compare(BATCHES, BATCHES, timed_epochs=0).notes == (
        "epoch 1 is the same as epoch 0 on both sides: nothing shuffles",
    )


def test_costs_are_those_of_each_loader():
    found = compare(lambda: DataLoader(VALUES, batch_size=6), lambda: StageLoader(VALUES, batch_size=6, num_workers=2))
    for cost in (found.reference, found.candidate):
        assert (cost.num_epochs, cost.num_batches, cost.num_samples) == (1, 4, 20)
        assert cost.seconds > cost.first_batch_seconds > 0
        assert cost.peak_bytes is None or cost.peak_bytes > 2**20
    assert found.as_dict()["equal"] is True
    table = str(found)
    for words in ("EQUAL: 8 batches in 2 epochs", "samples a second", "CPU seconds", "peak memory"):
        assert words in table


class Counted(IterableDataset):
    def __init__(self, odd=None):
        self.odd = odd

    def __iter__(self):
        for number in range(10):
            yield -1 if number == self.odd else number


def test_of_an_iterable_dataset_the_place_is_told():
    found = compare(DataLoader(Counted(), batch_size=4), DataLoader(Counted(6), batch_size=4), epochs=1, timed_epochs=0)
    difference = only(found)
    assert (difference.batch, difference.sample, difference.index) == (1, 2, None)
    assert "dataset indices are unknown: an iterable dataset has no indices" in found.notes


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (iter([1]), "used up after one epoch"),
        (3, "cannot be iterated"),
        (lambda: 3, "cannot be iterated"),
    ],
)
def test_what_cannot_be_read_is_refused(reference, words):
    with pytest.raises(TypeError, match=words):
        compare(reference, BATCHES)


@pytest.mark.parametrize(
    "arguments",
    [
        {"epochs": 0},
        {"max_differences": 0},
        {"timed_epochs": -1},
        {"order": "some"},
        {"restart": "soon"},
        {"restart": 2},
        {"max_batches": 0},
        {"ranks": 0},
        {"timeout": 0},
        {"process_group": True},
        {"order": "any", "tolerance": 1.0},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=r"torchstage\.compare"):
        compare(BATCHES, BATCHES, **{"timed_epochs": 0, **arguments})


def test_the_function_is_there_without_being_imported_first():
    assert torchstage.compare is compare
    assert torchstage.Comparison is type(compare(BATCHES, BATCHES, timed_epochs=0))
    with pytest.raises(AttributeError):
        _ = torchstage.nothing_of_this_name
