"""Loaders: the rows of the tables: a name, a library's adapter, its threads or processes, its options.

Guarantees: nothing is imported before it is needed, so that a peer that is not installed costs its rows, not the run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapters import (
    elastic_stage_loader,
    grain_dataset,
    grain_processes,
    spdl_pipeline,
    spdl_processes,
    stage_loader,
    torch_dataloader,
    torchdata_nodes,
    torchdata_stateful,
)

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table: a loader, its threads or processes, its own options, and what it imports."""

    key: str
    label: str
    package: str
    adapter: Callable[..., Iterable[Any]]
    num_workers: int
    options: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    needs_cuda: bool = False
    interpreters: tuple[str, ...] = ()  # names on PATH; none: the interpreter that runs the benchmarks

    def why_skipped(self) -> str | None:
        """The reason why it cannot run here; None if it can."""
        if self.interpreters:
            return None if self.python() else f"no {' or '.join(self.interpreters)} on PATH that imports what it needs"
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.needs_cuda and not torch.cuda.is_available():
            return "this machine has no CUDA device"
        return None

    def python(self) -> str | None:
        """The interpreter to run it with; None: none of the wanted ones imports what it needs."""
        if not self.interpreters:
            return sys.executable
        probe = "; ".join(f"import {name}" for name in (self.package, *self.imports))
        for name in self.interpreters:
            if found := shutil.which(name):
                tried = subprocess.run([found, "-c", probe], cwd=ROOT, capture_output=True, check=False)
                if not tried.returncode:
                    return found
        return None

    def for_all_counts(self) -> Entry:
        """A row for a case that tries several numbers of workers in one process, by `with_workers`."""
        return replace(self, key=self.key.rpartition("-")[0], label=self.label.rpartition(",")[0])

    def with_workers(self, num_workers: int) -> Entry:
        return replace(self, num_workers=num_workers)

    def build(self, dataset: Any, batch_size: int, **common: Any) -> Any:
        """The loader, not yet iterated. `common`: `shuffle`, `collate_fn`."""
        return self.adapter(dataset, batch_size, self.num_workers, **common, **self.options)


def dataloader(num_workers: int) -> Entry:
    label = f"DataLoader, {num_workers} {'worker' if num_workers == 1 else 'workers'}"
    return Entry(f"dataloader-{num_workers}", label, "torch", torch_dataloader, num_workers)


def stageloader(num_workers: int, *, in_order: bool = True) -> Entry:
    key, order = ("stageloader", "") if in_order else ("stageloader-unordered", ", `in_order=False`")
    label = f"**StageLoader**{order}, {_threads(num_workers)}"
    options = {"in_order": in_order}
    return Entry(f"{key}-{num_workers}", label, "torchstage", stage_loader, num_workers, options, ("torchstage",))


def elastic_stageloader(num_workers: int) -> Entry:
    label = f"**StageLoader** with ElasticSampler, {_threads(num_workers)}"
    return Entry(
        f"stageloader-elastic-{num_workers}",
        label,
        "torchstage",
        elastic_stage_loader,
        num_workers,
        {},
        ("torchstage.samplers",),
    )


def stateful_dataloader(num_workers: int) -> Entry:
    label = f"StatefulDataLoader, {num_workers} {'worker' if num_workers == 1 else 'workers'}"
    return Entry(
        f"stateful-{num_workers}",
        label,
        "torchdata",
        torchdata_stateful,
        num_workers,
        {},
        ("torchdata.stateful_dataloader",),
    )


def spdl(num_workers: int, output_order: str) -> Entry:
    label = f"SPDL, {output_order} order, {_threads(num_workers)}"
    options = {"output_order": output_order}
    return Entry(
        f"spdl-{output_order}-{num_workers}",
        label,
        "spdl",
        spdl_pipeline,
        num_workers,
        options,
        ("spdl.pipeline",),
    )


def grain(num_workers: int) -> Entry:
    label = f"Grain, {_threads(num_workers)}"
    return Entry(f"grain-{num_workers}", label, "grain", grain_dataset, num_workers, {}, ("grain.python",))


def grain_in_processes(num_workers: int) -> Entry:
    label = f"Grain, {_processes(num_workers)}"
    return Entry(f"grain-processes-{num_workers}", label, "grain", grain_processes, num_workers, {}, ("grain.python",))


def spdl_in_processes(num_workers: int) -> Entry:
    label = f"SPDL, input order, {_processes(num_workers)}"
    return Entry(f"spdl-processes-{num_workers}", label, "spdl", spdl_processes, num_workers, {}, ("spdl.pipeline",))


def nodes(num_workers: int, *, whole_batches: bool = False) -> Entry:
    key, task = ("nodes-batches", "a batch a task") if whole_batches else ("nodes", "a sample a task")
    label = f"torchdata.nodes, {task}, {_threads(num_workers)}"
    options = {"whole_batches": whole_batches}
    return Entry(
        f"{key}-{num_workers}",
        label,
        "torchdata",
        torchdata_nodes,
        num_workers,
        options,
        ("torchdata.nodes",),
    )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
