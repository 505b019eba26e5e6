"""Placed: StageLoader with the place of its work told, threads or processes, or left to its own measurement.

Guarantees: `choice_of` is the one place that reads what a loader says about itself.
"""

from __future__ import annotations

from typing import Any

from benchmarks.adapters import stage_loader
from benchmarks.loaders import Entry

AUTO, THREAD, PROCESS = "auto", "thread", "multiprocessing"
CHEAP = ("fetch", "collate")


def placed(worker_method: str, num_workers: int) -> Entry:
    label = f'**StageLoader**, `worker_method="{worker_method}"`, {num_workers} worker' + "s" * (num_workers > 1)
    return Entry(
        f"stageloader-{worker_method}-{num_workers}",
        label,
        "torchstage",
        stage_loader,
        num_workers,
        {"worker_method": worker_method},
        ("torchstage",),
    )


def choice_of(loader: Any) -> str | None:
    """Where this loader has chosen to run: "threads", "processes", or "both"; None as long as it measures.

    Fetching a path and collating cost next to nothing here: where they run is asked only where there is nothing else.
    """
    said = loader.explain()
    if not said.is_measured:
        return None
    work = [stage for stage in said.stages if stage.name not in CHEAP] or said.stages
    chosen = {stage.choice for stage in work}
    return "threads" if chosen == {"thread"} else "processes" if chosen == {"process"} else "both"
