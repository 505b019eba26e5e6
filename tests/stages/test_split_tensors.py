"""Split of a TensorDataset: a batch at once is what default_collate makes of its samples, however odd the tensors."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data._utils.collate as torch_collate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset, default_collate

from torchstage import tensor_batches
from torchstage.split import split
from torchstage.tensor_batches import MAX_SAMPLE_BYTES, TensorBatches

from .outcomes import ODD_INDICES, outcome

DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32),
]


def one_by_one(dataset: TensorDataset, indices: Any) -> Any:
    return default_collate([dataset[index] for index in indices])


def properties(batch: Any) -> Any:
    """All that can be seen of a batch of tensors, for comparison."""
    if isinstance(batch, str):
        return batch
    if not isinstance(batch, torch.Tensor):
        return type(batch), [properties(part) for part in batch]
    flags = batch.is_contiguous(), batch.requires_grad, batch.is_inference(), batch.is_conj(), batch.is_neg()
    return type(batch), batch.dtype, batch.shape, batch.layout, batch.device, *_content(batch), flags


def _content(batch: torch.Tensor) -> tuple[Any, Any]:
    if batch.layout is not torch.strided or batch.is_quantized or batch.is_nested or batch.is_meta:
        return "-", str(batch)
    plain = batch.detach().resolve_conj().resolve_neg().contiguous()
    return batch.stride(), plain.view(-1).view(torch.uint8).tolist() if plain.numel() else []


def assert_same_batch(dataset: TensorDataset, indices: Any) -> None:
    got, expected = outcome(TensorBatches(dataset), indices), outcome(one_by_one, dataset, indices)
    assert got[0] == expected[0], (got, expected)
    if got[0] == "gave":
        assert properties(got[1]) == properties(expected[1])
    else:
        assert got == expected


def no_single_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(samples: Any) -> Any:
        raise AssertionError("the samples were taken one by one")

    monkeypatch.setattr(tensor_batches, "_default_collate", refuse)


# any tensors, any indices


@st.composite
def any_tensor(draw: st.DrawFn, length: int) -> torch.Tensor:
    """Of any type and shape, and with any strides: permuted, with steps, expanded, with odd strides where size is 1."""
    sizes = [length, *draw(st.lists(st.integers(0, 4) | st.just(1), max_size=4))]
    order = draw(st.permutations(range(len(sizes))))
    steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in sizes]
    stored = torch.empty([sizes[i] * steps[i] for i in order]).random_(0, 2)
    tensor = stored.to(draw(st.sampled_from(DTYPES))).permute([order.index(i) for i in range(len(sizes))])
    tensor = tensor[tuple(slice(None, None, step) for step in steps)]
    form = draw(st.sampled_from(["as it is"] * 3 + ["contiguous", "channels last", "expanded", "odd strides"]))
    if form == "contiguous":
        return tensor.contiguous()
    if form == "channels last" and tensor.dim() in (4, 5):
        return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
    if form == "expanded":
        return tensor[:1].expand(tensor.shape) if length else tensor
    if form == "odd strides":
        strides = [7 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return tensor.as_strided(tensor.shape, strides)
    return tensor


@st.composite
def any_batch(draw: st.DrawFn) -> tuple[TensorDataset, Any]:
    length = draw(st.integers(0, 6))
    tensors = [draw(any_tensor(length)) for _ in range(draw(st.integers(1, 3)))]
    inside = st.integers(0, max(length - 1, 0))
    usual = st.lists(inside, max_size=6)
    odd = st.lists(inside | st.integers(-7, 7) | st.booleans() | st.sampled_from(ODD_INDICES), max_size=4)
    indices = draw(usual | usual.map(tuple) | usual.map(lambda i: list(np.array(i, np.int64))) | odd)
    return TensorDataset(*tensors), indices


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(any_batch())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_batch_at_once_is_the_collated_samples(batch):
    assert_same_batch(*batch)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(any_batch())
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_a_batch_at_once_is_the_collated_samples_many_times(batch):
    assert_same_batch(*batch)


# what is taken at once, and what not

PLAIN: dict[str, Any] = {
    **{str(dtype): torch.ones(9, 2).to(dtype) for dtype in DTYPES[:12]},
    "numbers": torch.arange(9),
    "images": torch.rand(9, 3, 4, 5),
    "grey images": torch.rand(9, 1, 4, 4),
    "volumes": torch.rand(9, 1, 2, 3, 4),
    "nothing": torch.ones(9, 0),
    "a view": torch.arange(40)[4:22].view(9, 2),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("indices", [[3, 1, 1], (0, 8), [5], list(np.array([2, 0]))], ids=repr)
def test_plain_tensors_are_taken_at_once(monkeypatch, name, indices):
    dataset = TensorDataset(PLAIN[name], torch.arange(9))
    assert_same_batch(dataset, indices)
    no_single_samples(monkeypatch)
    TensorBatches(dataset)(indices)


class Tagged(torch.Tensor):
    pass


def nested() -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged)


ODD: dict[str, Any] = {
    "a subclass": lambda: torch.ones(4, 2).as_subclass(Tagged),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(4, 2)),
    "needs a gradient": lambda: torch.ones(4, 2, requires_grad=True),
    "after an operation": lambda: torch.ones(4, 2, requires_grad=True) * 2,
    "sparse": lambda: torch.eye(4).to_sparse(),
    "sparse rows": lambda: torch.eye(4).to_sparse_csr(),
    "nested": nested,
    "conjugate": lambda: torch.ones(4, 2, dtype=torch.complex64).mul(1j).conj(),
    "negative": lambda: torch.ones(4, 2, dtype=torch.complex64).mul(1j).conj().imag,
    "on meta": lambda: torch.ones(4, 2, device="meta"),
    "transposed": lambda: torch.arange(8).view(2, 4).t(),
    "channels last": lambda: torch.rand(4, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "a number": lambda: torch.tensor(3),
    "expanded": lambda: torch.ones(1, 2).expand(4, 2),
}


@pytest.mark.filterwarnings("ignore:Sparse (CSR )?tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("indices", [[1, 0], [0], [0, 99], []], ids=repr)
def test_other_tensors_are_left_to_default_collate(monkeypatch, name, indices):
    dataset = TensorDataset(torch.ones(4))
    dataset.tensors = (torch.arange(4), ODD[name]())
    assert_same_batch(dataset, indices)
    no_single_samples(monkeypatch)
    with pytest.raises((AssertionError, *ERRORS)):
        TensorBatches(dataset)([1, 0])


ERRORS = (RuntimeError, IndexError, NotImplementedError, TypeError)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_quantised_tensors_are_left_to_default_collate():
    assert_same_batch(TensorDataset(torch.quantize_per_tensor(torch.rand(4, 2), 0.1, 0, torch.qint8)), [1, 0])


@pytest.mark.parametrize("index", ODD_INDICES, ids=repr)
def test_odd_indices(index):
    dataset = TensorDataset(torch.arange(8).view(4, 2), torch.rand(4))
    for indices in ([index], [0, index], [index, index], (index, 1), index):
        if indices is not object:
            assert_same_batch(dataset, indices)


@pytest.mark.parametrize("tensors", [(), [], None, [torch.ones(3)], (torch.ones(3), torch.ones(2)), ("word", "list")])
def test_tensors_that_users_put_there_themselves(tensors):
    dataset = TensorDataset(torch.ones(3))
    dataset.tensors = tensors
    for indices in ([0, 1], [2, 0], []):
        assert_same_batch(dataset, indices)


@pytest.mark.parametrize("in_inference", [False, True])
@pytest.mark.parametrize("made_in_inference", [False, True])
def test_inference_mode(in_inference, made_in_inference):
    with torch.inference_mode(made_in_inference):
        dataset = TensorDataset(torch.ones(3, 2))
    with torch.inference_mode(in_inference):
        assert_same_batch(dataset, [0, 2])


def test_a_default_device_is_not_taken_for_the_indices():
    dataset = TensorDataset(torch.arange(6).view(3, 2))
    with torch.device("meta"):
        batch = TensorBatches(dataset)([2, 0])
    assert [tensor.tolist() for tensor in batch] == [[[4, 5], [0, 1]]]


def test_a_batch_has_memory_of_its_own():
    tensor = torch.arange(6).view(3, 2)
    (batch,) = TensorBatches(TensorDataset(tensor))([1])
    batch.zero_()
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]


# what users change


@pytest.mark.parametrize("kind", [torch.Tensor, tuple, object])
def test_a_changed_default_collate_is_respected(monkeypatch, kind):
    dataset = TensorDataset(torch.arange(6).view(3, 2))
    batches = TensorBatches(dataset)

    def as_it_comes(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return "mine", len(batch)

    monkeypatch.setitem(torch_collate.default_collate_fn_map, kind, as_it_comes)
    expected = default_collate([dataset[0], dataset[1]])
    assert "mine" in str(expected) or kind is object
    assert str(batches([0, 1])) == str(expected)


def test_tensors_that_are_changed_later_are_seen():
    dataset = TensorDataset(torch.arange(3))
    batches = TensorBatches(dataset)
    dataset.tensors[0].add_(10)
    assert batches([1, 2])[0].tolist() == [11, 12]
    dataset.tensors = (torch.arange(3) * 2.0, torch.ones(3, requires_grad=True))
    assert [tensor.requires_grad for tensor in batches([1, 2])] == [False, True]


def test_subsets_take_a_batch_at_once_too(monkeypatch):
    dataset = TensorDataset(torch.arange(18).view(9, 2), torch.arange(9))
    subset = Subset(Subset(dataset, np.arange(8, 1, -1)), [6, 5, 4])
    expected = one_by_one(subset, [0, 2])
    no_single_samples(monkeypatch)
    assert properties(split(subset).fetch_many([0, 2])) == properties(expected)


def test_large_samples_are_left_to_be_taken_one_by_one():
    """There the loader's threads copy, into memory that it uses again."""
    small, large = torch.zeros(2, MAX_SAMPLE_BYTES, dtype=torch.uint8), torch.zeros(2, MAX_SAMPLE_BYTES + 1).byte()
    assert split(TensorDataset(small)).collated
    assert not split(TensorDataset(large)).collated
    assert not split(TensorDataset(small, small)).collated
    assert split(TensorDataset(large[:0, :9])).collated


def test_calls_of_default_collate_are_few(monkeypatch):
    """One a batch where it is asked at all, none where a batch is taken at once."""
    asked = []
    monkeypatch.setattr(tensor_batches, "_default_collate", lambda samples: asked.append(len(samples)))
    batches = TensorBatches(TensorDataset(torch.rand(500, 3)))
    batches(random.sample(range(500), 256))
    assert asked == []
    batches([0, -1, 2])
    assert asked == [3]
