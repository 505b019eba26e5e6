"""Ceiling: the parts of an image's cost in, the most that any loader made of threads can reach out.

    python -m benchmarks.ceiling [--images 512] [--runs 5] > docs/profiles.md

Three tables. First each step of the image case alone: its cost in one thread, and how much more two threads do that
share nothing; two that never hold the GIL do twice as much. Then the whole work without a loader (each thread makes
batches of its own share of the images and throws them away), in threads and in processes, beside the loaders, all in
turns in one process. What bare threads do not reach, no loader made of threads can. Last, cheap samples in memory: what
DataLoader without workers loses when it merely runs in a thread of its own, beside what StageLoader loses by handing
batches over.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import functional

from benchmarks.cases.cheap_memory import SmallPictures
from benchmarks.cases.image_folder import BATCH_SIZE, dataset
from benchmarks.probes import tree_cpu_seconds
from torchstage import StageLoader
from torchstage.threads import use_one_core

STEP_SECONDS = 1.0
READING = """## How to read this

- **Image case.** Two threads without any loader are the ceiling: crop, flip, ToTensor and Normalize hold the GIL for a
  part of their time, so two threads do less than twice the work of one. StageLoader is at that ceiling; what is missing
  to two processes that throw their batches away is the GIL's. Only transforms that hold it less can change that.
- **Cheap samples.** The work is the same, and a thread of its own costs it little. What is lost is the hand-over: the
  consumer wakes, takes the GIL and asks for more, some ten microseconds a batch, and each time the working thread waits
  for the GIL. Where the training step does anything at all, the two overlap and the loss is gone
  (`benchmarks/results/cheap_memory.json`). For datasets like that `num_workers=0` is the better choice.
- **First batch.** The first two samples are made by one thread alone, to see what the dataset opens and changes. With N
  threads and a batch of B samples, the first batch of the first epoch takes at least (2 + (B - 2) / N) samples' time,
  rounded up, instead of B / N. Later epochs do not pay it, nor does `isolation="shared"`.
"""
Rate = tuple[float, float]  # images a second, CPU milliseconds an image


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ceiling", description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    images = dataset(options.images)
    print("# Profiles: where the time goes\n")
    print(f"Drawn by `python -m benchmarks.ceiling --images {options.images} --runs {options.runs}` on")
    print(f"{len(os.sched_getaffinity(0))} cores; see `benchmarks/ceiling.py` for what each row is.\n")
    print("## The image case\n")
    print(_table(("step", "ms an image, one thread", "two threads do"), _steps(images)))
    print()
    head = ("who does the work", "images/s", "against the first", "CPU ms an image")
    print(_table(head, _wholes(images, options.runs)))
    print("\n## Cheap samples in memory\n")
    print(_table(("who does the work", "batches of 64", "batches of 256"), _cheap(2 * options.runs)))
    print("\n" + READING)


def _steps(images: Any) -> list[tuple[str, ...]]:
    """Each step of an image on inputs that are ready: its milliseconds, and what two threads do of it."""
    path = images.samples[0][0]
    picture = Image.open(path).convert("RGB")
    crop = picture.crop((60, 40, 360, 300)).resize((224, 224), Image.Resampling.BILINEAR)
    tensor = functional.to_tensor(crop)
    out = torch.empty(BATCH_SIZE, *tensor.shape)
    steps: dict[str, Callable[[], Any]] = {
        "open, read, decode (Pillow)": lambda: Image.open(path).convert("RGB"),
        "RandomResizedCrop": lambda: images.transform.transforms[0](picture),
        "RandomHorizontalFlip": lambda: images.transform.transforms[1](crop),
        "ToTensor": lambda: images.transform.transforms[2](crop),
        "Normalize": lambda: images.transform.transforms[3](tensor),
        f"collate, a {BATCH_SIZE}th": lambda: torch.stack([tensor] * BATCH_SIZE, out=out),
        "all of the sample": lambda: images[0],
    }
    rows: list[tuple[str, ...]] = []
    for name, step in steps.items():
        share = BATCH_SIZE if name.startswith("collate") else 1
        one = _calls_a_second(step, 1)
        two = _calls_a_second(step, 2)
        rows.append((name, f"{1e3 / one / share:.2f}", f"{two / one:.2f} x"))
    return rows


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


def _wholes(images: Any, num_runs: int) -> list[tuple[str, ...]]:
    """The whole case by each of them, in turns: medians."""
    ways: dict[str, Callable[[], None]] = {
        "DataLoader, 2 workers": lambda: _drain(DataLoader(images, BATCH_SIZE, shuffle=True, num_workers=2)),
        "StageLoader, 2 threads": lambda: _drain(StageLoader(images, BATCH_SIZE, shuffle=True, num_workers=2)),
        "bare: 1 thread, no loader": lambda: _bare_threads(images, 1),
        "bare: 2 threads, no loader": lambda: _bare_threads(images, 2),
        "bare: 2 processes, batches thrown away": lambda: _bare_processes(images, 2),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    for _ in range(num_runs):
        for name, way in ways.items():
            rates[name].append(_rate(way, len(images)))
    medians = {name: tuple(statistics.median(part) for part in zip(*each, strict=True)) for name, each in rates.items()}
    first = next(iter(medians.values()))[0]
    return [(name, f"{rate:.0f}", f"{rate / first:.2f} x", f"{cpu:.2f}") for name, (rate, cpu) in medians.items()]


def _cheap(num_runs: int) -> list[tuple[str, ...]]:
    """Speed against DataLoader without workers, for tensors of 3 x 32 x 32 that are only indexed and stacked."""
    dataset = SmallPictures(12_800)
    columns: list[dict[str, float]] = []
    for batch_size in (64, 256):
        kept = StageLoader(dataset, batch_size, shuffle=True, num_workers=1, persistent_workers=True)
        inline = DataLoader(dataset, batch_size, shuffle=True)
        ways: dict[str, Callable[[], None]] = {
            "DataLoader, 0 workers": partial(_drain, inline),
            "the same, in a thread of its own": partial(_run_in_a_thread, inline),
            "the same, torch on one core": partial(_run_on_one_core, inline),
            "StageLoader, 1 thread": partial(_drain, kept),
        }
        _drain(kept)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(num_runs):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - start)
        kept.close()
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        columns.append({name: medians["DataLoader, 0 workers"] / median for name, median in medians.items()})
    return [(name, *(f"{column[name]:.2f} x" for column in columns)) for name in columns[0]]


def _run_in_a_thread(loader: Any) -> None:
    _run([threading.Thread(target=_drain, args=(loader,))])


def _run_on_one_core(loader: Any) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _drain(loader)
    finally:
        torch.set_num_threads(num_threads)


def _rate(way: Callable[[], None], num_images: int) -> Rate:
    cpu, start = tree_cpu_seconds(), time.perf_counter()
    way()
    return num_images / (time.perf_counter() - start), 1e3 * (tree_cpu_seconds() - cpu) / num_images


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


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


if __name__ == "__main__":
    main()
