"""Guards: what isolation and the samples' own generators cost, each switched on alone.

No-op samples and the image folder, each setting in turn in one process, so that the differences are of one machine and
minute.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.case import Case, Column, Goal
from benchmarks.cases.image_folder import dataset as image_folder
from benchmarks.cases.noop import Index, keep
from benchmarks.loaders import Entry, stageloader
from benchmarks.probes import Metrics

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"isolation": "shared", "sample_rng": False},
    "isolation": {"isolation": "auto", "sample_rng": False},
    "generators": {"isolation": "shared", "sample_rng": True},
    "both": {},
    "copies": {"isolation": "per_thread"},
}
NUM_SAMPLES, NUM_IMAGES, NUM_TURNS, NUM_TURNS_QUICK = 100_000, 128, 3, 1
OURS = stageloader(2)


def run(entry: Entry, quick: bool) -> Metrics:
    images, index = image_folder(NUM_IMAGES), Index(NUM_SAMPLES)
    noop: dict[str, list[float]] = {name: [] for name in SETTINGS}
    image: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(NUM_TURNS_QUICK if quick else NUM_TURNS):
        for name, setting in SETTINGS.items():
            noop[name].append(1e6 * _cpu_seconds(index, 64, collate_fn=keep, **setting))
            image[name].append(1e3 * _cpu_seconds(images, 32, shuffle=True, **setting))
    metrics: Metrics = {}
    for name in SETTINGS:
        metrics[f"noop_us_{name}"] = statistics.median(noop[name])
        metrics[f"image_ms_{name}"] = statistics.median(image[name])
        pairs = zip(image[name], image["none"], strict=True)
        metrics[f"image_share_{name}"] = statistics.median(one / none for one, none in pairs)
    return metrics


def _cpu_seconds(samples: Any, batch_size: int, **setting: Any) -> float:
    """CPU seconds a sample of one epoch, its threads' start and end included."""
    from torchstage import StageLoader

    loader = StageLoader(samples, batch_size, num_workers=OURS.num_workers, **setting)
    start = time.process_time()
    for _ in loader:
        pass
    return (time.process_time() - start) / len(samples)


CASE = Case(
    name="guards",
    title="What the guards cost",
    question=(
        "CPU time a sample with 2 threads. None: `isolation='shared', sample_rng=False`. Isolation: `'auto'`. "
        "Generators: `sample_rng=True`. Both: the defaults. Copies: `isolation='per_thread'`, and generators. The "
        "images are those of the image case; its draws are torch's."
    ),
    entries=(OURS,),
    run=run,
    imports=("torchvision",),
    columns=(
        *(Column(f"noop_us_{name}", f"no-op, us, {name}", 2) for name in SETTINGS),
        *(Column(f"image_ms_{name}", f"image, ms, {name}", 2) for name in SETTINGS),
    ),
    goals=(
        Goal("no-op samples with both guards, CPU us", lambda round_: round_[OURS.key]["noop_us_both"], at_most=2.5),
        Goal(
            "the samples' own generators, CPU time an image against none",
            lambda round_: round_[OURS.key]["image_share_generators"],
            at_most=1.03,
        ),
    ),
    minutes=0.2,
)
