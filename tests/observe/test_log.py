"""Log: lines of a logger, when they come and what they say."""

import json
import logging

import pytest

from torchstage import observe
from torchstage.observe import log as module

from .feeding import loader_of, take_all


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_has_the_pace_the_wait_the_bottleneck_and_what_to_do():
    loader = loader_of()
    take_all(loader)
    stats = loader.stats()
    assert observe.log_line(stats, "train") == (
        f"train: {stats.samples_per_second:.0f} samples/s, waiting {100 * stats.wait_share:.0f} % of a step, "
        f"bottleneck decode: {stats.advice}"
    )
    assert "\n" not in observe.log_line(loader_of().stats())
    assert observe.log_line(loader_of().stats()).startswith("0 samples/s, waiting 0 % of a step, bottleneck none: ")


def test_a_line_of_one_of_several_ranks_says_which(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert observe.log_line(loader_of().stats(), "train").startswith("rank 3, train: ")
    assert observe.log_line(loader_of().stats()).startswith("rank 3: ")


def test_lines_come_when_they_are_due(clock, lines):
    log, loader = observe.Log(every_seconds=10), loader_of()
    take_all(loader)
    for seconds in (9, 2, 3, 6, 1, 20):  # 109, 111, 114, 120, 121, 141
        clock.now += seconds
        before = len(lines())
        log.step(loader)
        if len(lines()) > before:
            take_all(loader)
    assert len(lines()) == 3  # at 111, 121 and 141


def test_each_loader_has_a_line_of_what_it_did_since_its_last_one(caplog, lines):
    log, train, val = observe.Log(every_seconds=0), loader_of(), loader_of(8)
    take_all(train)
    log.step({"train": train, "val": val})
    take_all(train)
    take_all(val)
    log.step({"train": train, "val": val})
    log.step({"train": train, "val": val})  # nothing new
    assert [line.partition(":")[0] for line in lines()] == ["train", "train", "val"]
    assert [record.torchstage["samples"] for record in caplog.records] == [40, 40, 8]


def test_the_record_has_all_numbers_for_formatters_that_write_json(caplog, lines):
    loader = loader_of()
    take_all(loader)
    observe.Log(logging.getLogger("mine"), level=logging.WARNING).write({"train": loader})
    (record,) = caplog.records
    assert (record.name, record.levelname, record.filename) == ("mine", "WARNING", "test_log.py")
    said = json.loads(json.dumps(record.torchstage))
    assert (said["loader"], said["rank"], said["bottleneck"], said["batches"]) == ("train", 0, "decode", 10)


def test_step_and_write_are_said_to_come_from_their_caller(caplog, lines):
    log, loader = observe.Log(every_seconds=0), loader_of()
    for write in (log.step, log.write):
        take_all(loader)
        write(loader)
    assert [record.filename for record in caplog.records] == ["test_log.py"] * 2


def test_a_logger_that_does_not_want_the_lines_costs_nothing(caplog):
    class Loader:
        def stats(self, since=None):
            raise AssertionError("asked")

    caplog.set_level(logging.ERROR)
    observe.Log(every_seconds=0).step(Loader())
    assert caplog.records == []


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_no_number_of_seconds_is_refused(seconds):
    with pytest.raises(ValueError, match="every_seconds must be 0 or more, got "):
        observe.Log(every_seconds=seconds)
