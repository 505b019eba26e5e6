"""Ranks: a script beside this file and a folder in; it runs as two ranks, and what each has written is given back.

Guarantees: no process is left; where a rank fails, what both printed is told.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 110.0


def run_on_two_ranks(script: str, folder: Path) -> list[dict[str, Any]]:
    """The script is given the folder, and writes rank_0.json and rank_1.json there."""
    port = str(free_port())
    scripts = []
    for rank in "01":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "ACCELERATE_USE_CPU": "true",
        }
        command = [sys.executable, str(Path(__file__).with_name(script)), str(folder)]
        with (folder / f"log_{rank}").open("w") as log:
            scripts.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        codes = [script.wait(MAX_SECONDS) for script in scripts]
    finally:
        for script in scripts:
            script.kill()
            script.wait()
    assert codes == [0, 0], [(folder / f"log_{rank}").read_text() for rank in "01"]
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in "01"]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
