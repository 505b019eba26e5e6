"""Process tree: this process and those that it started in, the CPU time and the memory of all of them out.

Guarantees: where the system does not tell, this process alone is counted, and what is not known is None.
"""

import os
import time
from pathlib import Path

KIB = 1024


def pids_of_tree(root: int | None = None) -> list[int]:
    """The process and its descendants that are there now. Without /proc, the process alone."""
    root = os.getpid() if root is None else root
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, number = [root], 0
    while number < len(found):
        found += children.get(found[number], [])
        number += 1
    return found


def _fields(pid: int) -> list[str] | None:
    """Of /proc/<pid>/stat, what comes after the name, which may hold anything: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def cpu_seconds_of_tree() -> float | None:
    """CPU seconds of all of them so far; those that ended and were waited for included."""
    if not Path("/proc/self/stat").exists():
        return time.process_time()
    ticks = 0
    for pid in pids_of_tree():
        fields = _fields(pid)
        if fields is not None:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and of children that were waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_of_tree() -> tuple[int | None, bool]:
    """Bytes that are resident, and whether what several of them share was counted once."""
    total, is_once = 0, True
    for pid in pids_of_tree():
        proportional = _proportional(pid)
        if proportional is not None:
            total += proportional
            continue
        is_once = False
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):  # it has ended, or there is no /proc
            continue
    return (total or None), is_once


def _proportional(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), None)
