"""Transfer: which device batches go to, what is refused, and what is told. No device is needed."""

import pytest
import torch
from fake_accelerator import FakeAccelerator

from torchstage import StageLoader
from torchstage import streams as streams_module
from torchstage.streams import Plain, streams_of
from torchstage.transfer import Transfer, explain_fork


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Two CUDA devices that are never touched; the entry ``current`` is the calling thread's."""
    current = {"current": 1}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current["current"])

    def never() -> None:
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "_lazy_init", never)
    return current


def test_without_an_index_it_is_the_device_that_is_current_when_the_epoch_begins(two_devices):
    transfer = Transfer("cuda", lambda device: FakeAccelerator())
    first = transfer.route()
    assert first.device == torch.device("cuda:1")
    two_devices["current"] = 0
    assert transfer.route().device == torch.device("cuda:0")
    two_devices["current"] = 1
    assert transfer.route() is first


def test_with_an_index_it_is_always_that_one(two_devices):
    for device in ("cuda:0", torch.device("cuda", 0), 0):
        assert Transfer(device, lambda device: FakeAccelerator()).route().device == torch.device("cuda:0")


def test_making_one_does_not_start_cuda(two_devices):
    assert Transfer("cuda").device == torch.device("cuda")


def test_a_device_beyond_the_last_is_refused_at_once(two_devices):
    with pytest.raises(ValueError, match=r"'cuda:2': there are 2, numbered from 0"):
        Transfer("cuda:2")


def test_a_machine_without_such_a_device_is_told_at_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match=r"device 'cuda': this machine has none.*Use device=None"):
        Transfer("cuda")


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:x", "vulkan"])
def test_what_is_no_device_for_batches_is_refused(device):
    with pytest.raises(ValueError, match=f"batches cannot go to device '{device}'"):
        Transfer(device)


@pytest.mark.parametrize("device", [True, 1.5, ["cpu"]])
def test_what_is_no_device_at_all_is_refused(device):
    with pytest.raises(TypeError, match="device must be"):
        Transfer(device)


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, AttributeError])
def test_an_accelerator_without_streams_gets_plain_copies(monkeypatch, error):
    class NoStreams(streams_module.Accelerator):
        def __init__(self, device: torch.device) -> None:
            raise error("no streams here")

    monkeypatch.setattr(streams_module, "Accelerator", NoStreams)
    assert type(streams_of(torch.device("xpu:0"))) is Plain


def test_the_error_of_cuda_in_a_forked_process_tells_what_to_do():
    error = RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must ..."
    )
    explain_fork(error, [1])
    assert error.__notes__[0].startswith("torchstage: the dataset, a list, uses CUDA in a worker process.")
    other = RuntimeError("CUDA error")
    explain_fork(other, [1])
    assert not hasattr(other, "__notes__")


class UsesCudaInAProcess:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ...")


def test_a_dataset_that_uses_cuda_in_a_worker_process_is_told_so():
    loader = StageLoader(UsesCudaInAProcess(), num_workers=1, multiprocessing_context="fork")
    with loader, pytest.raises(RuntimeError, match="re-initialize CUDA") as caught:
        next(iter(loader))
    assert "give device='cuda'" in caught.value.__notes__[0]
