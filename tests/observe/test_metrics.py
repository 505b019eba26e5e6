"""Metrics: names and numbers of a record, the same for all that write them."""

import json
import re

import pytest
import torch

from torchstage import Stage
from torchstage.metrics import as_dict, metrics_of, rank, unique

from .feeding import decode, loader_of, take_all

ALLOWED = re.compile(r"^[/\w.-]+$")  # by MLflow and TensorBoard


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_a_record_is_a_flat_mapping_of_names_to_floats():
    loader = loader_of()
    take_all(loader)
    stats = loader.stats()
    metrics = metrics_of(stats, "data/train")
    assert json.loads(json.dumps(metrics)) == metrics
    assert all(type(value) is float and ALLOWED.match(name) for name, value in metrics.items())
    assert metrics["data/train/wait_share"] == stats.wait_share
    assert metrics["data/train/decode/samples"] == 40
    assert metrics["data/train/decode/p95_seconds"] == stats.stages[1].p95_seconds


def test_names_without_a_prefix_have_no_slash_before_them():
    loader = loader_of()
    take_all(loader)
    assert {"wait_share", "decode/busy_share"} <= set(metrics_of(loader.stats(), ""))


def test_what_has_no_value_in_a_window_is_left_out_and_nothing_else_comes_or_goes():
    loader = loader_of()
    take_all(loader)
    names = set(metrics_of(loader.stats()))
    now = loader.stats()
    idle = set(metrics_of(loader.stats(now)))
    take_all(loader)
    assert idle < names == set(metrics_of(loader.stats(now)))
    assert {name.rpartition("/")[2] for name in names - idle} == {
        *("wait_p50_seconds", "wait_p95_seconds", "wait_p99_seconds", "mean_seconds", "p95_seconds"),
    }


def test_bytes_are_there_while_they_are_measured():
    loader = loader_of(prefetch_bytes=1 << 20, collate_fn=torch.tensor)
    with loader:
        for _ in loader:
            pass
        iterator = iter(loader)
        next(iterator)
        assert metrics_of(loader.stats())["data/bytes_in_flight"] >= 4 * 8
    assert not [name for name in metrics_of(loader_of().stats()) if "bytes" in name]


def test_stages_of_one_name_are_told_apart():
    """A stage of the user's may be called as the loader's own; or two names become one without what is not allowed."""

    def collate(value):
        return value

    loader = loader_of(40, Stage(collate), Stage(decode, name="a b"), Stage(decode, name="a/b"))
    take_all(loader)
    metrics = metrics_of(loader.stats())
    names = [name.split("/")[1] for name in metrics if name.endswith("/samples")]
    assert names == ["fetch", "collate", "a_b", "a_b_2", "collate_2"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["a", "a_2", "a"], ["a", "a_2", "a_3"]),
        (["a", "a", "a_2"], ["a", "a_2", "a_2_2"]),
    ],
)
def test_names_that_are_there_already_are_numbered(names, told):
    assert unique(names) == told


def test_as_dict_has_every_field_from_the_first_record_on():
    loader = loader_of()
    before = as_dict(loader.stats())
    take_all(loader)
    after, idle = as_dict(loader.stats()), as_dict(loader.stats(loader.stats()))
    assert list(before) == list(after) == list(idle)
    assert (before["first_batch_seconds"], before["stages"]) == (None, [])
    assert [list(stage) for stage in idle["stages"]] == [list(stage) for stage in after["stages"]]
    assert [stage["name"] for stage in after["stages"]] == ["fetch", "decode", "collate"]
    assert idle["stages"][1]["p99_seconds"] is None
    assert after["stages"][1]["p99_seconds"] > 0.002
    assert json.loads(json.dumps(after)) == after


def test_the_rank_is_the_one_that_torchrun_says_before_torch_knows_it(monkeypatch):
    assert rank() == 0
    monkeypatch.setenv("RANK", "3")
    assert rank() == 3
    assert as_dict(loader_of().stats())["rank"] == 3
    monkeypatch.setenv("RANK", "three")
    assert rank() == 0
