"""Scripts: a script of these tests and its folder in; how it ended and what it wrote, out. No process is left."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

MAX_SECONDS = 110.0
ROOT = Path(__file__).parents[2]
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED")


def run_script(name: str, folder: Path) -> tuple[int, str]:
    """Its exit code and what it wrote. AssertionError if it does not end."""
    environment = {key: value for key, value in os.environ.items() if key not in OF_RANKS}
    environment |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, str(Path(__file__).with_name(name)), str(folder)]
        script = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            script.wait(MAX_SECONDS)
    finally:
        has_ended = script.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()
    said = (folder / "log").read_text()
    assert has_ended, f"{name} still ran after {MAX_SECONDS:g} s, and wrote:\n{said}"
    return script.returncode, said
