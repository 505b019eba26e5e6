"""Ceiling: the parts of an image's cost in, the most that any loader made of threads can reach out.

    python -m benchmarks.ceiling --measure        # writes benchmarks/results/ceiling.json, in about two minutes
    python -m benchmarks.ceiling > docs/profiles.md

Three tables. First each step of the image case alone: its cost in one thread, and how much more two threads do that
share nothing; two that never hold the GIL do twice as much. Then the whole work without a loader (each thread makes
batches of its own share of the images and throws them away), in threads and in processes, beside the loaders, all in
turns in one process. What bare threads do not reach, no loader made of threads can. Last, cheap samples in memory: what
DataLoader without workers loses when it merely runs in a thread of its own, beside what StageLoader loses by handing
batches over.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import functional

from benchmarks import profiles
from benchmarks.cases.cheap_memory import SmallPictures
from benchmarks.cases.image_folder import BATCH_SIZE, dataset
from benchmarks.machine import machine
from benchmarks.probes import Metrics, machine_busy_seconds, tree_cpu_seconds
from benchmarks.quiet import wait_for_quiet
from torchstage import StageLoader
from torchstage.threads import use_one_core

RESULT = Path(__file__).parent / "results" / "ceiling.json"
STEP_SECONDS = 1.0
NUM_CHEAP = 12_800
CHEAP_BATCH_SIZES = (64, 256)
Round = dict[str, dict[str, Any]]  # a part's name -> a row's name -> its metrics


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ceiling", description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure, and draw nothing")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for others to be quiet")
    options = parser.parse_args()
    if options.measure:
        result = measure(options.rounds, options.images, options.patience)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    else:
        print(profiles.page(json.loads(RESULT.read_text())), end="")


def measure(num_rounds: int, num_images: int, patience_seconds: float) -> dict[str, Any]:
    """Everything that the page needs: ``rounds[r][part][row][metric]``. (`benchmarks.profiles` draws it.)"""
    images = dataset(num_images)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "steps": partial(_steps, images),
        "wholes": partial(_wholes, images),
        "cheap": _cheap,
    }
    start = time.perf_counter()
    rounds: list[Round] = [
        {name: _watched(p, patience_seconds) for name, p in parts.items()} for _ in range(num_rounds)
    ]
    return {
        "case": "ceiling",
        "quick": False,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "machine": machine(),
        "num_images": num_images,
        "batch_size": BATCH_SIZE,
        "rounds": rounds,
    }


def _watched(part: Callable[[], dict[str, Any]], patience_seconds: float) -> dict[str, Any]:
    """What a part measures, and how many cores other programs kept busy meanwhile."""
    wait_for_quiet(patience_seconds)
    busy_before, cpu_before, start = machine_busy_seconds(), tree_cpu_seconds(), time.perf_counter()
    measured = part()
    seconds = time.perf_counter() - start
    others = machine_busy_seconds() - busy_before - (tree_cpu_seconds() - cpu_before)
    return {**measured, "cores_used_by_others": max(0.0, others / seconds)}


def _steps(images: Any) -> dict[str, Metrics]:
    """Each step of an image on inputs that are ready: calls a second in one thread and in two."""
    path = images.samples[0][0]
    picture = Image.open(path).convert("RGB")
    crop = picture.crop((60, 40, 360, 300)).resize((224, 224), Image.Resampling.BILINEAR)
    tensor = functional.to_tensor(crop)
    out = torch.empty(BATCH_SIZE, *tensor.shape)
    collate = f"collate, a {BATCH_SIZE}th"
    steps: dict[str, Callable[[], Any]] = {
        "open, read, decode (Pillow)": lambda: Image.open(path).convert("RGB"),
        "RandomResizedCrop": lambda: images.transform.transforms[0](picture),
        "RandomHorizontalFlip": lambda: images.transform.transforms[1](crop),
        "ToTensor": lambda: images.transform.transforms[2](crop),
        "Normalize": lambda: images.transform.transforms[3](tensor),
        collate: lambda: torch.stack([tensor] * BATCH_SIZE, out=out),
        "all of the sample": lambda: images[0],
    }
    return {
        name: {
            "images_per_call": BATCH_SIZE if name == collate else 1,
            "calls_per_second_1": _calls_a_second(step, 1),
            "calls_per_second_2": _calls_a_second(step, 2),
        }
        for name, step in steps.items()
    }


def _calls_a_second(step: Callable[[], Any], num_threads: int) -> float:
    counts = [0] * num_threads
    start, end = threading.Barrier(num_threads), [0.0]

    def repeat(number: int) -> None:
        use_one_core()
        step()
        if start.wait() == 0:
            end[0] = time.perf_counter() + STEP_SECONDS
        start.wait()
        while time.perf_counter() < end[0]:
            step()
            counts[number] += 1

    _run([threading.Thread(target=repeat, args=(number,)) for number in range(num_threads)])
    return sum(counts) / STEP_SECONDS


def _wholes(images: Any, num_turns: int = 3) -> dict[str, Metrics]:
    """The whole case by each of them, in turns: medians."""
    ways: dict[str, Callable[[], None]] = {
        "DataLoader, 2 workers": lambda: _drain(DataLoader(images, BATCH_SIZE, shuffle=True, num_workers=2)),
        "StageLoader, 2 threads": lambda: _drain(StageLoader(images, BATCH_SIZE, shuffle=True, num_workers=2)),
        "bare: 1 thread, no loader": lambda: _bare_threads(images, 1),
        "bare: 2 threads, no loader": lambda: _bare_threads(images, 2),
        "bare: 2 processes, batches thrown away": lambda: _bare_processes(images, 2),
    }
    return _medians(ways, lambda way: _rate(way, len(images)), num_turns)


def _cheap(num_turns: int = 10) -> dict[str, Metrics]:
    """Seconds an epoch of tensors of 3 x 32 x 32 takes that are only indexed and stacked, by batch size."""
    dataset = SmallPictures(NUM_CHEAP)
    seconds: dict[str, Metrics] = {}
    for batch_size in CHEAP_BATCH_SIZES:
        kept = StageLoader(dataset, batch_size, shuffle=True, num_workers=1, persistent_workers=True)
        inline = DataLoader(dataset, batch_size, shuffle=True)
        ways: dict[str, Callable[[], None]] = {
            "DataLoader, 0 workers": partial(_drain, inline),
            "the same, in a thread of its own": partial(_run_in_a_thread, inline),
            "the same, torch on one core": partial(_run_on_one_core, inline),
            "StageLoader, 1 thread": partial(_drain, kept),
        }
        _drain(kept)
        key = f"seconds_{batch_size}"
        for name, metrics in _medians(ways, lambda way: {key: _seconds(way)}, num_turns).items():  # noqa: B023
            seconds.setdefault(name, {}).update(metrics)
        kept.close()
    return seconds


def _medians(
    ways: dict[str, Callable[[], None]], measure: Callable[[Callable[[], None]], Metrics], num_turns: int
) -> dict[str, Metrics]:
    """Each way's metrics, measured in turns."""
    turns = [{name: measure(way) for name, way in ways.items()} for _ in range(num_turns)]
    return {
        name: {key: statistics.median(turn[name][key] for turn in turns) for key in turns[0][name]} for name in ways
    }


def _seconds(way: Callable[[], None]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def _run_in_a_thread(loader: Any) -> None:
    _run([threading.Thread(target=_drain, args=(loader,))])


def _run_on_one_core(loader: Any) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _drain(loader)
    finally:
        torch.set_num_threads(num_threads)


def _rate(way: Callable[[], None], num_images: int) -> Metrics:
    cpu, start = tree_cpu_seconds(), time.perf_counter()
    way()
    seconds, cpu_seconds = time.perf_counter() - start, tree_cpu_seconds() - cpu
    return {"images_per_second": num_images / seconds, "cpu_ms_per_image": 1e3 * cpu_seconds / num_images}


def _drain(loader: Any) -> None:
    for _ in loader:
        pass


def _make_batches(images: Any, indices: Sequence[int]) -> None:
    use_one_core()
    for begin in range(0, len(indices), BATCH_SIZE):
        default_collate([images[index] for index in indices[begin : begin + BATCH_SIZE]])


def _bare_threads(images: Any, number: int) -> None:
    order = torch.randperm(len(images)).tolist()
    _run([threading.Thread(target=_make_batches, args=(images, order[part::number])) for part in range(number)])


def _bare_processes(images: Any, number: int) -> None:
    order = torch.randperm(len(images)).tolist()
    children: list[int] = []
    for part in range(number):
        child = os.fork()  # as DataLoader's default here; nothing else runs in this process
        if child == 0:
            _make_batches(images, order[part::number])
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
