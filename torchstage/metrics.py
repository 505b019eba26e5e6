"""Metrics: a record of a loader's in; the same as names and numbers, for whatever writes them down, out.

Guarantees: a name has its unit in it, holds to the rules of MLflow and TensorBoard, and means the same wherever it is
written; names come from the fields of the record and the names of its stages alone, so they are there from the first
record to the last.
"""

import dataclasses
import os
import re
from typing import Any

import torch

from torchstage.bad import plain_of
from torchstage.stats import LoaderStats

OF_LOADER = (
    *("samples_per_second", "wait_share", "wait_p50_seconds", "wait_p95_seconds", "wait_p99_seconds"),
    *("batches_in_flight", "bytes_in_flight", "sampler_held_seconds", "setup_seconds", "first_batch_seconds"),
)
OF_STAGE = ("busy_share", "mean_seconds", "p95_seconds", "cpu_seconds", "samples", "errors", "queued")
NOT_IN_NAMES = re.compile(r"[^\w.-]+")  # of what MLflow allows, without what would make another level


def metrics_of(stats: LoaderStats, begin: str = "data") -> dict[str, float]:
    """What is watched while training, by name: ``data/wait_share``, ``data/decode/busy_share``. What has no value yet,
    or in this window, is left out: a percentile before the first sample, bytes that nobody measures.

    Args:
        stats: what ``loader.stats()`` gave.
        begin: what each name begins with, before a ``/``; nothing if it is empty.
    """
    prefix = f"{begin}/" if begin else ""
    found = {f"{prefix}{field}": getattr(stats, field) for field in OF_LOADER}
    for name, stage in zip(unique([in_name(stage.name) for stage in stats.stages]), stats.stages, strict=True):
        found |= {f"{prefix}{name}/{field}": getattr(stage, field) for field in OF_STAGE}
    return {name: float(value) for name, value in found.items() if value is not None}


def as_dict(stats: LoaderStats) -> dict[str, Any]:
    """Every field of the record and of its stages, as plain values that JSON can hold, and the process's ``rank``.
    ``stages`` is a list in their order. The keys are always the same; what is not known is None.

    Args:
        stats: what ``loader.stats()`` gave.
    """
    stages = [dataclasses.asdict(one) for one in stats.stages]
    return {"rank": rank(), **dataclasses.asdict(stats), "stages": stages, "bad": [plain_of(one) for one in stats.bad]}


def rank() -> int:
    """This process's rank: torch.distributed's, or before that is there what torchrun says; 0 if there is one process
    only. It is the same before and after ``init_process_group``."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    said = os.environ.get("RANK", "")
    return int(said) if said.isdecimal() else 0


def is_distributed() -> bool:
    """Whether there are other ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size() > 1
    return os.environ.get("WORLD_SIZE", "1") != "1"


def in_name(text: Any) -> str:
    """The text with what no name may have replaced."""
    return NOT_IN_NAMES.sub("_", str(text)) or "_"


def unique(names: list[str]) -> list[str]:
    """The names; one that was there before gets a number: a user's stage may be called "collate", too."""
    found: dict[str, None] = {}
    for name in names:
        candidates = (name, *(f"{name}_{number}" for number in range(2, len(names) + 2)))
        found[next(one for one in candidates if one not in found)] = None
    return list(found)
