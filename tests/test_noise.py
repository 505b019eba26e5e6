"""Noise: libraries with threads of their own are named, and those that can be are limited in loader threads."""

import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchstage import threads
from torchstage.engine.heartbeat import Reading
from torchstage.placement import noise
from torchstage.placement.measuring import Measured
from torchstage.placement.parts import Asked
from torchstage.placement.placement import Placement


def test_opencv_is_named_with_the_call_that_limits_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(noise, "loaded_libraries", list)
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(getNumThreads=lambda: 8))
    said = noise.noise_of(3.14)
    assert said is not None
    assert "cv2.setNumThreads(1)" in said
    assert "3.1 cores" in said


@pytest.mark.parametrize("module", [SimpleNamespace(getNumThreads=lambda: 1), SimpleNamespace()])
def test_opencv_that_is_limited_or_is_another_cv2_is_not(module: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(noise, "loaded_libraries", list)
    monkeypatch.setitem(sys.modules, "cv2", module)
    assert noise.noise_of(3.0) is None


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("libscipy_openblas64_-32a4b2a6.so", "OPENBLAS_NUM_THREADS=1"),
        ("libmkl_rt.so.2", "MKL_NUM_THREADS=1"),
        ("libblis.so.4", "BLIS_NUM_THREADS=1"),
    ],
)
def test_a_blas_is_named_with_the_variable_that_limits_it(file: str, words: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr(noise, "loaded_libraries", lambda: [file, "libc.so.6"])
    said = noise.noise_of(2.0)
    assert said is not None
    assert words in said
    assert "threadpoolctl" in said


def test_libraries_that_are_loaded_are_found() -> None:
    if sys.platform == "linux":
        assert any("torch" in file for file in noise.loaded_libraries())


def measured(num_cores_used: float) -> Measured:
    return Measured({"fetch": Reading(1.0, 1.0, 10, 30, 0.0)}, 0.0, num_cores_used, 30, 0.3)


def test_it_is_said_once_and_only_if_more_than_a_core_and_a_half_was_used(monkeypatch: Any) -> None:
    monkeypatch.setattr(noise, "loaded_libraries", lambda: ["libopenblas.so.0"])
    placement = Placement()
    placement.say_noise(measured(1.2))
    with pytest.warns(UserWarning, match="one loader thread kept 1.9 cores busy"):
        placement.say_noise(measured(1.9))
    placement.say_noise(measured(1.9))
    assert Asked().method == "auto"


def others_share(work: Callable[[], object]) -> float:
    """CPU time of the process against that of this thread alone."""
    work()
    process, own = time.process_time(), time.thread_time()
    for _ in range(3):
        work()
    return (time.process_time() - process) / (time.thread_time() - own)


@pytest.mark.timing
def test_torch_multiplies_on_one_core_in_a_loader_thread() -> None:
    matrix, found = torch.randn(800, 800), list[float]()

    def run() -> None:
        threads.use_one_core()
        found.append(others_share(lambda: matrix @ matrix))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0] < 1.3


def test_the_threads_of_others_keep_their_number() -> None:
    before = torch.get_num_threads()
    thread = threading.Thread(target=threads.use_one_core)
    thread.start()
    thread.join()
    assert torch.get_num_threads() == before
