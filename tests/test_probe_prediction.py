"""What the probe predicts of what one thread alone showed: by hand, and of real functions."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from torchstage.__main__ import main
from torchstage.accounts import has_gil
from torchstage.placement.model import Scene, Seen, Unit
from torchstage.probe import command as probing
from torchstage.probe.command import Probed, Report, Setting
from torchstage.probe.measured import predicted
from torchstage.probe.prediction import Prediction, prediction_of

MS = 1e-3
ONE, MANY, PROCESSES = Setting("thread", 1), Setting("thread", 4), Setting("multiprocessing", 4)


def seen(wall: float, cpu: float, held: float | None) -> Scene:
    unit = Unit((Seen("fetch", wall * MS, cpu * MS, None if held is None else held * MS, 100),))
    return Scene((unit,), num_threads=4, num_cores=4, batch_size=32, batch_bytes=0)


@pytest.mark.parametrize(
    ("wall", "cpu", "held", "threads", "processes"),
    [
        (4, 4, 0.4, 1000, 990),  # decodes: the cores are the limit
        (4, 4, 4, 227, 990),  # Python: one thread at a time, and these in each other's way
        (4, 4, 2, 500, 990),  # half: the GIL lets two through
        (4, 0.1, 0.1, 1000, 998),  # waits
    ],
)
def test_the_slowest_of_threads_cores_and_gil_decides(
    wall: float, cpu: float, held: float, threads: float, processes: float
) -> None:
    found = prediction_of(seen(wall, cpu, held))
    assert found is not None
    assert found.per_second("thread") == pytest.approx(threads, rel=0.01)
    assert found.per_second("multiprocessing") == pytest.approx(processes, rel=0.01)
    assert found.share_without_gil == pytest.approx(1 - held / wall)
    assert (found.sample_seconds, found.cpu_seconds) == pytest.approx((wall * MS, cpu * MS))


def test_where_too_little_was_seen_nothing_is_predicted() -> None:
    assert prediction_of(None) is None
    assert prediction_of(seen(4, 4, None)) is None
    assert prediction_of(seen(0, 0, 0)) is None


def test_collation_is_a_part_of_a_sample() -> None:
    alone = seen(4, 4, 0)
    collated = Scene(alone.units, 4, 4, 32, Seen("collate", 1 * MS, 1 * MS, None), 0)
    found = prediction_of(collated)
    assert found is not None
    assert found.sample_seconds == pytest.approx(5 * MS)
    assert found.share_without_gil == pytest.approx(0.8)  # what was too short to be seen counts as held


# In the table


def report(prediction: Prediction | None) -> Report:
    rates = {ONE: 250.0, MANY: 900.0, PROCESSES: 800.0}
    found = [Probed(each, rate, 0.1, 1.0, 2**20, True, 400, 400, 100) for each, rate in rates.items()]
    first = Probed(ONE, 250.0, 0.1, 1.0, 2**20, True, 400, 400, 100, prediction)
    return Report("my:data", 32, 4, (first, *found[1:]), MANY, "it is the fastest")


def test_a_table_has_what_was_predicted_beside_what_was_measured() -> None:
    text = str(report(Prediction(4, 4, 4 * MS, 4 * MS, 0.9, 1000.0, 990.0)))
    rows = {line[2:13].strip(): line[13:].split()[:2] for line in text.splitlines()[3:6]}
    assert rows == {"1 thread": ["250.0", "-"], "4 threads": ["900.0", "1000.0"], "4 processes": ["800.0", "990.0"]}
    assert "One thread alone: 4 ms a sample, 4 ms of it CPU time, 90 % of it without the GIL." in text


def test_without_a_prediction_the_table_has_dashes() -> None:
    text = str(report(None))
    assert all(line[13:].split()[1] == "-" for line in text.splitlines()[3:6])
    assert "One thread alone" not in text


# Of real functions


class Waits(Dataset[int]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        return index


class Counts(Waits):
    """Plain Python."""

    def __getitem__(self, index: int) -> int:
        return sum(number % 7 for number in range(30_000))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody needs to read it")


@pytest.mark.timing
@pytest.mark.skipif(not has_gil(), reason="nothing holds a GIL that is not there")
def test_waiting_and_python_are_told_apart() -> None:
    waits, counts = predicted(Waits(), 8, 4), predicted(Counts(), 8, 4)
    assert waits is not None
    assert counts is not None
    assert waits.share_without_gil > 0.75
    assert counts.share_without_gil < 0.3
    assert waits.threads_per_second * waits.sample_seconds > 2  # four wait at once
    assert counts.threads_per_second * counts.sample_seconds < 1.5  # one counts at a time


def test_of_an_iterable_dataset_nothing_is_predicted_and_nothing_read() -> None:
    assert predicted(Stream(), 8, 4) is None


def test_the_command_has_it_in_its_json_with_what_one_thread_gave(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "slow_datasets.py"
    path.write_text(
        "import time\nclass Waits(list):\n    def __init__(self):\n        super().__init__(range(200))\n"
        "    def __getitem__(self, index):\n        time.sleep(0.004)\n        return index\n"
    )
    assert (
        main(["probe", f"{path}:Waits", "--json", "--seconds", "0.1", "--num-workers", "2", "--batch-size", "4"]) == 0
    )
    one, *others = json.loads(capsys.readouterr().out)["settings"]
    assert [each["prediction"] for each in others] == [None, None]
    if has_gil():
        assert one["prediction"]["num_workers"] == 2
        assert one["prediction"]["sample_seconds"] >= 0.004


def test_one_worker_is_predicted_for_processes_alone(monkeypatch: Any) -> None:
    prediction = Prediction(1, 4, 4 * MS, 4 * MS, 0.9, 250.0, 249.0)

    def run(request: Any, setting: Setting) -> Probed:
        return Probed(setting, 240.0, 0.1, 1.0, 2**20, True, 400, 400, 100, prediction if setting == ONE else None)

    monkeypatch.setattr(probing, "_run", run)
    found = probing.probe(probing.Request("mine:make", num_workers=1))
    assert [found.predicted(one.setting) for one in found.settings] == [None, 249.0]
