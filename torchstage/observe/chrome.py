"""Chrome: a recording in, a trace in Chrome's JSON format out, by itself or together with one of torch.profiler's.

Guarantees: slices on one track lie beside or inside each other and never cross; times are whole nanoseconds, written as
microseconds since ``baseTimeNanoseconds``, which is how torch.profiler writes them.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, cast

from torchstage.listening import Thread

Event = dict[str, Any]

NO_THREADS = 1 << 22  # Linux numbers its processes and threads below this: what lies above is free for tracks
LOOP = "training loop"


class Span(NamedTuple):
    """Something that took from ``begin`` to ``end``, in seconds of perf_counter. ``kind``: what it was done with: a
    "sample", a "batch", or "loop", which is the consumer. ``overlaps``: with others of the same thread."""

    name: str
    kind: str
    begin: float
    end: float
    thread: Thread
    args: dict[str, Any]
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """All that was recorded. ``counts``: when, how many batches were in the making and ready, and the samples that
    waited, by stage. ``clock_ns``: what makes nanoseconds of perf_counter those since 1970."""

    spans: Sequence[Span]
    counts: Sequence[tuple[float, int, int, Counter[str]]]
    consumer: Thread
    begin: float
    end: float
    clock_ns: int

    def ns(self, seconds: float) -> int:
        """Since the beginning."""
        return round((seconds - self.begin) * 1e9)

    @property
    def base_ns(self) -> int:
        """The beginning, since 1970."""
        return round(self.begin * 1e9) + self.clock_ns


@dataclass(slots=True)
class _Track:
    """A row of the viewer. ``open``: the ends of the slices that the next one may lie in."""

    thread: Thread
    number: int = 0  # of several of one thread
    spans: list[tuple[int, int, Span]] = field(default_factory=list[tuple[int, int, Span]])
    open: list[int] = field(default_factory=list[int])

    @property
    def key(self) -> tuple[int, int]:
        return self.thread.pid, self.thread.tid

    def takes(self, begin: int, end: int, *, alone: bool) -> bool:
        """Whether a slice fits here, after all that begin before it."""
        while self.open and self.open[-1] <= begin:
            self.open.pop()
        return not self.open or (not alone and end <= self.open[-1])

    def put(self, begin: int, end: int, span: Span) -> None:
        self.open.append(end)
        self.spans.append((begin, end, span))


def chrome_trace(recording: Recording, words: dict[str, Any], *, is_merged: bool = False) -> dict[str, Any]:
    """The trace as an object in Chrome's JSON format. ``words``: what else it says of itself. ``is_merged``: its
    processes get numbers that no process has, so that its tracks do not mix with another trace's."""
    tracks = _tracks(recording)
    several = {track.key for track in tracks if track.number}
    pid = recording.consumer.pid
    events = [event for number, track in enumerate(tracks) for event in _events_of(track, number, several)]
    events += _counters(recording, pid)
    events += _processes({track.thread.pid for track in tracks} | {pid}, pid, is_merged=is_merged)
    if words.get("events_lost"):
        said = f"{words['events_lost']} events beyond max_events were not kept"
        end = recording.ns(recording.end) / 1000
        events.append({"ph": "i", "s": "g", "name": said, "cat": "torchstage", "ts": end, "pid": pid, "tid": 0})
    if is_merged:
        for event in events:
            event["pid"] += NO_THREADS
    return {
        "traceEvents": sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0))),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": recording.base_ns,
        "torchstage": words,
    }


def merged(profile: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """torch.profiler's trace with the events of ours in it, on its clock."""
    shift_us = (made["baseTimeNanoseconds"] - int(profile.get("baseTimeNanoseconds", 0))) / 1000
    ours = [event if event["ph"] == "M" else {**event, "ts": event["ts"] + shift_us} for event in made["traceEvents"]]
    return {**profile, "traceEvents": [*profile["traceEvents"], *ours], "torchstage": made["torchstage"]}


def read(path: str | PathLike[str]) -> dict[str, Any]:
    """A trace from a file. Raises ValueError for what is none."""
    is_packed = Path(path).suffix == ".gz"
    with gzip.open(path, "rt") if is_packed else Path(path).open() as file:
        try:
            known: Any = json.load(file, strict=False)
        except ValueError as error:
            raise ValueError(f"observe.Trace: {fspath(path)} is no JSON, so no trace of torch.profiler.") from error
    if not isinstance(known, dict) or not isinstance(cast(Any, known).get("traceEvents"), list):
        raise ValueError(
            f"observe.Trace: {fspath(path)} has no 'traceEvents'. Give a file that prof.export_chrome_trace(...) wrote."
        )
    return cast(dict[str, Any], known)


def write(path: Path, trace: dict[str, Any]) -> Path:
    """Into a file, compressed if its name ends with ``.gz``."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        json.dump(trace, file, separators=(",", ":"))
    return path


def _tracks(recording: Recording) -> list[_Track]:
    """Each slice on a track of its thread; on another one of that thread where it would cross what is there."""
    of_thread: dict[tuple[int, int], list[_Track]] = {}
    consumer = recording.consumer
    names = {(consumer.pid, consumer.tid): LOOP if consumer.name == "MainThread" else f"{LOOP} ({consumer.name})"}
    latest: dict[tuple[Any, ...], _Track] = {}  # of a sample: its next stage comes beside the one before, if it can
    ordered = [(recording.ns(span.begin), recording.ns(span.end), span) for span in recording.spans]
    for begin, end, span in sorted(ordered, key=lambda one: (one[0], -one[1])):
        key = (span.thread.pid, span.thread.tid)
        tracks = of_thread.setdefault(key, [])
        sample = (*key, span.args.get("batch"), span.args.get("index"))
        wanted = [latest[sample]] if sample in latest else []
        found = next((one for one in (*wanted, *tracks) if one.takes(begin, end, alone=span.overlaps)), None)
        if found is None:
            thread = span.thread._replace(name=names.get(key, span.thread.name))
            found = _Track(thread, len(tracks))
            tracks.append(found)
        found.put(begin, end, span)
        if span.overlaps:
            latest[sample] = found
    found = [track for tracks in of_thread.values() for track in tracks]
    return sorted(found, key=lambda track: _rank(track, recording.consumer))


def _rank(track: _Track, consumer: Thread) -> tuple[Any, ...]:
    """The consumer first, then the threads of its process, then other processes."""
    thread = track.thread
    is_consumer = track.key == (consumer.pid, consumer.tid)
    return not is_consumer, thread.pid != consumer.pid, thread.pid, _natural(thread.name), thread.tid, track.number


def _natural(name: str) -> tuple[str, int]:
    """So that thread 10 comes after thread 9."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def _events_of(track: _Track, number: int, several: set[tuple[int, int]]) -> Iterable[Event]:
    """``several``: threads that have more than one track, which viewers are to show side by side."""
    thread, is_one_of_several = track.thread, track.key in several
    tid = NO_THREADS + number if is_one_of_several else thread.tid
    name = f"{thread.name} ({track.number + 1})" if is_one_of_several else thread.name
    place = {"pid": thread.pid, "tid": tid}
    yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}
    for begin, end, span in track.spans:
        times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
        yield {"ph": "X", "name": span.name, "cat": span.kind, **times, **place, "args": span.args}


def _counters(recording: Recording, pid: int) -> Iterable[Event]:
    stages = sorted({stage for *_, queued in recording.counts for stage in queued})
    for now, num_in_the_making, num_ready, queued in sorted(recording.counts, key=lambda one: one[0]):
        place = {"ph": "C", "ts": recording.ns(now) / 1000, "pid": pid, "tid": 0}
        yield {
            **place,
            "name": "batches in flight",
            "args": {"in the making": num_in_the_making, "ready": num_ready},
        }
        if stages:
            yield {**place, "name": "samples queued", "args": {stage: queued[stage] for stage in stages}}


def _processes(pids: Iterable[int], own: int, *, is_merged: bool) -> Iterable[Event]:
    for number, pid in enumerate(sorted(pids, key=lambda pid: (pid != own, pid))):
        name = "torchstage" if pid == own else "torchstage: process"
        if is_merged:  # its number is another one there
            name += f" (process {pid})"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": number - 100}}
