"""Random programs of loaders: some in each run of the tests. ``make stress``, or TORCHSTAGE_STRESS_MINUTES here, is for
as long as one likes; TORCHSTAGE_STRESS_SEED draws others."""

import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.stress import around, parts, running
from tests.stress.around import Hung
from tests.stress.model import Spec
from tests.stress.program import NOBODY, How, Program, program_of_number
from tests.stress.running import Counts, Wrong, run
from tests.stress.shrinking import failure_of, shrunk
from torchstage import StageLoader

# Each step has a watch of its own, which needs the signal that pytest-timeout would take.
pytestmark = [pytest.mark.stress, pytest.mark.fuzz, pytest.mark.timeout(0)]

NUM_SHARDS = 4  # so that they run side by side
PROGRAMS_OF_A_SHARD = 40
SHARE_OF_PROCESSES = 0.1


def seed_and_minutes() -> tuple[int, float]:
    return int(os.environ.get("TORCHSTAGE_STRESS_SEED", "0")), float(os.environ.get("TORCHSTAGE_STRESS_MINUTES", "0"))


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_whatever_is_done_to_a_loader_every_batch_is_as_foreseen(shard: int) -> None:
    seed, minutes = seed_and_minutes()
    until = time.monotonic() + 60 * minutes
    counts, number = Counts(), seed * 10**6 + shard
    while counts.programs < PROGRAMS_OF_A_SHARD or time.monotonic() < until:
        program = program_of_number(number, share_of_processes=SHARE_OF_PROCESSES)
        try:
            run(program, counts)
        except (Exception, Hung) as error:
            less = shrunk(program)
            error.add_note(f"{program}\nshorter: {less}\n{failure_of(less)!r}")
            error.add_note(f"Again: python -m tests.stress --program {number}")
            raise
        number += NUM_SHARDS
    print(f"seed {seed}, shard {shard}: {counts}")


# That it finds what is there to be found ---------------------------------------------------------------------------

PLAINEST = Program(
    seed=0,
    spec=Spec(
        kind="plain",
        moods=(parts.GOOD,) * 12,
        draws=False,
        is_slow=False,
        batch_size=2,
        drop_last=False,
        order="sequential",
        listed=(),
        batches=(),
        stages=(),
        stage_bad_at=NOBODY,
        collate="own",
        collate_bad_at=NOBODY,
        on_error="raise",
        max_bad=None,
        in_order=True,
        seed=0,
        lanes=1,
    ),
    hows=(
        How(
            num_workers=2,
            method="thread",
            prefetch_factor=2,
            persistent=False,
            isolation="shared",
            prefetch_epochs=False,
            prefetch_bytes=None,
            timeout=0,
            device=None,
        ),
    ),
    steps=(("take", 1), ("save", 0), ("take", 2), ("load", 1), ("take all", 0)),
)


def test_the_plainest_program_does_what_it_says() -> None:
    counts = Counts()
    run(PLAINEST, counts)
    assert (counts.programs, counts.steps, counts.batches) == (1, 5, 9)  # 1, 2, and after the load 5 and the end


def test_a_wrong_sample_is_found_and_the_program_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    good = parts.Moody.__getitem__
    monkeypatch.setattr(parts.Moody, "__getitem__", lambda self, index: good(self, 8 if index == 7 else index))
    with pytest.raises(Wrong, match=r"came \('batch', \(\(6, 0\), \(8, 0\)\)\)"):
        run(PLAINEST)
    less = shrunk(PLAINEST)
    assert less.steps == (("take all", 0),)
    assert isinstance(failure_of(less), Wrong)


def test_a_lost_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.Moody, "__getitem__", lambda self, index: (index, self.version))
    moods = tuple(parts.ERROR if index == 5 else parts.GOOD for index in range(12))
    with pytest.raises(Wrong, match=r"should have come: \[\('OfSample', 5\)"):
        run(replace(PLAINEST, spec=replace(PLAINEST.spec, moods=moods)))


def test_a_step_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()

    def waits(self: Any, index: int) -> Any:
        gate.wait()
        return index, self.version

    monkeypatch.setattr(parts.Moody, "__getitem__", waits)
    monkeypatch.setattr(around, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(StageLoader, "close", lambda self: gate.set())  # the threads end as soon as they can
    with pytest.raises(Hung, match="take 1"):
        run(PLAINEST)
    assert "in waits" in capfd.readouterr().err


def test_what_is_left_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    good = parts.Moody.__getitem__

    def leaks(self: Any, index: int) -> Any:
        if not kept:
            kept.append(open(__file__))  # noqa: PTH123, SIM115 - it is to be left open
        return good(self, index)

    monkeypatch.setattr(parts.Moody, "__getitem__", leaks)
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
    try:
        with pytest.raises(Wrong, match=r"left behind: 1 more open at .*test_stress\.py"):
            run(PLAINEST)
    finally:
        for file in kept:
            file.close()
