"""Parts: a loader and its line in, what of it can move to other places, and only as a whole, out.

Guarantees: what the user said of a stage is kept.
"""

from dataclasses import dataclass
from typing import Any

from torchstage.line import Line, Where
from torchstage.placement.model import Method


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user said, and what the loader is like. ``method``: its ``worker_method``."""

    method: str = "auto"
    num_threads: int = 1
    batch_size: int = 1
    is_batched: bool = True

    @classmethod
    def of(cls, loader: Any) -> "Asked":
        """What a loader was given."""
        sampler = loader.batch_sampler
        batch_size = loader.batch_size or getattr(sampler, "batch_size", None) or 1
        return cls(
            "multiprocessing" if loader.is_in_processes else loader.worker_method,
            loader.num_workers,
            batch_size if isinstance(batch_size, int) else 1,
            loader._auto_collation,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Stages that move together, before anything is known of them. ``asked``: what the user said of it."""

    labels: tuple[str, ...]
    asked: Method | None
    number: int | None  # of the user's stage; None: they are the dataset's own


def parts_of(line: Line, *, is_batched: bool) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """The units of a line, and the stages that run elsewhere than in threads, which are nobody's to move."""
    takes_batches = line.spreads and is_batched
    stations = line.after_many if takes_batches else line.by_sample
    first = ["fetch"] if takes_batches else []
    num_users = len(line.stages)
    num_own = max(0, len(stations) - num_users)
    elsewhere = tuple(s.label for s in stations if s.where.is_async or _is_given(s.where))
    if line.many_is_async and takes_batches:
        elsewhere = (*first, *elsewhere)
    own = (*first, *(station.label for station in stations[:num_own]))
    parts: list[Part] = []
    if own:
        stays = any(label in elsewhere for label in own)
        parts.append(Part(own, "thread" if stays else None, None))
    for number, (station, stage) in enumerate(zip(stations[num_own:], line.stages, strict=True)):
        if station.label not in elsewhere:
            is_process = stage.executor == "process"
            asked: Method | None = "process" if is_process else "thread" if stage.concurrency else None
            parts.append(Part((station.label,), asked, number))
    return tuple(parts), elsewhere


def _is_given(where: Where) -> bool:
    """Whether it is an executor of the user's."""
    return where.executor is not None and not where.is_process
