"""Program: a seed in, a loader and what is to be done with it out. Anything can be left out of it and it still runs.

Guarantees: the same seed gives the same program in every process and release of Python.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.stress.model import Spec
from tests.stress.parts import ERROR, FILTERED, GOOD

NOBODY = -1000  # no sample has this index
Step = tuple[str, int]  # a deed, and a number that says how
DEEDS = {
    "take": 30,
    "take all": 14,
    "begin": 8,
    "drop": 6,
    "take of an old one": 6,
    "save": 12,
    "load": 10,
    "close": 4,
    "close from another thread": 3,
    "tell the epoch": 6,
    "change": 4,
    "ask for statistics": 6,
    "pickle": 2,
    "interrupt": 5,
    "try a sample": 2,
    "measure its length": 2,
    "look at the next": 2,
}


@dataclass(frozen=True)
class How:
    """What may change when a state is loaded."""

    num_workers: int
    method: str
    prefetch_factor: int
    persistent: bool
    isolation: str
    prefetch_epochs: bool
    prefetch_bytes: int | None
    timeout: float
    device: str | None


@dataclass(frozen=True)
class Program:
    seed: int
    spec: Spec
    hows: tuple[How, ...]  # the first loader's, and those of the ones that load a state, in turn
    steps: tuple[Step, ...]
    interval: float | None = None  # between switches of threads

    def __str__(self) -> str:
        lines = [f"program of seed {self.seed}:", f"  {self.spec}", *(f"  {how}" for how in self.hows)]
        return "\n".join([*lines, f"  {list(self.steps)}"])


def program_of_number(number: int, *, share_of_processes: float) -> Program:
    """One of a run's; so many of them may use processes, which take long to start."""
    return program_of(number, has_processes=number * 7919 % 1000 < 1000 * share_of_processes)


def program_of(seed: int, *, has_processes: bool) -> Program:
    draw = random.Random(seed)
    spec = spec_of(draw, has_processes=has_processes)
    hows = [how_of(draw, spec, has_processes=has_processes) for _ in range(draw.choice([1, 2, 3]))]
    count = draw.randrange(3, 26)
    steps = list(
        zip(
            draw.choices(list(DEEDS), list(DEEDS.values()), k=count), draw.choices(range(1 << 16), k=count), strict=True
        )
    )
    return Program(seed, spec, tuple(hows), tuple(steps), draw.choice([None, None, 1e-6, 1e-4]))


def spec_of(draw: random.Random, *, has_processes: bool) -> Spec:
    kinds = ["plain"] * 6 + ["at once", "staged", "staged", "fetched", "tensors", "shares", "shares with state"]
    kind = draw.choice(kinds)
    length = draw.choice([1, 2, draw.randrange(1, 40), draw.randrange(1, 40), draw.randrange(10, 46)])
    fails = draw.random() < 0.5 and kind not in ("tensors", "shares", "shares with state")
    odds = draw.choice([[GOOD] * 8 + [ERROR, FILTERED], [GOOD, ERROR, FILTERED], [GOOD] * 20 + [ERROR]])
    moods = [draw.choice(odds) if fails else GOOD for _ in range(length)]
    on_error = draw.choice(["raise", "raise", "skip", "skip", "replace", "function"])
    if kind.startswith("shares"):
        on_error = "raise"
    draws = draw.random() < 0.5 and kind in ("plain", "staged") and on_error != "replace"
    order = draw.choice(["sequential", "shuffled", "shuffled", "listed", "batches", "distributed", "elastic"])
    if kind.startswith("shares"):
        order = "sequential"
    places = list(range(length))
    draw.shuffle(places)
    stages = []
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        executor = draw.choice(["thread", "thread", "own", "process" if has_processes else "thread"])
        stage = draw.choice(["tag", "tag", "late", "draw" if draws else "tag"])
        if stage == "late" or kind.startswith("shares"):
            executor = "thread"
        stages.append((stage, executor, draw.choice([None, None, 1, 2]) if executor == "thread" else None))
    batch_size = draw.choice([None, 1, 2, 3, 4, draw.randrange(1, 12)])
    if order == "batches":
        batch_size = 1
    cuts = sorted(draw.choices(range(length + 1), k=draw.randrange(1, 9)))
    batches = tuple(tuple(places[a:b]) for a, b in zip([0, *cuts], [*cuts, length], strict=True) if a < b)
    is_own = draw.random() < 0.6
    in_order = draw.random() < 0.8
    return Spec(
        kind=kind,
        moods=tuple(moods),
        draws=draws,
        is_slow=draw.random() < 0.4,
        batch_size=batch_size,
        drop_last=draw.random() < 0.3 and batch_size is not None and order != "batches",
        order=order,
        listed=tuple(places[: draw.randrange(1, length + 1)]),
        batches=batches,
        stages=tuple(stages),
        stage_bad_at=draw.choice([-1, -1, draw.randrange(length)]) if not kind.startswith("shares") else -1,
        collate="own" if is_own or on_error == "function" else "default",
        collate_bad_at=draw.randrange(length) if draw.random() < 0.2 and on_error == "raise" else NOBODY,
        on_error=on_error,
        max_bad=None if not in_order else draw.choice([None, None, None, 0, 1, 3]),
        in_order=in_order,
        seed=draw.randrange(3),
        lanes=draw.choice([1, 2, 3]),
    )


def how_of(draw: random.Random, spec: Spec, *, has_processes: bool) -> How:
    num_workers = draw.choice([0, 1, 1, 2, 2, 3, 4])
    if spec.is_iterable or not spec.in_order:
        num_workers = max(num_workers, 1)
    method = draw.choice(["thread", "thread", "thread", "auto", "multiprocessing" if has_processes else "auto"])
    own = any(executor == "own" for _, executor, _ in spec.stages)
    if method == "multiprocessing" and (spec.is_iterable or own):
        method = "thread"
    persistent = num_workers > 0 and draw.random() < 0.5
    return How(
        num_workers=num_workers,
        method=method,
        prefetch_factor=draw.choice([1, 2, 2, 4]),
        persistent=persistent,
        isolation=draw.choice(
            ["auto"] if spec.is_iterable else ["auto", "auto", "auto", "shared", "per_thread", "serial"]
        ),
        prefetch_epochs=persistent and not spec.is_iterable and draw.random() < 0.5,
        prefetch_bytes=draw.choice([None, None, None, 1, 200, 1 << 20]),
        timeout=draw.choice([0, 0, 300]) if num_workers else 0,
        device=draw.choice([None, None, None, "cpu"]),
    )


def shorter(program: Program) -> Any:
    """Programs with something left out."""
    steps = program.steps
    size = len(steps) // 2
    while size:
        for begin in range(0, len(steps), size):
            yield replace(program, steps=steps[:begin] + steps[begin + size :])
        size //= 2
    spec = program.spec
    for number in range(len(spec.stages)):
        yield replace(program, spec=replace(spec, stages=spec.stages[:number] + spec.stages[number + 1 :]))
    simpler: list[dict[str, Any]] = [
        {"moods": (GOOD,) * len(spec.moods)},
        {"draws": False, "stages": tuple(stage for stage in spec.stages if stage[0] != "draw")},
        {"is_slow": False},
        {"collate_bad_at": NOBODY},
        {"stage_bad_at": -1},
        {"max_bad": None},
        {"in_order": True},
        {"drop_last": False},
    ]
    for one in simpler:
        if (other := replace(spec, **one)) != spec:
            yield replace(program, spec=other)
    plainest: dict[str, Any] = {
        "persistent": False,
        "prefetch_epochs": False,
        "prefetch_bytes": None,
        "timeout": 0,
        "device": None,
        "isolation": "shared",
        "method": "thread",
        "num_workers": 1,
    }
    for name, value in plainest.items():
        more = {"prefetch_epochs": False} if name == "persistent" else {}
        hows = tuple(replace(how, **{name: value}, **more) for how in program.hows)
        if hows != program.hows:
            yield replace(program, hows=hows)
