"""Limits: what holds training back is found, by one of several ranks, in numbers that a program reads (UR-082).

Pipelines are limited in turn by fetch, decode, parse, collate and the consumer; their records are read after a warm-up.
"""

import json
import time

import pytest

from torchstage import Stage, StageLoader, observe

BATCH_SIZE = 8
NUM_WARM_UP = 10  # batches
NUM_WATCHED = 30
SLOW = 0.004  # seconds a sample
SETUP_SECONDS = 0.3
PARTS = ("fetch", "decode", "parse", "collate", "training")


class Samples:
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return BATCH_SIZE * 100

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


def take_long_to_begin(worker_id):
    time.sleep(SETUP_SECONDS)


def loader_limited_by(part):
    cost = {name: SLOW if name == part else 0.0 for name in PARTS}

    def decode(value):
        time.sleep(cost["decode"])
        return value

    def parse(value):
        time.sleep(cost["parse"])
        return value

    def collate(values):
        time.sleep(len(values) * cost["collate"])
        return values

    return StageLoader(
        Samples(cost["fetch"]),
        batch_size=BATCH_SIZE,
        num_workers=2,
        stages=[Stage(decode), Stage(parse)],
        collate_fn=collate,
        worker_init_fn=take_long_to_begin,
        isolation="shared",
    )


def told_of(part):
    """What is told of the whole, and of the batches after the warm-up, in JSON."""
    step_seconds = BATCH_SIZE * SLOW if part == "training" else 0.0
    with loader_limited_by(part) as loader:
        warm = None
        for number, _ in enumerate(loader, start=1):
            time.sleep(step_seconds)
            if number == NUM_WARM_UP:
                warm = loader.stats()
            if number == NUM_WARM_UP + NUM_WATCHED:
                whole, window = loader.stats(), loader.stats(warm)
                break
    return [json.loads(json.dumps(observe.as_dict(stats))) for stats in (whole, window)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.timing
def test_a_rank_tells_what_holds_it_back_after_its_warm_up(part, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    whole, window = told_of(part)
    assert window["rank"] == 3
    assert window["bottleneck"] == part
    assert window["advice"].startswith("training is the limit" if part == "training" else part)
    assert (window["batches"], window["samples"]) == (NUM_WATCHED, NUM_WATCHED * BATCH_SIZE)

    # Making ready is kept apart: it is no wait, and none of the window's time.
    assert whole["setup_seconds"] + whole["first_batch_seconds"] > SETUP_SECONDS
    assert window["setup_seconds"] == 0
    assert window["wait_p99_seconds"] < SETUP_SECONDS
    assert window["wait_p50_seconds"] <= window["wait_p95_seconds"] <= window["wait_p99_seconds"]
    assert (window["wait_share"] < 0.05) is (part == "training")

    # Each stage has its time, its percentiles and what waits for it.
    stages = {stage["name"]: stage for stage in window["stages"]}
    assert list(stages) == ["fetch", "decode", "parse", "collate"]
    if part in stages:
        assert max(stages, key=lambda name: stages[name]["busy_share"]) == part
        assert stages[part]["p50_seconds"] > 0.9 * SLOW
        assert stages[part]["p50_seconds"] <= stages[part]["p95_seconds"] <= stages[part]["p99_seconds"]
    assert all(stage["queued"] >= 0 for stage in window["stages"])


@pytest.mark.timing
def test_samples_that_wait_are_told_where_they_wait():
    with loader_limited_by("fetch") as loader:
        iterator = iter(loader)
        next(iterator)
        queued = {stage["name"]: stage["queued"] for stage in observe.as_dict(loader.stats())["stages"]}
        del iterator
    assert queued["fetch"] >= BATCH_SIZE
    assert queued["collate"] == 0
