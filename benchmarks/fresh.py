"""Fresh: a case and one of its loaders in, a process of its own for the measurement, its metrics out.

A process imports as soon as it is made and measures when it is told to: so several import at once, on all
cores, and then measure one after another, while the others sleep. Guarantees: `metrics` and
`wait_until_ready` come back within TIMEOUT_SECONDS each; a loader that fails or hangs costs its own row
only, and says so.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import READY
from benchmarks.probes import Metrics

TIMEOUT_SECONDS = 120  # ten times what a loader takes
NUM_ERROR_LINES = 5
ROOT = Path(__file__).parent.parent


class FreshProcess:
    """`python -m benchmarks.measure`, once. `python` is the interpreter that runs it."""

    def __init__(self, case: str, loader: str, quick: bool, python: str = sys.executable) -> None:
        command = [python, "-m", "benchmarks.measure", "--case", case, "--loader", loader]
        command += ["--json", "--wait", *(["--quick"] if quick else [])]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def wait_until_ready(self) -> None:
        """Until its imports are done, or it has failed."""
        assert self._process.stdout is not None
        with self._killed_when_late():
            for line in self._process.stdout:
                if line.strip() == READY:
                    return

    def metrics(self) -> Metrics | None:
        """Measures now. None, after a line about the reason, if nothing came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._killed_when_late():
            try:
                self._process.stdin.write("go\n")
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended; the reason is below
            output = self._process.stdout.read()
            code = self._process.wait()
        self._process.stdout.close()
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines()
        self._errors.close()
        if code:
            reason = f"nothing in {TIMEOUT_SECONDS} s" if code == -signal.SIGKILL else f"exit code {code}"
            print(f"  failed: {reason}", *errors[-NUM_ERROR_LINES:], sep="\n    ", file=sys.stderr)
            return None
        return json.loads(output.splitlines()[-1])

    @contextmanager
    def _killed_when_late(self) -> Iterator[None]:
        timer = threading.Timer(TIMEOUT_SECONDS, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
