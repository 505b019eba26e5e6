"""Noise: the libraries that are loaded in, which of them keep threads of their own at work, in words, out.

Guarantees: nothing is changed, and nothing is imported that was not imported already.
"""

import sys
from pathlib import Path
from typing import Any

BLAS = {  # what the file of a library is called: its name, and the variable that limits it
    "openblas": ("OpenBLAS", "OPENBLAS_NUM_THREADS"),
    "blis": ("BLIS", "BLIS_NUM_THREADS"),
    "mkl_rt": ("MKL", "MKL_NUM_THREADS"),
    "mkl_core": ("MKL", "MKL_NUM_THREADS"),
}


def noise_of(num_cores_used: float) -> str | None:
    """A warning that names the pools of threads that may be behind it; None if no such library is loaded."""
    found = [*_opencv(), *_blas(loaded_libraries())]
    if not found:
        return None
    return (
        f"StageLoader: one loader thread kept {num_cores_used:.1f} cores busy, so a library starts threads of its own "
        f"inside the dataset's functions: {'; or '.join(found)}. Beside the other loader threads, they only wait for "
        "each other."
    )


def _opencv() -> list[str]:
    cv2: Any = sys.modules.get("cv2")
    try:
        number = int(cv2.getNumThreads())
    except Exception:  # not there, or not that cv2
        return []
    return [f"OpenCV has {number}: call cv2.setNumThreads(1)"] if number > 1 else []


def _blas(files: list[str]) -> list[str]:
    found = {known for file in files for part, known in BLAS.items() if part in file.lower()}
    return [
        f"{name} may: set {variable}=1 before Python starts, or call threadpoolctl.threadpool_limits(1, 'blas')"
        for name, variable in sorted(found)
    ]


def loaded_libraries() -> list[str]:
    """The files of shared libraries that this process has loaded; none where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return sorted({line.rpartition("/")[2] for line in lines if ".so" in line})
