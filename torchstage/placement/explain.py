"""Explain: a loader in, a record of where its stages run and why, that prints as a table, out.

Guarantees: asking starts nothing and measures nothing; what is not known is a dash, and said.
"""

from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from torchstage.accounts import has_gil
from torchstage.engine.parking import usable_cores
from torchstage.line import Line
from torchstage.placement.choice import UnitChoice
from torchstage.placement.model import Scene, Seen
from torchstage.placement.parts import Asked, Part, parts_of
from torchstage.placement.placement import Placement, placement_of
from torchstage.tables import seconds, table

NOT_YET = "not measured yet: iterate over the loader for a moment"


@dataclass(frozen=True, slots=True)
class StageExplained:
    """One stage. ``threads_rate`` and ``processes_rate``: samples a second that as many of them as there are
    ``num_workers`` would give of this stage's unit alone; None: not known. ``choice``: "thread", "process", "inline",
    or the name of what runs it. Stages that can only move together have the same choice and reason."""

    name: str
    seconds: float | None  # a sample, wall time
    cpu_seconds: float | None
    share_without_gil: float | None  # 0 to 1
    threads_rate: float | None
    processes_rate: float | None
    choice: str
    max_threads: int | None  # that may be in it at once; None: as many as there are
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a loader's stages run, and why. ``print`` shows a table."""

    stages: tuple[StageExplained, ...]
    num_workers: int
    num_cores: int
    is_measured: bool
    threads_rate: float | None  # samples a second of everything in threads
    rate: float | None  # as chosen
    summary: str  # one sentence

    def __str__(self) -> str:
        n = self.num_workers
        head = ("  stage", "choice", "a sample", "without GIL", f"{n} threads", f"{n} processes")
        lines = table(head, [_row(stage) for stage in self.stages]).splitlines()
        wide = max(len(line) for line in lines)
        reasons = ("reason", *(stage.reason for stage in self.stages))
        shown = [f"{line:<{wide}}  {reason}".rstrip() for line, reason in zip(lines, reasons, strict=True)]
        return "\n".join((*shown, "", self.summary))


def explained(loader: Any) -> Explanation:
    """What is known of the loader now."""
    num_workers, cores = loader.num_workers, usable_cores()
    told = _told_of_all(loader)
    if isinstance(loader.dataset, IterableDataset):
        method = "inline" if not num_workers else "process" if loader.is_in_processes else "lane"
        return _unmeasured((_plain("fetch", method, told or ""),), loader, told or "")
    line, asked = Line(loader.dataset, loader.stages), Asked.of(loader)
    parts, elsewhere = parts_of(line, is_batched=asked.is_batched)
    placement = placement_of(loader.ledger)
    scene, choice = placement.scene, placement.choice
    if told is None and scene is not None and choice is not None:
        units = zip(choice.units, scene.units, strict=True)
        rows = [_row_of(seen, unit) for unit, known in units for seen in known.stages]
        if scene.collate is not None:
            rows.append(_collate_row(scene.collate, choice.collate, scene))
        rows += [_elsewhere_row(label, line) for label in elsewhere]
        summary = _summary(placement, scene)
        return Explanation(tuple(rows), num_workers, cores, True, choice.threads_rate, choice.rate, summary)
    method = "inline" if not num_workers else "process" if loader.is_in_processes else "thread"
    reason = told if told is not None else NOT_YET
    rows = [_plain(label, _chosen(part, method), _why(part, reason)) for part in parts for label in part.labels]
    rows += [_elsewhere_row(label, line) for label in elsewhere]
    return _unmeasured(tuple(rows), loader, _sentence(reason))


def _told_of_all(loader: Any) -> str | None:
    """Why nothing is measured; None if it is."""
    if not loader.num_workers:
        return "num_workers=0: everything runs in the thread that asks for batches"
    if isinstance(loader.dataset, IterableDataset):
        if loader.is_in_processes:
            return "as you said, torch's own worker processes read the iterable dataset: it is not measured"
        return "an iterable dataset is read in lanes, each of which is one thread: it is not measured"
    if loader.worker_method != "auto":
        return f"worker_method={loader.worker_method!r}: as you said"
    if loader.is_in_processes:
        return "multiprocessing_context is set: as you said"
    return None if has_gil() else "this interpreter has no GIL: threads are all it takes"


def _chosen(part: Part, method: str) -> str:
    return method if part.asked is None or method == "inline" else part.asked


def _why(part: Part, reason: str) -> str:
    return "as you said" if part.asked is not None else reason


def _row_of(seen: Seen, unit: UnitChoice) -> StageExplained:
    return StageExplained(
        seen.label,
        seen.wall_seconds,
        seen.cpu_seconds,
        seen.share_without_gil,
        unit.threads_rate,
        unit.processes_rate,
        unit.method,
        unit.max_threads,
        unit.reason,
    )


def _collate_row(seen: Seen, method: str, scene: Scene) -> StageExplained:
    if method == "process":
        reason = "all before it is in processes: whole batches are made there"
    else:
        reason = "it runs where a batch's last sample was made"
    return StageExplained(
        "collate", seen.wall_seconds, seen.cpu_seconds, seen.share_without_gil, None, None, method, None, reason
    )


def _elsewhere_row(label: str, line: Line) -> StageExplained:
    stations = {station.label: station for station in (*line.by_sample, *line.after_many)}
    station = stations.get(label)
    executor = None if station is None else station.where.executor
    where = "event loop" if executor is None else type(executor).__name__
    return _plain(label, where, "as you said" if executor is not None else "its function is async")


def _plain(label: str, where: str, reason: str) -> StageExplained:
    return StageExplained(label, None, None, None, None, None, where, None, reason)


def _unmeasured(rows: tuple[StageExplained, ...], loader: Any, summary: str) -> Explanation:
    return Explanation(rows, loader.num_workers, usable_cores(), False, None, None, _sentence(summary))


def _summary(placement: Placement, scene: Scene) -> str:
    choice, measured = placement.choice, placement.measured
    assert choice is not None
    seen = _chosen_words(choice.units)
    if measured is not None:
        seen += f"Measured in {measured.beat_seconds:.2f} s ({measured.num_beats} beats) on {scene.num_cores} cores. "
        if measured.others_share > 0.1:
            seen += (
                f"Other Python threads used {100 * measured.others_share:.0f} % of that time, which was taken off as "
                "if they had held the GIL throughout. "
            )
    if choice.wants_processes:
        words = f"Processes give {choice.rate:.0f} samples/s, threads alone {choice.threads_rate:.0f}"
        if choice.rate < choice.threads_rate:
            words += ", which would stop the training loop"
        if placement.is_pending:
            return seen + f"{words}; until they pay their start ({choice.start_seconds:.1f} s), threads go on."
        return seen + f"{words}."
    words = f"Threads give {choice.threads_rate:.0f} samples/s"
    if placement.why_not is not None:
        return seen + f"{words}; processes cannot be used: {placement.why_not}."
    return seen + f"{words}; processes would not give enough more."


def _chosen_words(units: tuple[UnitChoice, ...]) -> str:
    """ "Choice: processes." Or of each, which stages."""
    words: dict[str, list[str]] = {}
    for unit in units:
        words.setdefault("threads" if unit.method == "thread" else "processes", []).extend(unit.labels)
    if len(words) == 1:
        return f"Choice: {next(iter(words))}. "
    return "Choice: " + ", ".join(f"{where} for {' and '.join(labels)}" for where, labels in words.items()) + ". "


def _sentence(words: str) -> str:
    is_word = words.partition(" ")[0].isalpha()
    return (words[:1].upper() if is_word else words[:1]) + words[1:] + ("" if words.endswith(".") else ".")


def _row(stage: StageExplained) -> tuple[str, ...]:
    share = stage.share_without_gil
    limited = f" (at most {stage.max_threads})" if stage.max_threads is not None else ""
    return (
        f"  {stage.name}",
        stage.choice + limited,
        seconds(stage.seconds),
        "-" if share is None else f"{100 * share:.0f} %",
        *(_rate(rate) for rate in (stage.threads_rate, stage.processes_rate)),
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None or rate == float("inf") else f"{rate:.0f}/s"
