"""What stages must not share: objects that keep what they do, open files, generators; wherever the stage runs."""

import asyncio
import io
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.crowd import NUM_RECORDS, record_of, write_records
from tests.stages.placing import PATIENCE_SECONDS, Awaited, Numbers, Places
from torchstage import Stage, StagedDataset, StageLoader

LENGTH = 60
WORDS = ["t", "1", "3", "a", "a2", "t 3 a"]


class Named(Awaited):
    """Of a callable object, which has no name."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = type(function).__name__


def stages_of(function: Any, words: str) -> list[Stage]:
    """The first is this function, those after it do nothing; or it is the middle one."""
    places = Places({})
    made = [Stage(abs), Stage(abs, concurrency=2)] if " " in words else []
    word = words.split()[-1]
    stage = Stage(Named(function), concurrency=int(word[1:] or 64)) if word[0] == "a" else places.stage(function, word)
    return [*made, stage]


class Crop:
    """Draws, keeps what it drew on itself, lets others run, then uses it: as MONAI's transforms do."""

    def __init__(self) -> None:
        self.shift = 0
        self.seen = [0]

    def randomize(self, value: int) -> None:
        self.shift = value + random.randrange(10)
        self.seen[0] = self.shift
        threading.Event().wait(0.0002)

    def __call__(self, value: int) -> list[int]:
        self.randomize(value)
        return [value, self.shift, self.seen[0]]


@pytest.mark.parametrize("words", WORDS)
def test_an_object_that_keeps_its_parameters_is_each_thread_s_own(words):
    def epoch(num_workers: int) -> list[Any]:
        with StageLoader(
            Numbers(LENGTH), 4, num_workers=num_workers, stages=stages_of(Crop(), words), collate_fn=list, seed=1
        ) as loader:
            return [sample for batch in loader for sample in batch]

    samples = epoch(4)
    assert samples == epoch(0)
    for index, (value, shift, seen) in enumerate(samples):
        assert value == 10 * index
        assert value <= shift == seen < value + 10


class Lookup:
    """Reads from a file that it holds open."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")

    def __call__(self, value: int) -> int:
        return int(record_of(self.file, value // 10))


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("words", WORDS)
def test_an_open_file_is_each_thread_s_own(words, num_workers, tmp_path):
    lookup = Lookup(write_records(tmp_path / "records"))
    with StageLoader(Numbers(NUM_RECORDS), 4, num_workers=num_workers, stages=stages_of(lookup, words)) as loader:
        for _ in range(2):
            assert torch.cat(list(loader)).tolist() == list(range(NUM_RECORDS))
    lookup.file.close()


class Shared:
    """Two transforms that share one generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float64) + self.rng.random() / 2


@pytest.mark.parametrize("words", ["t t", "2 2", "t 3", "a a", "t a", "a 2"])
def test_a_generator_that_two_stages_share(words):
    def epoch(words: str, num_workers: int) -> list[float]:
        rng = np.random.default_rng(3)
        stages = [stages_of(Shared(rng), word)[-1] for word in words.split()]
        with StageLoader(Numbers(LENGTH), 4, num_workers=num_workers, stages=stages, seed=4) as loader:
            return torch.cat(list(loader)).tolist()

    plain = epoch("t t", 0)
    assert epoch(words, 1) == plain
    assert epoch(words, 4) == plain


class Unique:
    """Cannot be copied, and must not be used by two threads at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("r+b")

    def __call__(self, value: int) -> int:
        return int(record_of(self.file, value // 10))


@pytest.mark.parametrize("words", ["t", "3", "a", "t 3 a"])
def test_what_cannot_be_copied_is_used_by_one_at_a_time_with_one_warning(words, tmp_path):
    unique = Unique(write_records(tmp_path / "records"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        with StageLoader(Numbers(NUM_RECORDS), 4, num_workers=4, stages=stages_of(unique, words)) as loader:
            for _ in range(3):
                assert torch.cat(list(loader)).tolist() == list(range(NUM_RECORDS))
    ours = [str(warning.message) for warning in told if "StageLoader" in str(warning.message)]
    assert len(ours) == 1
    assert "stages[" in ours[0]
    unique.file.close()


class Reader(Numbers):
    """The dataset holds the file; stages come after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(NUM_RECORDS)
        self.file = path.open("rb")

    def __getitem__(self, index: int) -> int:
        return 10 * int(record_of(self.file, index))


@pytest.mark.parametrize("words", ["t", "3", "a", "x", "p", "2 a x"])
def test_the_dataset_s_handles_with_stages_after_it(words, everywhere, tmp_path):
    dataset = Reader(write_records(tmp_path / "records"))
    with StageLoader(dataset, 4, num_workers=4, stages=everywhere.stages([abs, abs, abs], words)) as loader:
        for _ in range(2):
            assert torch.cat(list(loader)).tolist() == list(range(0, 10 * NUM_RECORDS, 10))
    dataset.file.close()


class Staged(StagedDataset):
    """Its own stages share its file, in its own threads and on the loop."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")

    def __len__(self) -> int:
        return NUM_RECORDS

    async def fetch(self, index: int) -> bytes:
        await asyncio.sleep(0)
        return record_of(self.file, index)

    def decode(self, data: bytes) -> tuple[int, int]:
        return int(io.BytesIO(data).read()), int(record_of(self.file, int(data)))


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_a_staged_dataset_that_holds_a_file(num_workers, tmp_path):
    dataset = Staged(write_records(tmp_path / "records"))
    with StageLoader(dataset, 4, num_workers=num_workers) as loader:
        pairs = [pair for one, other in loader for pair in zip(one.tolist(), other.tolist(), strict=True)]
    assert pairs == [(number, number) for number in range(NUM_RECORDS)]
    dataset.file.close()


def test_a_pure_stage_is_shared_and_many_threads_are_in_it_at_once():
    together = threading.Barrier(3)

    def meets(value: int) -> int:
        if value == 200:
            pass
        elif 80 <= value < 110:
            together.wait(PATIENCE_SECONDS)
        return value

    for stage in (Stage(meets), Stage(meets, concurrency=3)):
        together.reset()
        with StageLoader(Numbers(30), 10, num_workers=3, stages=[stage]) as loader:
            assert torch.cat(list(loader)).tolist() == list(range(0, 300, 10))
