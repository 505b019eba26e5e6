"""Python-bound: a tokenizer in plain Python in; how fast it is fed, and what is left to a training loop, out.

Threads gain nothing here, and take the GIL from the training loop. The loop is always hungrier than the loader is fast,
so the loader never pauses while the loop is timed.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.case import Against, Case, Column, Goal, Headline, Round, against_best, cells
from benchmarks.cases.tokens import TEXT_CHARACTERS, Texts
from benchmarks.loaders import Entry, dataloader, grain_in_processes, spdl, spdl_in_processes
from benchmarks.placed import AUTO, PROCESS, THREAD, placed
from benchmarks.probes import Metrics, close, memory_now_mib, train_through

BATCH_SIZE = 32
NUM_BATCHES, NUM_BATCHES_QUICK = 40, 40  # of an epoch
NUM_EPOCHS = 2  # that are timed
WARM_UP_SECONDS = 7.0  # whole epochs, until processes are up wherever there are some
NUM_WORKERS = 2
NUM_STEPS = 2  # for each batch: less than two processes need for one
NUM_CALLS = 200  # of torch, in each step
WAIT_SECONDS = 3e-3  # of each step, as for a device
BESIDE_SECONDS = 3.0  # where the loop is slow, it does not come to the end of an epoch
ALONE_STEPS = 100
DATALOADERS = (dataloader(0), dataloader(2))
OURS = placed(AUTO, NUM_WORKERS)
PEERS = (spdl(NUM_WORKERS, "input"), spdl_in_processes(NUM_WORKERS), grain_in_processes(NUM_WORKERS))


def run(entry: Entry, quick: bool) -> Metrics:
    loader = entry.build(Texts(BATCH_SIZE * (NUM_BATCHES_QUICK if quick else NUM_BATCHES)), BATCH_SIZE, shuffle=True)
    baseline_mib = memory_now_mib()
    begin = time.perf_counter()
    num_samples = _read(loader)
    metrics = {"first_epoch_samples_per_second": num_samples / (time.perf_counter() - begin)}
    warm_up_seconds = WARM_UP_SECONDS if entry.package == "torchstage" else 0.0
    while time.perf_counter() - begin < warm_up_seconds:
        _read(loader)
    metrics |= train_through(loader, NUM_EPOCHS, len, baseline_mib=baseline_mib)
    if entry.num_workers:  # else nothing runs beside the loop
        metrics |= _beside(loader)
    close(loader)
    return metrics


def _read(loader: Any) -> int:
    return sum(len(batch) for batch in loader)


def _beside(loader: Any) -> Metrics:
    """The loop's speed while the loader runs, against the same loop before, in this process."""
    weights = torch.randn(16, 16)
    _steps_seconds(weights, ALONE_STEPS)
    alone = _steps_seconds(weights, ALONE_STEPS) / ALONE_STEPS
    in_steps, num_steps, num_samples, begin = 0.0, 0, 0, time.perf_counter()
    while time.perf_counter() - begin < BESIDE_SECONDS:
        for batch in loader:
            in_steps += _steps_seconds(weights, NUM_STEPS)
            num_steps += NUM_STEPS
            num_samples += len(batch)
            if time.perf_counter() - begin > BESIDE_SECONDS:
                break
    return {
        "training_speed": alone / (in_steps / num_steps),
        "samples_per_second_beside": num_samples / (time.perf_counter() - begin),
    }


def _steps_seconds(weights: torch.Tensor, num_steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_steps):
        values = weights
        for _ in range(NUM_CALLS // 2):
            values = torch.relu(values @ weights)
        time.sleep(WAIT_SECONDS)
    return time.perf_counter() - begin


def _training(round_: Round) -> float:
    return round_[OURS.key]["training_speed"]


CASE = Case(
    name="python_bound",
    title="A tokenizer in plain Python",
    question=(
        f"Texts of {TEXT_CHARACTERS} characters, each split by a regular expression and merged pair by pair, about "
        f"1 ms a sample; batch {BATCH_SIZE}, shuffled, {NUM_WORKERS} workers. Speed after a whole epoch (StageLoader: "
        f"after {WARM_UP_SECONDS:.0f} s), and in the first epoch, with all that starts in it. Then a training loop "
        f"beside the loader, {NUM_STEPS} steps of {NUM_CALLS} small torch calls and a wait of "
        f"{1e3 * WAIT_SECONDS:.0f} ms for each batch, "
        "which is less than the loader needs: the speed of its steps, against the same steps alone in that process."
    ),
    entries=(
        *DATALOADERS,
        OURS,
        placed(THREAD, NUM_WORKERS),
        placed(PROCESS, NUM_WORKERS),
        *PEERS,
    ),
    left_out_when_quick=(spdl(NUM_WORKERS, "input"),),
    run=run,
    columns=(
        Column("samples_per_second", "samples/s", 0),
        Column("training_speed", "training loop / alone", 2),
        Column("samples_per_second_beside", "samples/s beside it", 0),
        Column("first_epoch_samples_per_second", "samples/s, first epoch", 0),
        Column("samples_per_second_after_first", "samples/s after the first batch", 0),
        Column("cpu_ms_per_sample", "CPU ms a sample", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    against=Against("samples_per_second", DATALOADERS),
    goals=(
        Goal("StageLoader, auto, samples/s against DataLoader's best", against_best(OURS, DATALOADERS), at_least=1.0),
        Goal("the same, the training loop beside it against alone", _training, at_least=0.8),
    ),
    headline=Headline(
        unit="samples/s",
        ours=cells("samples_per_second", OURS),
        dataloader=cells("samples_per_second", *DATALOADERS),
        peers=cells("samples_per_second", *PEERS),
        why=(
            "Plain Python holds the GIL: threads gain nothing, whoever starts them. StageLoader measures that in its "
            "first epoch and goes on in processes; that epoch is slower."
        ),
    ),
    minutes=1.4,
)
