"""Measure: the name of a case and of one of its loaders in, what this one process measured out.

    python -m benchmarks.measure --case image_folder --loader stageloader-2 [--quick] [--json]

Run it alone, or let `python -m benchmarks` start it, a fresh process a time. With `--json` the last line of
the output is the measurement; without, a list to read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from importlib import import_module

from benchmarks.case import Case, load
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics, machine_busy_seconds, tree_cpu_seconds

READY = "ready"


def main() -> None:
    options = _parse()
    case = load(options.case)
    entry = _entry(case, options.loader)
    for name in (*case.imports, *entry.imports):
        import_module(name)
    if options.wait:
        print(READY, flush=True)
        if not sys.stdin.readline():
            return  # whoever started this is gone
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores, on purpose
    metrics = measure(case, entry, options.quick)
    if options.json:
        print("\n" + json.dumps(metrics), flush=True)
        return
    for name, value in metrics.items():
        print(f"{name:32} {value:.4g}")


def measure(case: Case, entry: Entry, quick: bool) -> Metrics:
    """The case's metrics, and how many cores other programs kept busy meanwhile: judge the rest by it."""
    busy_before, cpu_before, start = machine_busy_seconds(), tree_cpu_seconds(), time.perf_counter()
    metrics = case.run(entry, quick)
    seconds = time.perf_counter() - start
    others = machine_busy_seconds() - busy_before - (tree_cpu_seconds() - cpu_before)
    metrics["cores_used_by_others"] = max(0.0, others / seconds)
    metrics["load_average"] = os.getloadavg()[0]
    return metrics


def _entry(case: Case, key: str) -> Entry:
    for entry in case.entries:
        if entry.key == key:
            return entry
    keys = ", ".join(entry.key for entry in case.entries)
    raise SystemExit(f"case '{case.name}' has no loader '{key}'. Choose from: {keys}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure", description="One loader on one case.")
    parser.add_argument("--case", required=True)
    parser.add_argument("--loader", required=True, help="the key of one of its loaders, such as stageloader-2")
    parser.add_argument("--quick", action="store_true", help="less work, less certain")
    parser.add_argument("--json", action="store_true", help="the measurement as the last line")
    parser.add_argument("--wait", action="store_true", help=f"import, say '{READY}', begin when a line comes in")
    return parser.parse_args()


if __name__ == "__main__":
    main()
