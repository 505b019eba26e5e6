"""Kept: a name and a way to fill a folder in, that folder, filled, with its files' bytes in the page cache, out.

Guarantees: it is made once and kept under the system's temporary folder; a folder half made is never seen under the
final name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def kept(name: str, fill: Callable[[Path], None], pattern: str) -> Path:
    """The folder of that name. `fill` makes the files, the same every time; `pattern` finds them."""
    path = Path(tempfile.gettempdir()) / f"torchstage-benchmarks-{os.getuid()}" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=path.parent))
        fill(unfinished)
        try:
            unfinished.rename(path)
        except OSError:  # another process was faster; its files are the same
            shutil.rmtree(unfinished)
    for file in path.glob(pattern):
        file.read_bytes()
    return path
