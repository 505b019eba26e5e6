"""Run: the names of cases in; `benchmarks/results/<case>.json` and a printed table of each out.

    python -m benchmarks [--quick] [--runs 5] [--patience 60] [--resume] [case ...]

A case's result is written when its last round is done: a run that is cut loses one case, and `--resume` goes on there.
With `--quick` results lie under build/, since nothing may be drawn from them.

Loaders take turns: a round measures each of them once, in a fresh process, and the next round begins elsewhere in the
list. So a busy minute of the machine, or a warm cache, favours none. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.case import NAMES, QUICK_NAMES, Case, Goal, load
from benchmarks.fresh import FreshProcess
from benchmarks.loaders import Entry
from benchmarks.machine import NUM_CORES, machine
from benchmarks.probes import Metrics
from benchmarks.quiet import wait_for_quiet
from benchmarks.summary import result_of

RESULTS = Path(__file__).parent / "results"
RESULTS_QUICK = Path(__file__).parent.parent / "build" / "benchmarks"
NUM_RUNS, NUM_RUNS_QUICK = 5, 1
QUICK_SHARE = 0.5  # of a round's minutes: starting the processes takes as long

Measured = dict[str, Metrics]  # an entry's key -> its metrics, in one round


def main() -> None:
    options = _parse()
    num_runs = options.runs or (NUM_RUNS_QUICK if options.quick else NUM_RUNS)
    results = RESULTS_QUICK if options.quick else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    names = [
        name
        for name in options.cases or (QUICK_NAMES if options.quick else NAMES)
        if not (options.resume and _is_done(results / f"{name}.json", num_runs, options.quick))
    ]
    expected = {name: _expected_minutes(name, num_runs, options.quick) for name in names}
    print(f"about {sum(expected.values()):.0f} minutes of {len(names)} cases, longest first:", file=sys.stderr)
    for name in sorted(names, key=lambda name: -expected[name]):
        print(f"  {expected[name]:5.1f}  {name}", file=sys.stderr)
    if options.plan:
        return
    for name in names:
        result = run_case(load(name), num_runs, options.quick, options.patience)
        _write(results / f"{name}.json", result)
        print("\n" + table.of_case(result), flush=True)


def _expected_minutes(name: str, num_runs: int, quick: bool) -> float:
    """What rounds of the same work took when they were measured, else what the case says; 0 if nothing can run here."""
    case = load(name)
    if all(entry.why_skipped() for entry in case.entries):
        return 0.0
    result = result_of(name)
    is_same_work = result is not None and result["rounds"] and result["question"] == case.question
    minutes = result["minutes"] / len(result["rounds"]) if result and is_same_work else case.minutes
    return minutes * num_runs * (QUICK_SHARE if quick else 1.0)


def _is_done(path: Path, num_runs: int, quick: bool) -> bool:
    """As many rounds as are wanted, measured today."""
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    is_today = result["machine"]["date"] == machine()["date"]
    return is_today and result["quick"] == quick and len(result["rounds"]) >= num_runs


def _write(path: Path, result: dict[str, Any]) -> None:
    """All of it or nothing: a run may be cut at any time."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result, indent=1) + "\n")
    unfinished.replace(path)


def run_case(case: Case, num_runs: int, quick: bool, patience_seconds: float = 0.0) -> dict[str, Any]:
    """Everything that the case's table needs, and the raw measurements: `rounds[r][key][metric]`."""
    wanted = [entry for entry in case.entries if not (quick and entry in case.left_out_when_quick)]
    skipped = {entry.key: reason for entry in wanted if (reason := entry.why_skipped())}
    entries = [entry for entry in wanted if entry.key not in skipped]
    for key, reason in skipped.items():
        print(f"{case.name}: {key} is skipped: {reason}", file=sys.stderr)
    start = time.perf_counter()
    rounds = [_round(case, turns, quick, patience_seconds) for turns in _turns(entries, num_runs)]
    return {
        "case": case.name,
        "title": case.title,
        "question": case.question,
        "quick": quick,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "machine": machine(),
        "labels": {entry.key: entry.label for entry in wanted},
        "skipped": skipped,
        "columns": [{"key": c.key, "heading": c.heading, "digits": c.digits} for c in case.columns],
        "against": _against(case),
        "goals": [_goal(goal, rounds) for goal in case.goals],
        "rounds": rounds,
    }


def _turns(entries: list[Entry], num_rounds: int) -> list[list[Entry]]:
    """The order of each round: each begins a share of the list later than the one before."""
    firsts = [number * len(entries) // num_rounds for number in range(num_rounds)]
    return [entries[first:] + entries[:first] for first in firsts]


def _round(case: Case, turns: list[Entry], quick: bool, patience_seconds: float) -> Measured:
    """Each loader once, as many processes at a time as there are cores, which measure one after another."""
    measured: Measured = {}
    for begin in range(0, len(turns), NUM_CORES):
        group = turns[begin : begin + NUM_CORES]
        processes = [_fresh(case, entry, quick) for entry in group]
        for process in processes:
            process.wait_until_ready()
        for entry, process in zip(group, processes, strict=True):
            wait_for_quiet(patience_seconds)
            print(f"{case.name}: {entry.key}", file=sys.stderr, flush=True)
            metrics = process.metrics()
            if metrics is not None:
                measured[entry.key] = metrics
    return measured


def _fresh(case: Case, entry: Entry, quick: bool) -> FreshProcess:
    python = entry.python()
    assert python is not None, f"{entry.key} was not skipped"
    return FreshProcess(case.name, entry.key, quick, python)


def _against(case: Case) -> dict[str, Any] | None:
    if case.against is None:
        return None
    keys = [entry.key for entry in case.against.entries]
    return {"metric": case.against.metric, "keys": keys, "heading": case.against.heading}


def _goal(goal: Goal, rounds: list[Measured]) -> dict[str, Any]:
    """The goal's figure in each round; a round that lacks one of its loaders gives none."""
    figures: list[float] = []
    for measured in rounds:
        try:
            figures.append(goal.got(measured))
        except (KeyError, ValueError):  # a loader is missing; `max` of no loaders
            continue
    return {"says": goal.says, "at_least": goal.at_least, "at_most": goal.at_most, "figures": figures}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="torchstage beside its peers.")
    parser.add_argument("cases", nargs="*", metavar="case", help=f"none: all of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="under five minutes: fewer cases, less work, one round")
    parser.add_argument("--runs", type=int, help=f"rounds, {NUM_RUNS} (with --quick {NUM_RUNS_QUICK})")
    parser.add_argument("--resume", action="store_true", help="leave out what has been measured today")
    parser.add_argument("--plan", action="store_true", help="say how long it would take, and measure nothing")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for others to be quiet")
    return parser.parse_args()


if __name__ == "__main__":
    main()
