"""The signature and the attributes: whatever code passes to DataLoader or reads from it works with StageLoader."""

import inspect
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from torchstage import Stage, StageLoader

from .datasets import Indices, as_given
from .ways import INLINE, STAGED_INLINE, lists, on, on_both, on_both_classes

TORCH_PARAMETERS = inspect.signature(DataLoader).parameters
OUR_PARAMETERS = inspect.signature(StageLoader).parameters
PARAMETERS = [name for name in OUR_PARAMETERS if name in TORCH_PARAMETERS]
OURS_ALONE = [name for name in OUR_PARAMETERS if name not in TORCH_PARAMETERS]

GUARDED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


def test_torch_s_parameters_have_torch_s_order_kinds_and_defaults() -> None:
    assert list(OUR_PARAMETERS)[: len(TORCH_PARAMETERS)] == list(TORCH_PARAMETERS)
    for name, torch_s in TORCH_PARAMETERS.items():
        assert (OUR_PARAMETERS[name].kind, OUR_PARAMETERS[name].default) == (torch_s.kind, torch_s.default), name


def test_thirteen_parameters_are_positional_and_four_are_keywords() -> None:
    kinds = [OUR_PARAMETERS[name].kind for name in PARAMETERS]
    assert kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 13 + [inspect.Parameter.KEYWORD_ONLY] * 4


def test_our_own_parameters_are_optional_keywords() -> None:
    assert OURS_ALONE
    for name in OURS_ALONE:
        assert OUR_PARAMETERS[name].kind is inspect.Parameter.KEYWORD_ONLY, name
        assert OUR_PARAMETERS[name].default is not inspect.Parameter.empty, name


def test_no_parameter_hides_behind_stars() -> None:
    """Frameworks that rebuild a loader read the signature."""
    stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    assert not [name for name, parameter in OUR_PARAMETERS.items() if parameter.kind in stars]


@on_both_classes
def test_all_thirteen_can_be_given_by_position(loader_class: type[DataLoader]) -> None:
    generator = torch.Generator().manual_seed(5)
    given = (Indices(7), 3, True, None, None, 0, as_given, False, True, 0, None, None, generator)
    order = torch.randperm(7, generator=seeded_as_random_sampler(5)).tolist()
    assert list(loader_class(*given)) == [order[0:3], order[3:6]]


def seeded_as_random_sampler(seed: int) -> torch.Generator:
    """A given generator first gives iter() its base seed; then RandomSampler permutes with it."""
    generator = torch.Generator().manual_seed(seed)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    return generator


@on_both_classes
def test_a_fourteenth_by_position_is_refused(loader_class: type[DataLoader]) -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        loader_class(Indices(7), 3, True, None, None, 0, None, False, True, 0, None, None, None, 2)


@on_both_classes
def test_an_unknown_keyword_is_refused(loader_class: type[DataLoader]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        loader_class(Indices(7), batchsize=3)


def every_argument() -> dict[str, Any]:
    """Each argument with a value that is not its default; no two of them exclude each other."""
    return {
        "dataset": Indices(9),
        "batch_size": 2,
        "sampler": [4, 3, 2],
        "num_workers": 2,
        "collate_fn": as_given,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 7.5,
        "worker_init_fn": print,
        "multiprocessing_context": torch.multiprocessing.get_context("spawn"),
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "cuda",
        "in_order": False,
    }


@on_both_classes
def test_an_argument_is_an_attribute_of_its_name(loader_class: type[DataLoader]) -> None:
    given = every_argument()
    loader = loader_class(**given)
    assert [name for name in given if getattr(loader, name) is not given[name]] == []


@on_both
def test_attributes_that_nobody_gave_are_torch_s(make_loader: Any) -> None:
    dataset = Indices(5)
    ours, theirs = make_loader(dataset), DataLoader(dataset, num_workers=make_loader.num_workers)
    for name in set(vars(theirs)) - {"sampler", "batch_sampler"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert type(ours.sampler) is SequentialSampler
    assert ours.batch_sampler.sampler is ours.sampler
    assert ours.prefetch_factor == (2 if make_loader.num_workers else None)


@on_both_classes
def test_a_batch_sampler_leaves_no_batch_size(loader_class: type[DataLoader]) -> None:
    batches = [[1], [2, 3]]
    loader = loader_class(Indices(5), batch_sampler=batches)
    assert loader.batch_sampler is batches
    assert (loader.batch_size, loader.drop_last) == (None, False)


@on_both_classes
def test_without_batching_there_is_no_batch_sampler(loader_class: type[DataLoader]) -> None:
    loader = loader_class(Indices(5), batch_size=None)
    assert (loader.batch_size, loader.batch_sampler) == (None, None)
    assert loader.collate_fn is torch.utils.data.default_convert


OUR_DEFAULTS = {
    "stages": (),
    "worker_method": "auto",
    "lanes": None,
    "device": None,
    "prefetch_bytes": None,
    "isolation": "auto",
    "seed": None,
    "sample_rng": True,
    "prefetch_epochs": False,
    "snapshot_every_n_steps": 1,
    "on_error": "raise",
    "max_bad_samples": None,
}
OUR_VALUES = {
    "stages": (Stage(int),),
    "worker_method": "multiprocessing",
    "lanes": 3,
    "device": "cpu",
    "prefetch_bytes": 1 << 20,
    "isolation": "serial",
    "seed": 5,
    "sample_rng": False,
    "prefetch_epochs": True,
    "snapshot_every_n_steps": 4,
    "on_error": "skip",
    "max_bad_samples": 0.5,
}


def test_our_own_arguments_are_these_with_these_defaults() -> None:
    assert {name: OUR_PARAMETERS[name].default for name in OURS_ALONE} == OUR_DEFAULTS


@pytest.mark.parametrize("name", OUR_DEFAULTS)
def test_our_own_argument_is_an_attribute_too(name: str) -> None:
    assert getattr(StageLoader(Indices(5)), name) == OUR_DEFAULTS[name]
    needed = {"num_workers": 1, "persistent_workers": True} if name == "prefetch_epochs" else {}
    assert getattr(StageLoader(Indices(5), **needed, **{name: OUR_VALUES[name]}), name) == OUR_VALUES[name]


def test_our_own_arguments_are_found_by_frameworks() -> None:
    """Lightning rebuilds a loader from ``vars(loader)``: what is not there is lost without a word."""
    assert {name: vars(StageLoader(Indices(5)))[name] for name in OURS_ALONE} == OUR_DEFAULTS
    loader = StageLoader(Indices(5), num_workers=1, persistent_workers=True, **OUR_VALUES)
    assert {name: vars(loader)[name] for name in OURS_ALONE} == OUR_VALUES


@pytest.mark.parametrize("lanes", [0, -1, 1.5, "2", True])
def test_lanes_are_counted_from_one(lanes: Any) -> None:
    with pytest.raises(ValueError, match="lanes must be a positive integer or None, got"):
        StageLoader(Indices(5), lanes=lanes)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.0, "5", False])
def test_a_seed_fits_into_63_bits(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be an integer from 0 to"):
        StageLoader(Indices(5), seed=seed)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_smallest_and_the_largest_seed_are_fine(seed: int) -> None:
    assert lists(StageLoader(Indices(3), batch_size=2, num_workers=2, seed=seed)) == [[0, 1], [2]]


@on_both
def test_a_loader_rebuilt_from_its_public_attributes_gives_the_same_batches(make_loader: Any) -> None:
    loader = make_loader(Indices(7), batch_size=3, sampler=[6, 0, 5, 1, 4], drop_last=True)
    known = {name: value for name, value in vars(loader).items() if name in PARAMETERS}
    known["multiprocessing_context"] = loader.multiprocessing_context
    known.pop("batch_sampler")
    assert lists(type(loader)(**known)) == lists(loader) == [[6, 0, 5]]


@on_both_classes
def test_what_decides_the_order_cannot_be_set_afterwards(loader_class: type[DataLoader]) -> None:
    loader = loader_class(Indices(5))
    for name in GUARDED:
        message = f"{name} attribute should not be set after {loader_class.__name__} is initialized"
        with pytest.raises(ValueError, match=message):
            setattr(loader, name, getattr(loader, name))


@on_both
def test_other_attributes_count_from_the_next_epoch_on(make_loader: Any) -> None:
    loader = make_loader(Indices(4), batch_size=2)
    assert lists(loader) == [[0, 1], [2, 3]]
    loader.collate_fn = sum
    assert list(loader) == [1, 5]
    loader.user_s_own = "kept"
    assert loader.user_s_own == "kept"


@on(INLINE, STAGED_INLINE)
def test_workers_can_be_added_after_the_start(make_loader: Any) -> None:
    loader = make_loader(Indices(4), batch_size=2)
    loader.num_workers = 2
    loader.prefetch_factor = 1
    assert lists(loader) == [[0, 1], [2, 3]]


def test_it_is_a_dataloader() -> None:
    assert issubclass(StageLoader, DataLoader)
    assert isinstance(StageLoader(Indices(3)), DataLoader)


@on_both_classes
def test_the_class_can_be_subscripted(loader_class: type[DataLoader]) -> None:
    assert loader_class[int].__origin__ is loader_class
    assert lists(loader_class[int](Indices(3), batch_size=2)) == [[0, 1], [2]]


@on_both
def test_a_user_s_subclass_adds_arguments_and_wraps_iteration(make_loader: Any) -> None:
    class Doubling(make_loader.loader_class):
        def __init__(self, dataset: Any, factor: int, **arguments: Any) -> None:
            self.factor = factor
            super().__init__(dataset, **arguments)

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch * self.factor

        def __len__(self) -> int:
            return super().__len__() + 100

    loader = Doubling(Indices(3), 2, batch_size=2, num_workers=make_loader.num_workers)
    assert lists(loader) == [[0, 2], [4]]
    assert len(loader) == 102


@on_both
def test_a_subclass_may_replace_its_iterator(make_loader: Any) -> None:
    class Reversing(make_loader.loader_class):
        def _get_iterator(self) -> Any:
            return iter(list(super()._get_iterator())[::-1])

    assert lists(Reversing(Indices(3), num_workers=make_loader.num_workers)) == [[2], [1], [0]]
