"""TensorDataset: tensors in memory in, batches of 256 out: by one indexing, or sample by sample.

Nothing is read, decoded or transformed: all that a loader does here is to index and to stack. SPDL and torchdata.nodes
are left out: at hundreds of microseconds a sample they take minutes for this.
"""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from benchmarks.case import Against, Case, Column, Goal, Headline, against_best, cells
from benchmarks.loaders import Entry, dataloader, grain, stageloader, stateful_dataloader
from benchmarks.probes import Metrics, train_through

NUM_SAMPLES, NUM_SAMPLES_QUICK = 25_600, 12_800
NUM_EPOCHS = 3
BATCH_SIZE = 256
DATALOADERS = (dataloader(0), dataloader(2))
OURS = stageloader(0)
PEERS = (stateful_dataloader(0), grain(2))


def run(entry: Entry, quick: bool) -> Metrics:
    num_samples = NUM_SAMPLES_QUICK if quick else NUM_SAMPLES
    dataset = TensorDataset(torch.randn(num_samples, 64), torch.arange(num_samples) % 10)
    return train_through(entry.build(dataset, BATCH_SIZE, shuffle=True), NUM_EPOCHS, lambda batch: len(batch[1]))


CASE = Case(
    name="tensor_dataset",
    title="A TensorDataset",
    question=(
        f"{NUM_SAMPLES} rows of 64 floats and a label, batch {BATCH_SIZE}, shuffled, {NUM_EPOCHS} epochs, and no "
        "training step."
    ),
    entries=(*DATALOADERS, OURS, stageloader(1), stageloader(2), *PEERS),
    run=run,
    columns=(
        Column("samples_per_second", "samples/s", 0),
        Column("samples_per_second_after_first", "samples/s after the first batch", 0),
        Column("cpu_ms_per_sample", "CPU ms a sample", 4),
    ),
    against=Against("samples_per_second_after_first", DATALOADERS),
    goals=(
        Goal(
            "StageLoader, inline, samples/s against DataLoader's best",
            against_best(OURS, DATALOADERS, "samples_per_second_after_first"),
            at_least=20.0,
        ),
    ),
    headline=Headline(
        unit="samples/s after the first batch",
        ours=cells("samples_per_second_after_first", OURS),
        dataloader=cells("samples_per_second_after_first", *DATALOADERS),
        peers=cells("samples_per_second_after_first", *PEERS),
        why="StageLoader indexes the tensors once for a whole batch; the others take row after row and stack them.",
    ),
    minutes=0.4,
)
