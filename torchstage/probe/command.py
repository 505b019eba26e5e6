"""Probing: the name of what makes a dataset in, what threads and processes give of it out, each in a fresh process.

Guarantees: the dataset is made in those processes alone; a setting that fails is told with its reason, and the others
are measured all the same; no process is left behind.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchstage.engine.parking import usable_cores
from torchstage.probe.prediction import Prediction
from torchstage.tables import table

ABOUT_AS_MUCH = 0.9  # of the best: what is simpler wins then
MIB = 2**20


class ProbeFailed(Exception):  # noqa: N818  # it is told, not raised to the user
    """No setting could be measured."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure. ``dataset`` and ``collate``: "module:name" or "path/to/file.py:name". ``num_workers`` None: as
    many as cores may be used. ``seconds``: for each setting, after its first batch."""

    dataset: str
    collate: str | None = None
    batch_size: int = 32
    num_workers: int | None = None
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Setting:
    """``method``: a StageLoader's ``worker_method``."""

    method: str
    num_workers: int

    @property
    def label(self) -> str:
        kind = "thread" if self.method == "thread" else "process"
        plural = "" if self.num_workers == 1 else "s" if kind == "thread" else "es"
        return f"{self.num_workers} {kind}{plural}"


ONE_THREAD = Setting("thread", 1)


@dataclass(frozen=True, slots=True)
class Probed:
    """What one setting gave. ``cores_used``: CPU seconds a second, of all its processes. ``memory_bytes``: theirs in
    all, what they share counted once; ``is_shared_counted_once`` False: the system does not tell, it was counted in
    each. ``serialised_bytes``: a sample, as it is sent from one process to another; of that, ``pickled_bytes`` are
    copied by pickle, and the rest are large buffers, written once. ``prediction``: of one thread, where it could be
    seen what others would give. ``error``: why there is nothing else."""

    setting: Setting
    samples_per_second: float | None = None
    first_batch_seconds: float | None = None
    cores_used: float | None = None
    memory_bytes: int | None = None
    is_shared_counted_once: bool = True
    serialised_bytes: int | None = None
    pickled_bytes: int | None = None
    num_samples: int = 0
    prediction: Prediction | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All settings, and which to take. ``print`` shows a table."""

    dataset: str
    batch_size: int
    num_cores: int
    settings: tuple[Probed, ...]
    recommended: Setting
    reason: str

    def __str__(self) -> str:
        head = ("  setting", "", "samples/s", "predicted", "first batch", "cores used", "memory", "sent a sample")
        best = self.recommended
        rows = [_row(one, self.predicted(one.setting), is_best=one.setting == best) for one in self.settings]
        failed = [f"{one.setting.label}: {one.error}" for one in self.settings if one.error is not None]
        lines = [f"{self.dataset}, batch_size={self.batch_size}, {self.num_cores} cores", "", table(head, rows), ""]
        seen = [] if self.prediction is None else [str(self.prediction)]
        return "\n".join([*lines, *failed, *seen, self.sentence])

    @property
    def prediction(self) -> Prediction | None:
        """What one thread alone showed."""
        return next((one.prediction for one in self.settings if one.prediction is not None), None)

    def predicted(self, setting: Setting) -> float | None:
        """Samples a second; None: not known, or it is the one thread that the others are predicted from."""
        if self.prediction is None or setting == ONE_THREAD:
            return None
        return self.prediction.per_second(setting.method)

    @property
    def sentence(self) -> str:
        """What to write."""
        method, number = self.recommended.method, self.recommended.num_workers
        return f"Recommended: StageLoader(..., num_workers={number}, worker_method={method!r}): {self.reason}."

    def as_json(self) -> str:
        """The same, for programs."""
        return json.dumps({**dataclasses.asdict(self), "sentence": self.sentence}, indent=2)


def probe(request: Request, say: Callable[[str], None] = lambda words: None) -> Report:
    """Measure one thread, N threads and N processes. ``say`` is told what is being measured. Raises ProbeFailed if none
    of them could be."""
    number = request.num_workers or usable_cores()
    settings = [ONE_THREAD, Setting("thread", number), Setting("multiprocessing", number)]
    found: list[Probed] = []
    for setting in dict.fromkeys(settings):
        say(f"{setting.label}: about {request.seconds:g} s ...")
        found.append(_run(request, setting))
    if all(one.error is not None for one in found):
        raise ProbeFailed(f"nothing could be measured. {found[0].error}")
    best, reason = recommended(found)
    return Report(request.dataset, request.batch_size, usable_cores(), tuple(found), best, reason)


def recommended(found: list[Probed]) -> tuple[Setting, str]:
    """The simplest setting that gives about as much as the best: one thread, else threads, else processes."""
    rates = {one.setting: one.samples_per_second or 0.0 for one in found if one.error is None}
    most = max(rates.values())
    best = next(setting for setting, rate in rates.items() if rate >= ABOUT_AS_MUCH * most)
    others = [setting for setting in rates if setting != best]
    if not others:
        return best, "it is the only one that could be measured"
    fastest = max(others, key=lambda setting: rates[setting])
    if rates[fastest] <= rates[best]:
        return best, f"it gives {_times(rates[best], rates[fastest])} as much as {fastest.label}"
    return best, f"{fastest.label} would give {_times(rates[fastest], rates[best])} that: too little for what they cost"


def _times(one: float, other: float) -> str:
    return f"{one / other:.2f} x" if other > 0 else "many times"


def _run(request: Request, setting: Setting) -> Probed:
    """Measure it in a fresh process, which writes what it found into a file: the user's code may print."""
    with tempfile.TemporaryDirectory(prefix="torchstage-probe-") as folder:
        asked, answer = Path(folder, "asked.json"), Path(folder, "answer.json")
        predict_for = (request.num_workers or usable_cores()) if setting == ONE_THREAD else None
        told_of = {**dataclasses.asdict(request), **dataclasses.asdict(setting), "predict_for": predict_for}
        asked.write_text(json.dumps(told_of))
        command = [sys.executable, "-m", "torchstage.probe.measured", str(asked), str(answer)]
        done = subprocess.run(command, stdout=sys.stderr.fileno() if _has_number(sys.stderr) else subprocess.DEVNULL)
        if not answer.exists():
            return Probed(setting, error=f"its process ended with exit status {done.returncode} and no answer")
        told: dict[str, Any] = json.loads(answer.read_text())
    if told.pop("is_final", False):  # it would be the same with any setting
        raise ProbeFailed(told["error"])
    seen: dict[str, Any] | None = told.pop("prediction", None)
    return Probed(setting, **told, prediction=None if seen is None else Prediction(**seen))


def _has_number(stream: Any) -> bool:
    try:
        stream.fileno()
    except Exception:  # under a test, or in a notebook, it is no file
        return False
    return True


def _row(one: Probed, predicted: float | None, *, is_best: bool) -> tuple[str, ...]:
    label = ("> " if is_best else "  ") + one.setting.label
    expected = "-" if predicted is None else f"{predicted:.1f}"
    if one.error is not None:
        return (label, "failed", "-", expected, "-", "-", "-", "-")
    memory = "-" if one.memory_bytes is None else f"{one.memory_bytes / MIB:.0f} MiB"
    is_sent = one.setting.method != "thread" and one.serialised_bytes is not None
    return (
        label,
        "" if one.is_shared_counted_once else "(shared memory counted in each process)",
        f"{one.samples_per_second:.1f}",
        expected,
        f"{one.first_batch_seconds:.2f} s",
        f"{one.cores_used:.2f}",
        memory,
        f"{one.serialised_bytes} B" if is_sent else "0 B",
    )
