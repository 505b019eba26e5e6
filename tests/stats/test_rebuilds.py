"""Rebuilds: a loader that a framework makes of another has its counters; others have their own."""

import copy

import pytest

from torchstage import Stage, StageLoader

from .working import as_it_is


class Numbers:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def loader_of(dataset=None, **arguments):
    return StageLoader(dataset or Numbers(), batch_size=2, num_workers=1, collate_fn=as_it_is, **arguments)


def rebuilt(loader, **others):
    """What a framework does that knows nothing but public attributes."""
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    for name in ("sampler", "batch_sampler"):
        del public[name]
    return type(loader)(**{**public, **others})


def epoch_of(loader):
    with loader:
        for _ in loader:
            pass


@pytest.mark.parametrize("stages", [(), [Stage(str)]])
def test_a_rebuilt_loader_and_its_origin_tell_the_same(stages):
    origin = loader_of(stages=stages)
    epoch_of(origin)
    again = rebuilt(rebuilt(origin), batch_size=4)
    epoch_of(again)
    assert origin.stats().batches == again.stats().batches == 4 + 2
    assert origin.stats(origin.stats()).batches == again.stats(origin.stats()).batches == 0


def test_stages_of_a_loader_of_another_dataset_carry_no_counters():
    origin = loader_of(stages=[Stage(str)])
    other = loader_of(Numbers(), stages=origin.stages)
    epoch_of(origin)
    assert (origin.stats().batches, other.stats().batches) == (4, 0)
    assert other.stages == origin.stages


def test_stages_that_were_set_anew_leave_the_counters_where_they_are():
    loader = loader_of()
    epoch_of(loader)
    loader.stages = (Stage(str),)
    epoch_of(loader)
    assert loader.stats().batches == 8
    assert [stage.name for stage in loader.stats().stages] == ["fetch", "str", "collate"]


def test_copies_count_for_themselves():
    origin = loader_of(stages=[Stage(str)])
    epoch_of(origin)
    for other in (copy.copy(origin), copy.deepcopy(origin)):
        assert other.stats().batches == 0
        epoch_of(other)
        assert other.stats().batches == 4
    assert type(copy.deepcopy(origin.stages)) is tuple
    assert origin.stats().batches == 4


def test_two_loaders_of_a_dataset_count_apart():
    dataset = Numbers()
    first, second = loader_of(dataset), loader_of(dataset)
    epoch_of(first)
    assert (first.stats().batches, second.stats().batches) == (4, 0)
