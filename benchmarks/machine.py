"""Machine: nothing in; the date, the cores, the system and the versions that a result is read by out."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "torchstage",
    "torch",
    "torchvision",
    "torchdata",
    "spdl",
    "grain",
    "webdataset",
    "numpy",
    "pillow",
    "av",
    "obstore",
)
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": NUM_CORES,
        "processor": _processor(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "python_build": _python_build(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _python_build() -> str:
    """The compiler, and whether this interpreter has a GIL."""
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"{platform.python_compiler()}, {'with' if has_gil else 'without'} GIL"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
