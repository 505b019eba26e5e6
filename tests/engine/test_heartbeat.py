"""Heartbeat: who holds the GIL. What is counted is told by hand; at the end, real threads."""

import hashlib
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from random import Random

import pytest

from torchstage.engine import heartbeat
from torchstage.engine.heartbeat import LAG_SECONDS, Beat, Beats, Span, Timeline, readings
from torchstage.engine.told import Ran, this_thread

ONE, OTHER = 1, 2  # threads


def beat_at(at: float, *, is_late: bool = False, wait: float = 5e-3) -> Beat:
    asked = 1e-3
    if is_late:
        return Beat(at - asked - LAG_SECONDS, asked, at - LAG_SECONDS + wait, is_late=True)
    return Beat(at - asked, asked, at, is_late=False)


def timeline_of(*spans: Span) -> Timeline:
    timeline = Timeline()
    timeline.spans.extend(spans)
    for span in spans:
        timeline.wall_seconds[span.stage] += span.end - span.begin
        timeline.num_samples[span.stage] += 1
    return timeline


def test_a_beat_counts_for_the_stage_that_ran_when_it_was_due() -> None:
    timeline = timeline_of(Span(0.0, 1.0, "decode", ONE), Span(1.0, 2.0, "tokenize", ONE))
    found = readings(timeline, [beat_at(0.5), beat_at(1.5, is_late=True), beat_at(1.6, is_late=True)])
    assert (found["decode"].held_share, found["decode"].num_beats) == (0.0, 1)
    assert (found["tokenize"].held_share, found["tokenize"].num_beats) == (1.0, 2)


def test_a_late_beat_counts_for_when_it_asked_and_not_for_when_it_came() -> None:
    timeline = timeline_of(Span(0.0, 1.0, "tokenize", ONE), Span(1.0, 2.0, "decode", ONE))
    found = readings(timeline, [beat_at(0.999, is_late=True)])
    assert found["tokenize"].num_beats == 1
    assert found["decode"].held_share is None


def test_between_stages_a_beat_counts_for_none() -> None:
    found = readings(timeline_of(Span(0.0, 1.0, "decode", ONE), Span(2.0, 3.0, "decode", ONE)), [beat_at(1.5)])
    assert found["decode"].num_beats == 0


def test_while_two_threads_are_in_stages_nobody_knows_which_it_was() -> None:
    timeline = timeline_of(Span(0.0, 1.0, "decode", ONE), Span(0.5, 2.0, "tokenize", OTHER))
    found = readings(timeline, [beat_at(0.7, is_late=True), beat_at(1.5, is_late=True)])
    assert (found["decode"].num_beats, found["tokenize"].num_beats) == (0, 1)


def test_of_stages_inside_each_other_the_inner_one_counts() -> None:
    timeline = timeline_of(Span(0.0, 3.0, "outer", ONE), Span(1.0, 2.0, "inner", ONE))
    found = readings(timeline, [beat_at(1.5), beat_at(2.5)])
    assert (found["outer"].num_beats, found["inner"].num_beats) == (1, 1)


def test_the_share_of_time_is_not_the_share_of_beats() -> None:
    """A late beat waits for so long that fewer of them fit in: where half the beats are late, more than half the time
    was held."""
    timeline = timeline_of(Span(0.0, 10.0, "half", ONE))
    beats = [beat_at(number, is_late=number % 2 == 0, wait=5e-3) for number in range(1, 9)]
    share = readings(timeline, beats)["half"].held_share
    assert share == pytest.approx((8 * 1e-3 / 2 + 4 * 5e-3) / (8 * 1e-3 + 4 * 5e-3), rel=0.01)


def test_time_that_a_thread_waited_for_a_core_is_not_the_stages_own() -> None:
    found = readings(timeline_of(Span(0.0, 1.0, "decode", ONE)), [beat_at(0.5)], lost_share=0.4)
    assert found["decode"].wall_seconds == pytest.approx(0.6)


def test_time_that_the_process_was_stopped_is_not_the_stages_own() -> None:
    timeline = timeline_of(Span(0.0, 10.0, "decode", ONE))
    assert readings(timeline, [beat_at(0.5)], stops=[(2.0, 9.0)])["decode"].wall_seconds == pytest.approx(3.0)


def test_a_sleep_of_a_stopped_process_is_no_beat() -> None:
    def wait(seconds: float) -> bool:
        time.sleep(0.1)  # what a stopped process sees: time goes by, and nothing ran
        return False

    beats = Beats()
    assert beats.sleep(wait) == (None, False)
    assert len(beats.stops) == 1
    assert beats.waited_seconds < 0.05


def test_a_sample_that_is_not_over_yet_counts_until_now() -> None:
    timeline = Timeline()
    timeline.enter("slow")
    now = time.perf_counter()
    assert [(span.stage, span.end) for span in timeline.listed(now)] == [("slow", now)]
    timeline.leave()
    timeline.ran(Ran("slow", 0.0, 1.0, this_thread()))
    assert timeline.num_samples["slow"] == 1
    assert timeline.wall_seconds["slow"] > 0


def test_a_sample_that_fails_is_none() -> None:
    timeline = Timeline()
    timeline.ran(Ran("slow", 0.0, 1.0, this_thread(), error="ValueError"))
    assert not timeline.num_samples


def test_a_sleep_that_is_cut_short_is_no_beat_but_was_waited() -> None:
    beats = Beats(Random(0))
    assert beats.sleep(lambda seconds: True) == (None, True)
    assert (beats.beats, beats.beat_seconds) == ([], 0.0)
    assert beats.waited_seconds > 0


def test_who_waits_for_the_sake_of_it_goes_on_sleeping_until_the_beat_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], list[float]()
    monkeypatch.setattr(heartbeat, "perf_counter", lambda: now[0])
    monkeypatch.setattr(heartbeat, "num_switches", lambda: 0)
    beats = Beats(Random(0))
    beats.holds = True

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        now[0] += min(seconds, 0.2e-3)
        return seconds > 0.2e-3

    beat, is_announced = beats.sleep(wait)
    assert beat is not None
    assert is_announced
    assert len(asked) > 2
    assert asked == pytest.approx([beat.asked - number * 0.2e-3 for number in range(len(asked))])
    assert beat.end - beat.begin == pytest.approx(beat.asked)


def test_who_is_woken_in_time_and_comes_late_has_waited_for_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that never lets go of the GIL announces its batches: each wakes the consumer, which is kept waiting."""
    switches = iter([0, 2])  # it went to sleep, and waited for the GIL
    monkeypatch.setattr(heartbeat, "num_switches", lambda: next(switches))
    beats = Beats(Random(0))

    def wait(seconds: float) -> bool:
        time.sleep(seconds + 0.01)
        return True

    beat, is_announced = beats.sleep(wait)
    assert is_announced
    assert beat is not None
    assert beat.is_late
    assert beats.beats == [beat]


def test_who_is_woken_in_time_and_was_kept_from_the_core_has_no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = iter([0, 1])
    monkeypatch.setattr(heartbeat, "num_switches", lambda: next(switches))
    beats = Beats(Random(0))

    def wait(seconds: float) -> bool:
        time.sleep(seconds + 0.01)
        return True

    assert beats.sleep(wait) == (None, True)


def test_sleeps_are_of_different_length() -> None:
    asked: list[float] = []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return False

    beats = Beats()
    for _ in range(50):
        beats.sleep(wait)
    assert len(set(asked)) == 50
    assert all(0.5e-3 <= seconds <= 3e-3 for seconds in asked)


def in_python() -> None:
    sum(number * number for number in range(20_000))


def without_the_gil(data: bytes = bytes(8_000_000)) -> None:
    hashlib.sha256(data).digest()


def share_held_by(*work: Callable[[], None]) -> dict[str, float | None]:
    timeline, beats, is_over, wake = Timeline(), Beats(), threading.Event(), SimpleQueue[None]()

    def run() -> None:
        while not is_over.is_set():
            for function in work:
                timeline.enter(function.__name__)
                function()
                timeline.leave()

    def wait(seconds: float) -> bool:
        try:
            wake.get(timeout=seconds)
        except Empty:
            return False
        return True

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while beats.beat_seconds < 0.25:
            beats.sleep(wait)
        found = readings(timeline, beats.beats)
    finally:
        is_over.set()
        thread.join()
    return {stage: one.held_share for stage, one in found.items()}


@pytest.mark.timing
def test_python_holds_it_and_hashing_does_not() -> None:
    python = share_held_by(in_python)["in_python"]
    hashing = share_held_by(without_the_gil)["without_the_gil"]
    assert python is not None
    assert hashing is not None
    assert python > 0.8
    assert hashing < 0.25


@pytest.mark.timing
def test_of_two_stages_of_one_thread_each_has_its_own_share() -> None:
    found = share_held_by(in_python, in_python, in_python, without_the_gil)
    python, hashing = found["in_python"], found["without_the_gil"]
    assert python is not None
    assert hashing is not None
    assert python > 0.7
    assert hashing < 0.35
