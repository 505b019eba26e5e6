"""State cost: a state_dict() at every step, against none, in turn."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Round
from benchmarks.loaders import Entry, stageloader, stateful_dataloader
from benchmarks.probes import Metrics, close

NUM_SAMPLES, NUM_SAMPLES_QUICK = 1_280, 640
BATCH_SIZE = 32
NUM_PAIRS = 3
BLOCK = bytes(1 << 20)
OURS, THEIRS = stageloader(2), stateful_dataloader(2)


class Hashed(Dataset[int]):
    """Samples of about 1 ms that release the GIL, as decoding does."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        return hashlib.sha256(BLOCK).digest()[0] + index


def run(entry: Entry, quick: bool) -> Metrics:
    loader = entry.build(Hashed(NUM_SAMPLES_QUICK if quick else NUM_SAMPLES), BATCH_SIZE, shuffle=True)
    for _ in loader:
        pass
    ratios, calls, seconds_again = [], list[float](), list[float]()
    for pair in range(NUM_PAIRS):
        seconds = [_epoch_seconds(loader, calls if with_state else None) for with_state in _turns(pair)]
        without, with_states = seconds if pair % 2 == 0 else seconds[::-1]
        ratios.append(without / with_states)
    for _ in loader:
        loader.state_dict()
        seconds_again.append(_call_seconds(loader))
    state: Any = loader.state_dict()
    close(loader)
    return {
        "speed_with_states": median(ratios),
        "call_us": 1e6 * median(calls),
        "call_again_us": 1e6 * median(seconds_again),
        "state_kb": len(json.dumps(state, default=lambda tensor: tensor.tolist())) / 1e3,
    }


def _turns(pair: int) -> tuple[bool, bool]:
    return (False, True) if pair % 2 == 0 else (True, False)


def _epoch_seconds(loader: Any, calls: list[float] | None) -> float:
    start = time.perf_counter()
    for _ in loader:
        if calls is not None:
            calls.append(_call_seconds(loader))
    return time.perf_counter() - start


def _call_seconds(loader: Any) -> float:
    start = time.perf_counter()
    loader.state_dict()
    return time.perf_counter() - start


def _of(entry: Entry, metric: str) -> Callable[[Round], float]:
    return lambda round_: round_[entry.key][metric]


CASE = Case(
    name="state_cost",
    title="A state at every step",
    question=(
        f"Samples of about 1 ms that release the GIL, batch {BATCH_SIZE}, shuffled; epochs with a state_dict() after "
        "each batch and epochs without, in turn: their speed against each other. The call alone: the first one after a "
        "step, for which the threads that hash whole megabytes have left nothing in the cores' caches; and one more."
    ),
    entries=(OURS, stageloader(0), THEIRS, stateful_dataloader(0)),
    run=run,
    columns=(
        Column("speed_with_states", "speed with states / without", 3),
        Column("call_us", "first call after a step, us", 0),
        Column("call_again_us", "one more call, us", 0),
        Column("state_kb", "state as JSON, kB", 1),
    ),
    goals=(
        Goal(
            "StageLoader, 2 threads, speed with a state at every step / none",
            _of(OURS, "speed_with_states"),
            at_least=0.99,
        ),
        Goal("StageLoader, 2 threads, one state_dict() in itself, us", _of(OURS, "call_again_us"), at_most=50.0),
        Goal("StageLoader, 2 threads, the first state_dict() after a step, us", _of(OURS, "call_us"), at_most=50.0),
    ),
    minutes=0.5,
)
