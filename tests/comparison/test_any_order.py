"""Any order: loaders that hand out what is ready first have the same samples, counted."""

import pytest
import torch
from torch.utils.data import DataLoader

from tests.comparison.data import Squares
from torchstage import compare

ROWS = torch.arange(24.0).reshape(12, 2)


def batches(order, sizes=(4, 4, 4)):
    rows = ROWS[list(order)]
    return [{"x": part, "n": [str(int(row[0])) for row in part]} for part in rows.split(list(sizes))]


def any_order(one, other):
    return compare(one, other, epochs=1, timed_epochs=0, order="any")


def test_the_same_samples_in_another_order_and_other_batches_are_equal():
    order = [5, 1, 9, 2, 0, 11, 3, 4, 6, 7, 8, 10]
    found = any_order(batches(range(12)), batches(order))
    assert found.equal, found
    assert "in any order" in str(found)
    assert not compare(batches(range(12)), batches(order), epochs=1, timed_epochs=0).equal


def test_the_whole_of_a_sample_counts_not_each_field_for_itself():
    mixed = batches(range(12))
    mixed[0]["x"] = mixed[0]["x"].flip(0)  # the same values and the same names, but not together
    assert not any_order(batches(range(12)), mixed).equal


def test_samples_are_counted():
    found = any_order(batches([0, 0, *range(2, 12)]), batches([0, 1, *range(2, 12)]))
    assert [(d.reference, d.candidate) for d in found.differences] == [
        ("2 x this sample", "1 x this sample"),
        ("0 x this sample", "1 x this sample"),
    ]


def test_a_sample_that_one_of_them_has_not_is_named_with_its_index():
    one, other = DataLoader(Squares(), 4, shuffle=True), DataLoader(Squares(odd=9), 4, shuffle=True)
    found = any_order(one, other)
    assert [difference.index for difference in found.differences] == [9, 9]


def test_other_sizes_of_batches_are_a_difference():
    [difference] = any_order(batches(range(12)), batches(range(12), (6, 4, 2))).differences
    assert difference.reference == "batches of 4 (3 x)"
    assert difference.candidate == "batches of 2 (1 x), 4 (1 x), 6 (1 x)"


@pytest.mark.parametrize("change", ["double", "int", "half"])
def test_a_dtype_is_part_of_each_sample(change):
    other = [{**batch, "x": getattr(batch["x"], change)()} for batch in batches(range(12))]
    assert not any_order(batches(range(12)), other).equal


def test_where_samples_cannot_be_told_whole_batches_are_compared():
    one = [(torch.ones(2), torch.ones(3) * n) for n in range(3)]
    assert any_order(one, one[::-1]).equal
    found = any_order(one, [*one[:2], one[1]])
    assert not found.equal
    assert any("whole batches are compared" in note for note in found.notes)


def test_lists_of_samples_are_compared_sample_by_sample():
    def loader(order, odd=None):
        return DataLoader(Squares(odd=odd), batch_size=4, sampler=order, collate_fn=list)

    order = [5, 1, 9, 2, 0, 11, 3, 4, 6, 7, 8, 10]
    assert any_order(loader(list(range(12))), loader(order)).equal
    assert not any_order(loader(list(range(12))), loader(order, odd=3)).equal
    tuples = DataLoader(Squares(), batch_size=4, sampler=order, collate_fn=tuple)
    assert not any_order(loader(list(range(12))), tuples).equal
