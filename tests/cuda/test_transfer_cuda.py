"""Transfer to a CUDA device: values, overlap, memory, and whose device a thread uses.

They need one device, one of them two. A kernel that only spins stands for the training step: its time is known.
"""

import random
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset

from torchstage import StageLoader

pytestmark = pytest.mark.cuda

MIB = 2**20


class Made(Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, length, make):
        self.length = length
        self.make = make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


def loader_of(length: int, make: Any, **options: Any) -> StageLoader:
    return StageLoader(
        Made(length, make), **{"num_workers": 4, "device": "cuda", "persistent_workers": True, **options}
    )


def spin(seconds: float) -> None:
    """Keep the current stream busy; returns at once."""
    torch.cuda._sleep(int(seconds * cycles_per_second()))


_cycles: list[float] = []


def cycles_per_second() -> float:
    if not _cycles:
        torch.cuda._sleep(1_000_000)  # the first one also loads the kernel
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(100_000_000)
        end.record()
        end.synchronize()
        _cycles.append(100_000_000 / (begin.elapsed_time(end) / 1e3))
    return _cycles[0]


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_stream", ["default", "another"])
@pytest.mark.parametrize("num_workers", [0, 4])
def test_every_value_is_right_under_delays_everywhere(on_stream, num_workers):
    """Each batch is overwritten after its use and let go: memory that came back too early would show."""
    draw = random.Random(5)

    def make(index: int) -> torch.Tensor:
        time.sleep(draw.choice([0, 0, 0, 1e-3]))
        return torch.full((1000,), index, dtype=torch.int32)

    num_samples = 4000
    stream = torch.cuda.default_stream() if on_stream == "default" else torch.cuda.Stream()
    totals = torch.zeros(num_samples // 4, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for number, batch in enumerate(loader_of(num_samples, make, batch_size=4, num_workers=num_workers)):
            assert batch.device == torch.device("cuda", torch.cuda.current_device())
            if draw.random() < 0.1:
                spin(draw.random() * 5e-3)
            totals[number] = batch.sum()
            batch.fill_(-1)
    torch.cuda.synchronize()
    assert totals.tolist() == [1000 * (16 * number + 6) for number in range(num_samples // 4)]


def test_values_are_right_where_the_caller_changes_streams_from_batch_to_batch():
    streams = [torch.cuda.Stream() for _ in range(3)]
    totals = torch.zeros(300, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    batches = iter(loader_of(300, lambda index: torch.full((50_000,), index), batch_size=None))
    for number in range(300):
        with torch.cuda.stream(streams[number % 3]):
            batch = next(batches)
            spin(1e-4)
            totals[number] = batch.sum()
            batch.fill_(-1)
            del batch
    torch.cuda.synchronize()
    assert totals.tolist() == [50_000 * number for number in range(300)]


def test_what_a_sample_computes_on_the_device_is_right_for_the_caller_at_once():
    def make(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        spin(1e-3)  # what follows is late
        return torch.full((1000,), index, device="cuda") * 2, torch.tensor(index)

    stream = torch.cuda.Stream()
    totals = torch.zeros(100, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for number, (there, here) in enumerate(loader_of(200, make, batch_size=2)):
            totals[number] = there.sum() + here.sum()
            there.fill_(-1)
    torch.cuda.synchronize()
    assert totals.tolist() == [2001 * (4 * number + 1) for number in range(100)]


def test_types_arrive_as_they_were():
    def collate(samples: list[torch.Tensor]) -> dict[str, Any]:
        return {
            "packed": pack_sequence([samples[0], samples[0][:1]]),
            "sparse": samples[0].to_sparse(),
            "leaf": samples[0].clone().requires_grad_(),
            "twice": [samples[0], samples[0]],
            "name": "a",
        }

    (batch,) = loader_of(1, lambda index: torch.ones(3), collate_fn=collate)
    assert type(batch["packed"]) is PackedSequence
    assert batch["packed"].data.is_cuda
    assert batch["packed"].batch_sizes.device.type == "cpu"
    assert batch["sparse"].is_sparse
    assert batch["sparse"].is_cuda
    assert batch["leaf"].is_leaf
    assert batch["leaf"].requires_grad
    assert batch["twice"][0] is batch["twice"][1]
    assert batch["name"] == "a"


# Time ---------------------------------------------------------------------------------------------------------------


def test_copies_happen_while_the_device_computes():
    """What a step waits for its batch, by events on the stream that computes, against what the copy alone takes."""
    sources = [torch.ones(16 * MIB // 4) for _ in range(8)]
    step_seconds, num_steps = 30e-3, 40
    copy_seconds = seconds_to_copy(sources[0])
    spin(1e-3)
    torch.cuda.synchronize()
    begins, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(num_steps)] for _ in range(2))
    for number, batch in enumerate(loader_of(num_steps, lambda index: sources[index % 8], batch_size=None)):
        begins[number].record()
        spin(step_seconds)
        batch.mul_(2)
        ends[number].record()
    torch.cuda.synchronize()
    waits = [end.elapsed_time(begin) / 1e3 for end, begin in zip(ends[4:-1], begins[5:], strict=True)]
    assert sum(waits) / len(waits) < copy_seconds / 2


def seconds_to_copy(source: torch.Tensor) -> float:
    pinned = source.pin_memory()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    pinned.to("cuda", non_blocking=True)
    begin.record()
    for _ in range(10):
        pinned.to("cuda", non_blocking=True)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e4


def test_next_does_not_wait_for_the_device():
    batches = iter(loader_of(20, lambda index: torch.ones(100), batch_size=1))
    next(batches)
    time.sleep(0.2)  # for the threads to get ahead, so that only the device could make it slow
    torch.cuda.synchronize()
    spin(0.5)
    begin = time.perf_counter()
    batch = next(batches)
    assert time.perf_counter() - begin < 0.25
    assert batch.cpu().tolist() == [[1.0] * 100]


# Memory -------------------------------------------------------------------------------------------------------------


def test_reserved_memory_does_not_grow_with_epochs():
    batch_bytes = 16 * MIB
    loader = loader_of(5, lambda index: torch.ones(batch_bytes // 4), batch_size=1)
    reserved: list[int] = []
    for _ in range(60):
        for batch in loader:
            batch.sum().item()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] - reserved[1] <= batch_bytes


def test_an_empty_dataset_yields_nothing():
    assert list(loader_of(0, lambda index: torch.ones(1), sampler=[])) == []


@pytest.mark.skipif(not hasattr(torch.cuda, "host_memory_stats"), reason="this torch does not count pinned memory")
def test_pinned_memory_stops_growing_and_is_given_back():
    """Sixty sizes: each is a whole batch, taken from ordinary memory, pinned, copied and let go."""
    sizes = [MIB + number * (15 * MIB // 60) for number in range(60)]
    random.Random(3).shuffle(sizes)
    prefetch_factor, num_workers, largest = 2, 4, max(sizes)
    depth = prefetch_factor * num_workers + 1  # batches in flight, where each is a ticket of its own
    torch._C._host_emptyCache()
    before = pinned_bytes()
    loader = loader_of(
        60, lambda index: torch.ones(sizes[index] // 4), batch_size=None, prefetch_factor=prefetch_factor
    )
    for _ in range(3):
        for batch in loader:
            del batch
    after_three = pinned_bytes() - before
    for _ in range(7):
        for batch in loader:
            del batch
    torch.cuda.synchronize()
    assert pinned_bytes() - before <= 2 * (depth + 2) * largest
    assert pinned_bytes() - before <= after_three + 4 * 2 * largest  # the timing of two epochs differs a little
    loader.close()
    assert pinned_bytes() - before <= 2 * largest


def pinned_bytes() -> int:
    stats = torch.cuda.host_memory_stats()
    return stats.get("reserved_bytes.current", stats["allocated_bytes.current"])


def test_a_batch_that_does_not_fit_is_an_error_in_its_place_and_the_next_one_comes():
    def make(index: int) -> torch.Tensor:
        return torch.zeros((512 if index == 1 else 1) * MIB // 4)

    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 256 * MIB) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        batches = iter(loader_of(3, make, batch_size=None))
        assert next(batches).numel() == MIB // 4
        with pytest.raises(torch.OutOfMemoryError) as caught:
            next(batches)
        notes = "\n".join(caught.value.__notes__)
        assert "512.0 MiB were being copied to cuda" in notes
        assert "stage 'transfer'" in notes
        assert next(batches).numel() == MIB // 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# Whose device -------------------------------------------------------------------------------------------------------


class Tells:
    """A batch that notes which device is current in the threads that handle it."""

    devices: list[int]

    def __init__(self, samples: list[Any]) -> None:
        self.devices = []

    def pin_memory(self) -> "Tells":
        self.devices.append(torch.cuda.current_device())
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> "Tells":
        self.devices.append(torch.cuda.current_device())
        self.device = device
        return self


@pytest.mark.parametrize("index", range(2))
def test_threads_use_the_device_that_was_current_when_the_epoch_began(index):
    if index >= torch.cuda.device_count():
        pytest.skip("there is only one device")
    with torch.cuda.device(index):
        batches = list(loader_of(4, lambda sample: sample, collate_fn=Tells))
    assert [batch.devices for batch in batches] == [[index, index]] * 4
    assert all(batch.device == torch.device("cuda", index) for batch in batches)


OTHER_DEVICE = """
import torch
from torchstage import StageLoader
loader = StageLoader([torch.ones(1000) for _ in range(64)], batch_size=4, num_workers=4, device="cuda:1")
for _ in range(2):
    for batch in loader:
        assert batch.device == torch.device("cuda:1")
torch.cuda.synchronize(1)
loader.close()
del batch
assert torch._C._cuda_hasPrimaryContext(1)
assert not torch._C._cuda_hasPrimaryContext(0), "device 0 was started"
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is only one device")
def test_no_other_device_is_started():
    done = subprocess.run([sys.executable, "-c", OTHER_DEVICE], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
