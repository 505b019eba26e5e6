"""Arguments: what every framework relies on when it rebuilds a loader from what it can see of it."""

import inspect
from typing import Any

import pytest
import torch

from torchstage import StageLoader

from .fed import EVERY, OF_ITERABLE, ORDER, Augmented, Stream, assert_kept, parameters


def test_each_argument_has_a_value_here_that_is_not_its_default() -> None:
    """A new argument must be looked at in these tests, too."""
    known = parameters()
    assert set(EVERY) | ORDER == set(known)
    assert [name for name, value in EVERY.items() if value == known[name].default] == []


def test_no_argument_hides_behind_stars() -> None:
    """Lightning takes names out of the signature: `**kwargs` would tell it nothing."""
    kinds = {parameter.kind for parameter in parameters().values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("dataset", "arguments"), [(Augmented(8), EVERY), (Stream(8), OF_ITERABLE)], ids=["map", "iterable"]
)
def test_each_argument_is_a_public_attribute_of_its_name(dataset: object, arguments: dict[str, Any]) -> None:
    assert_kept(StageLoader(dataset, **arguments), arguments)


def test_each_public_attribute_is_an_argument() -> None:
    """Ignite hands all of them to the class, but for those that a batch sampler stands for."""
    loader = StageLoader(Augmented(8), **EVERY)
    public = {name for name in vars(loader) if not name.startswith("_")}
    assert public <= set(parameters())


def test_defaults_are_taken_back_as_arguments() -> None:
    first = StageLoader(Augmented(8))
    public = {name: value for name, value in vars(first).items() if name in parameters()}
    for name in ("batch_size", "sampler", "drop_last"):  # the batch sampler stands for them
        del public[name]
    second = StageLoader(**public)
    assert {name: getattr(second, name) for name in public} == public


def test_an_iterated_loader_shows_no_more_than_before() -> None:
    loader = StageLoader(Augmented(8), batch_size=3, num_workers=2, persistent_workers=True)
    before = set(vars(loader))
    with loader:
        torch.cat(list(loader))
        assert {name for name in set(vars(loader)) - before if not name.startswith("_")} == set()
