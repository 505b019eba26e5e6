"""Probed: one setting to measure in, what it gave out, in a process that does nothing else.

It is started by ``torchstage.probe.command`` as ``python -m torchstage.probe.measured asked.json answer.json``.

Guarantees: an answer is written also where the user's code fails.
"""

import dataclasses
import importlib
import json
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from torchstage.accounts import has_gil
from torchstage.executors.processes import NotPicklable
from torchstage.loader import StageLoader
from torchstage.placement.placement import placement_of
from torchstage.probe.prediction import Prediction, prediction_of
from torchstage.probe.process_tree import cpu_seconds_of_tree, memory_of_tree

MOST_SECONDS = 5.0  # until a loader has seen enough; it takes half a second where samples take milliseconds


class NotFound(Exception):  # noqa: N818  # told as it is
    """There is no such thing as was asked for."""


def named(spec: str) -> Any:
    """What "module:name" or "path/to/file.py:name" says. Raises NotFound with what is missing."""
    where, _, name = spec.rpartition(":")
    module_name = where
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise NotFound(f"there is no file {where}")
        sys.path.insert(0, str(path.parent))  # so that other processes find it by its name, too
        module_name = path.stem
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise NotFound(f"there is no module {module_name}. It is looked for from the current folder") from None
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotFound(f"{where} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise NotFound(f"{spec} is a {type(found).__name__}, which cannot be called: name a function or a class")
    return found


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``probing.Probed``."""
    try:
        dataset: Any = named(asked["dataset"])()
    except NotFound:
        raise
    except Exception as error:
        traceback.print_exc()
        raise NotFound(f"{asked['dataset']} failed: {type(error).__name__}: {error}") from error
    is_iterable = isinstance(dataset, IterableDataset)
    if not is_iterable and not hasattr(dataset, "__getitem__"):
        raise NotFound(f"{asked['dataset']} made a {type(dataset).__name__}, which is no dataset")
    collate_fn = named(asked["collate"]) if asked["collate"] is not None else None
    make: Any = StageLoader
    loader: Any = make(
        dataset,
        batch_size=asked["batch_size"],
        num_workers=asked["num_workers"],
        collate_fn=collate_fn,
        worker_method=asked["method"],
        persistent_workers=True,
    )
    with loader:
        found = _measured(loader, asked["seconds"], counting(loader))
    if asked["predict_for"] is not None:
        seen = predicted(dataset, asked["batch_size"], asked["predict_for"], collate_fn)
        found["prediction"] = None if seen is None else dataclasses.asdict(seen)
    return found


def predicted(
    dataset: Any, batch_size: int, num_workers: int, collate_fn: Callable[[list[Any]], Any] | None = None
) -> Prediction | None:
    """What as many threads, and as many processes, should make of it: one thread alone works meanwhile, and is looked
    at, as in every loader's first epoch. None: of an iterable dataset, without a GIL, and where too little was seen."""
    if isinstance(dataset, IterableDataset) or not has_gil():
        return None
    found, deadline = None, time.perf_counter() + MOST_SECONDS
    while found is None and time.perf_counter() < deadline:
        found = _looked_at(dataset, batch_size, num_workers, collate_fn, deadline)
    return found


def _looked_at(dataset: Any, batch_size: int, num_workers: int, collate_fn: Any, deadline: float) -> Prediction | None:
    """Once, by a new loader. None: on a busy machine, a look of half a second may be too short."""
    make: Any = StageLoader
    loader: Any = make(dataset, batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn)
    placement = placement_of(loader.ledger)
    with loader:
        for _ in _endless(loader, counting(loader)):
            if placement.scene is not None or time.perf_counter() > deadline:
                break
    return prediction_of(placement.scene)


def counting(loader: Any) -> Callable[[int], int]:
    """Tells how many samples the first so many batches of an epoch have; of an iterable dataset, as far as was
    counted."""
    if isinstance(loader.dataset, IterableDataset):
        return lambda num_batches: num_batches * loader.batch_size
    length, batch_size = len(loader.dataset), loader.batch_size
    return lambda num_batches: min(length, num_batches * batch_size)


def _measured(loader: Any, seconds: float, num_samples_in: Callable[[int], int]) -> dict[str, Any]:
    asked_at = time.perf_counter()
    batches = _endless(loader, num_samples_in)
    num_first, batch = next(batches)
    begin = time.perf_counter()
    pickled, buffers = serialised(batch)
    cpu_before, start = cpu_seconds_of_tree(), time.perf_counter()
    num_samples, memory, is_shared_once = 0, None, True
    next_look = start + seconds / 2
    elapsed = 0.0
    for num_each, _ in batches:
        num_samples += num_each
        now = time.perf_counter()
        elapsed = now - start
        if now >= next_look:
            next_look = now + seconds
            memory, is_shared_once = memory_of_tree()
        if now - start >= seconds:
            break
    if memory is None:
        memory, is_shared_once = memory_of_tree()
    cpu = cpu_seconds_of_tree()
    return {
        "samples_per_second": num_samples / elapsed,
        "first_batch_seconds": begin - asked_at,
        "cores_used": None if cpu is None or cpu_before is None else (cpu - cpu_before) / elapsed,
        "memory_bytes": memory,
        "is_shared_counted_once": is_shared_once,
        "serialised_bytes": None if pickled is None else (pickled + buffers) // max(1, num_first),
        "pickled_bytes": None if pickled is None else pickled // max(1, num_first),
        "num_samples": num_samples,
    }


def _endless(loader: Any, num_samples_in: Callable[[int], int]) -> Iterator[tuple[int, Any]]:
    """Each batch and how many samples it has, epoch after epoch."""
    while True:
        number = 0
        for number, batch in enumerate(loader, 1):
            yield num_samples_in(number) - num_samples_in(number - 1), batch
        if number == 0:
            raise NotFound("the dataset is empty")


def serialised(value: Any) -> tuple[int | None, int]:
    """Bytes of a value as processes send it: pickled, and in buffers beside that. None: it cannot be."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = len(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))
    except Exception:
        return None, 0
    return pickled, sum(buffer.raw().nbytes for buffer in buffers)


def main(asked_path: str, answer_path: str) -> None:
    """Write the answer, or the error in words."""
    answer: dict[str, Any]
    try:
        answer = measured(json.loads(Path(asked_path).read_text()))
    except NotFound as error:
        answer = {"error": str(error), "is_final": True}
    except NotPicklable as error:
        answer = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(answer_path).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
