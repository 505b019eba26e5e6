"""The scripts of ``examples/migrate``: run as a user runs them, imported, and what their loaders give compared."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "examples" / "migrate"

Sample = Sequence[Any]


def run(name: str, *options: str) -> str:
    """What the script prints, standard error included. Fails with all of it where the script fails."""
    command = [sys.executable, *options, str(FOLDER / f"{name}.py")]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def script(name: str) -> ModuleType:
    """The script as a module. Its folder stays on the path: processes of a loader find its classes there."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def samples_of(batches: Iterable[Any]) -> list[Sample]:
    """All samples of batches that are tuples or lists of tensors and lists."""
    return [sample for batch in batches for sample in zip(*fields_of(batch), strict=True)]


def fields_of(batch: Any) -> list[Any]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def assert_same_batches(reference: Iterable[Any], candidate: Iterable[Any]) -> None:
    """The same batches in the same order: types, dtypes, shapes and every value."""
    reference, candidate = list(reference), list(candidate)
    assert len(reference) == len(candidate)
    assert reference, "there is nothing to compare"
    for number, (expected, got) in enumerate(zip(reference, candidate, strict=True)):
        assert_same(expected, got, f"batch {number}")


def assert_same_samples(reference: Iterable[Any], candidate: Iterable[Any], key: int) -> None:
    """The same samples in any order and any batches; ``key`` is the field that names a sample."""
    expected, got = ({as_key(s[key]): s for s in samples} for samples in map(list, (reference, candidate)))
    assert expected, "there is nothing to compare"
    assert sorted(expected) == sorted(got)
    for name, sample in expected.items():
        assert_same(list(sample), list(got[name]), f"sample {name}")


def as_key(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def assert_same(expected: Any, got: Any, where: str) -> None:
    assert type(expected) is type(got), where
    if isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (got.dtype, got.shape), where
        assert torch.equal(expected, got), where
    elif isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape) == (got.dtype, got.shape), where
        assert np.array_equal(expected, got), where
    elif isinstance(expected, dict):
        assert list(expected) == list(got), where
        for name in expected:
            assert_same(expected[name], got[name], f"{where}, {name}")
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(got), where
        for at, (one, other) in enumerate(zip(expected, got, strict=True)):
            assert_same(one, other, f"{where}, {at}")
    else:
        assert expected == got, where
