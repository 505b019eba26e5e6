"""Collate: torch's own batches; and where samples do not fit, which one, in which field, and how."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from torchstage import StageLoader
from torchstage.collate import MAX_LINES, diagnose


class Made(Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, make, length=8):
        self.make = make
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


def diagnosis_of(make, num_workers=2) -> tuple[Exception, list[str]]:
    """What is raised for a batch of eight samples with the dataset indices 10, 11, ..., and what its note says."""
    loader = StageLoader(Made(make, 18), sampler=range(10, 18), batch_size=8, num_workers=num_workers)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's, of several types
        next(iter(loader))
    *diagnoses, where = caught.value.__notes__
    assert where == "torchstage: raised in stage 'collate', batch 0"
    if not diagnoses:
        return caught.value, []
    heading, *lines = diagnoses[0].split("\n  ")
    assert heading.endswith("do not fit together:")
    return caught.value, lines


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_tensor_of_another_shape_is_named_by_index_and_shapes(num_workers):
    error, lines = diagnosis_of(lambda index: torch.zeros(3, 5 if index == 13 else 4), num_workers)
    assert isinstance(error, RuntimeError)
    assert "stack expects each tensor to be equal size" in str(error)
    assert lines == ["sample of dataset index 13 is Tensor of shape (3, 5); 7 of 8 samples have Tensor of shape (3, 4)"]


def test_a_field_of_a_dict_is_named():
    _, lines = diagnosis_of(lambda index: {"id": index, "seq": torch.zeros(7 if index == 16 else 9)})
    assert lines == [
        "sample['seq'] of dataset index 16 is Tensor of shape (7,); 7 of 8 samples have Tensor of shape (9,)"
    ]


def test_a_nested_field_is_named():
    _, lines = diagnosis_of(lambda index: (index, {"views": [torch.zeros(2), torch.zeros(2 + (index == 12))]}))
    assert lines == [
        "sample[1]['views'][1] of dataset index 12 is Tensor of shape (3,); 7 of 8 samples have Tensor of shape (2,)"
    ]


def test_a_field_of_a_named_tuple_is_named_by_its_place():
    Pair = namedtuple("Pair", "image label")
    _, lines = diagnosis_of(lambda index: Pair(torch.zeros(1 + (index == 11)), 0))
    assert lines == ["sample[0] of dataset index 11 is Tensor of shape (2,); 7 of 8 samples have Tensor of shape (1,)"]


def test_a_missing_key_is_named():
    error, lines = diagnosis_of(lambda index: {"a": 1} if index == 14 else {"a": 1, "b": 2})
    assert isinstance(error, KeyError)
    assert lines == [
        "sample of dataset index 14 is dict with keys ['a']; 7 of 8 samples have dict with keys ['a', 'b']"
    ]


def test_none_among_tensors_is_named():
    error, lines = diagnosis_of(lambda index: {"box": None if index == 15 else torch.zeros(4)})
    assert isinstance(error, TypeError)
    assert lines == [
        "sample['box'] of dataset index 15 is NoneType; 7 of 8 samples have Tensor of shape (4,)",
    ]


def test_none_in_the_first_place_is_named_too():
    _, lines = diagnosis_of(lambda index: None if index == 10 else torch.zeros(4))
    assert lines == ["sample of dataset index 10 is NoneType; 7 of 8 samples have Tensor of shape (4,)"]


def test_lists_of_unequal_length_are_named():
    _, lines = diagnosis_of(lambda index: [0] * (2 + (index == 17)))
    assert lines == ["sample of dataset index 17 is list of length 3; 7 of 8 samples have list of length 2"]


def test_an_array_of_another_shape_is_named():
    _, lines = diagnosis_of(lambda index: np.zeros(2 + (index == 13)))
    assert lines == ["sample of dataset index 13 is ndarray of shape (3,); 7 of 8 samples have ndarray of shape (2,)"]


def test_several_odd_samples_are_all_named_up_to_a_number():
    _, lines = diagnosis_of(lambda index: torch.zeros(index))
    assert len(lines) == 7
    lines = diagnose([torch.zeros(n) for n in range(50)], [str(n) for n in range(50)])
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"... and {49 - MAX_LINES} more"


def test_samples_that_fit_but_cannot_be_collated_get_no_diagnosis():
    error, lines = diagnosis_of(lambda index: object())
    assert isinstance(error, TypeError)
    assert lines == []


def test_numbers_of_all_kinds_fit_together():
    assert diagnose([1, 2.0, True], ["0", "1", "2"]) == []


def test_a_batch_taken_whole_is_diagnosed_as_well():
    class Whole(Made):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    loader = StageLoader(Whole(lambda index: torch.zeros(1 + (index == 5))), batch_size=8, num_workers=2)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(iter(loader))
    assert "sample of dataset index 5 is Tensor of shape (2,)" in caught.value.__notes__[0]


def test_a_collate_function_of_the_users_is_not_second_guessed():
    def collate(samples):
        return torch.stack(samples)

    loader = StageLoader(Made(lambda index: torch.zeros(index)), batch_size=8, num_workers=2, collate_fn=collate)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(iter(loader))
    assert caught.value.__notes__ == ["torchstage: raised in stage 'collate', batch 0"]


def test_a_batch_is_what_default_collate_makes_of_it():
    samples = [{"a": torch.ones(2), "b": (1, "x")}, {"a": torch.zeros(2), "b": (2, "y")}]
    (made,) = StageLoader(samples, batch_size=2, num_workers=2)
    assert made.keys() == {"a", "b"}
    assert made["a"].tolist() == [[1, 1], [0, 0]]
    assert made["b"][0].tolist() == [1, 2]
    assert made["b"][1] == ("x", "y")


class Moody(dict):
    """Gives what it has once: to collate."""

    def __getitem__(self, key):
        value = super().__getitem__(key)
        if self.get("asked"):
            raise OSError("the file was closed meanwhile")
        self["asked"] = True
        return value


def test_samples_that_cannot_be_diagnosed_do_not_hide_the_error():
    error, lines = diagnosis_of(lambda index: Moody(seq=torch.zeros(index)))
    assert "equal size" in str(error)
    assert lines == []


def test_a_sample_that_holds_itself_ends_in_an_error_and_not_in_a_hang():
    def make(index):
        circle: list = [index]
        circle.append(circle)
        return circle

    loader = StageLoader(Made(make), batch_size=8, num_workers=2)
    with pytest.raises(RecursionError):
        next(iter(loader))
