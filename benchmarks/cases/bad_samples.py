"""Bad samples: what it costs to fill batches up, where samples may fail and where one in a thousand does.

Each setting in turn in one process, so that the differences are of one machine and minute.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

from benchmarks.case import Case, Column, Goal
from benchmarks.cases.image_folder import dataset as image_folder
from benchmarks.cases.noop import Index, keep
from benchmarks.loaders import Entry, stageloader
from benchmarks.probes import Metrics

BATCH_SIZE, NUM_IMAGES, NUM_NOOPS, NUM_TURNS, NUM_TURNS_QUICK = 32, 1000, 50_000, 2, 1
ONE_IN = 1000
OURS = stageloader(2)


class SomeBroken:
    """A dataset of which one sample in so many cannot be read."""

    def __init__(self, dataset: Any, one_in: int | None) -> None:
        self.dataset, self.one_in = dataset, one_in

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self.one_in is not None and index % self.one_in == self.one_in // 2:
            raise OSError("image file is truncated")
        return self.dataset[index]


SETTINGS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "raise": (None, {}),
    "may_skip": (None, {"on_error": "skip"}),
    "skips": (ONE_IN, {"on_error": "skip"}),
    "replaces": (ONE_IN, {"on_error": "replace"}),
}


def run(entry: Entry, quick: bool) -> Metrics:
    from torchstage import StageLoader

    images = image_folder(NUM_IMAGES)
    loaders = {
        name: StageLoader(
            SomeBroken(images, one_in), BATCH_SIZE, num_workers=entry.num_workers, persistent_workers=True, **setting
        )
        for name, (one_in, setting) in SETTINGS.items()
    }
    for loader in loaders.values():
        _samples_per_second(loader)
    speeds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for turn in range(NUM_TURNS_QUICK if quick else NUM_TURNS):
        names = list(SETTINGS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            speeds[name].append(_samples_per_second(loaders[name]))
    metrics: Metrics = {}
    for name in SETTINGS:
        metrics[f"samples_per_second_{name}"] = statistics.median(speeds[name])
        pairs = zip(speeds[name], speeds["raise"], strict=True)
        metrics[f"share_{name}"] = statistics.median(one / none for one, none in pairs)
    for loader in loaders.values():
        loader.close()
    noops: dict[str, list[float]] = {name: [] for name in ("raise", "may_skip")}
    for _ in range(NUM_TURNS):
        for name, found in noops.items():
            found.append(1e6 * _noop_seconds(entry.num_workers, **SETTINGS[name][1]))
    return metrics | {f"noop_us_{name}": statistics.median(found) for name, found in noops.items()}


def _noop_seconds(num_workers: int, **setting: Any) -> float:
    """CPU seconds a sample that costs nothing, of one epoch in batches of 64."""
    from torchstage import StageLoader

    loader = StageLoader(
        Index(NUM_NOOPS), 64, num_workers=num_workers, collate_fn=keep, worker_method="thread", **setting
    )
    start = time.process_time()
    for _ in loader:
        pass
    return (time.process_time() - start) / NUM_NOOPS


def _samples_per_second(loader: Any) -> float:
    """Of an epoch."""
    begin, num_samples = time.perf_counter(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the bad ones
        for images, _ in loader:
            num_samples += len(images)
    return num_samples / (time.perf_counter() - begin)


CASE = Case(
    name="bad_samples",
    title="One bad sample in a thousand",
    question=(
        "Samples a second of whole epochs, 2 threads, batches of 32: images as in the image case, 1,000 an epoch. "
        "`raise`: none is bad, the default. `may skip`: none is bad, `on_error='skip'`. `skips`: one in 1,000 is bad "
        "and left out, and batches are filled up. `replaces`: likewise with `on_error='replace'`. Settings take turns "
        "in one process; shares are of the same turn. Of samples that cost nothing: CPU time each."
    ),
    entries=(OURS,),
    run=run,
    imports=("torchvision",),
    columns=(
        *(Column(f"samples_per_second_{name}", name.replace("_", " "), 0) for name in SETTINGS),
        *(Column(f"share_{name}", f"{name.replace('_', ' ')} / raise", 3) for name in list(SETTINGS)[1:]),
        Column("noop_us_raise", "no-op, us, raise", 2),
        Column("noop_us_may_skip", "no-op, us, may skip", 2),
    ),
    goals=(
        Goal(
            "one in a thousand bad and skipped, samples/s against none bad",
            lambda round_: round_[OURS.key]["share_skips"],
            at_least=0.97,
        ),
    ),
    minutes=0.6,
)
