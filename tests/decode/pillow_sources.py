"""Pillow sources: the version of the installed Pillow in, the folder of its own test images out.

They are in its source package only, which pip fetches from the index that it is set up for. pip would go on to build
the package; it is told to use no build environment, which nearly always ends there at once, and to leave the unpacked
files behind. Kept under the system's temporary folder; a folder half made is never seen under the final name.

    python -m tests.decode.pillow_sources    # prints where they are
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TIMEOUT_SECONDS = 400  # the package is 47 MB
NUM_LINES_OF_REASON = 3


class NotFetchedError(Exception):
    """The message is the reason."""


def folder() -> Path:
    """Raises NotFetchedError where there is no pip, no network or no such package."""
    pillow = version("pillow")
    path = Path(tempfile.gettempdir()) / f"torchstage-tests-{os.getuid()}" / f"pillow-{pillow}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as unfinished:
            shutil.move(_unpacked(pillow, Path(unfinished)), Path(unfinished) / "images")
            try:
                (Path(unfinished) / "images").rename(path)
            except OSError:  # another process was faster; its files are the same
                assert path.exists()
    return path


def _unpacked(pillow: str, inside: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", f"pillow=={pillow}", "--no-binary", "pillow", "--no-deps"]
    command += ["--no-build-isolation", "--no-clean", "--no-cache-dir", "--dest", str(inside)]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": str(inside)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"pip took more than {TIMEOUT_SECONDS} s") from error
    for images in inside.rglob("Tests/images"):
        return images
    raise NotFetchedError("; ".join(ended.stdout.strip().splitlines()[-NUM_LINES_OF_REASON:]))


if __name__ == "__main__":
    print(folder())
