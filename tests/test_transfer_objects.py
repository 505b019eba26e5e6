"""Transfer of tensors of all kinds, and of objects that move themselves."""

from collections import UserDict
from typing import Any

import pytest
import torch
from fake_accelerator import FakeAccelerator, FakeStream, arrival

from torchstage.moving import as_it_was, method_of, parts_of, tensors_in
from torchstage.transfer import Transfer

CPU = torch.device("cpu")


@pytest.fixture
def fake() -> FakeAccelerator:
    return FakeAccelerator()


@pytest.fixture
def arrived(fake):
    return arrival(fake)


# Tensors ------------------------------------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    """A tensor with attributes."""


def tagged() -> Tagged:
    tensor = torch.arange(3.0).as_subclass(Tagged)
    tensor.tag = ["kept"]
    return tensor


def test_a_subclass_keeps_its_class_and_attributes(fake, arrived):
    sent = tagged()
    got = arrived([sent])[0]
    assert type(got) is Tagged
    assert got.tag is sent.tag
    assert got.tolist() == [0, 1, 2]
    assert fake.is_there(got)


def test_it_is_pinned_as_well(fake):
    (pinned,) = Transfer("cpu", lambda device: fake).route().pin([tagged()])
    assert type(pinned) is Tagged
    assert pinned.tag == ["kept"]
    assert fake.is_pinned(pinned)


def test_a_subclass_that_is_there_already_is_itself():
    sent = tagged()
    route = Transfer("cpu").route()
    assert route.end(route.begin([sent]))[0] is sent


def test_boxes_of_torchvision_keep_what_they_know(arrived):
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    sent = tv_tensors.BoundingBoxes(torch.ones(2, 4), format="XYWH", canvas_size=(5, 6))
    got = arrived({"boxes": sent})["boxes"]
    assert type(got) is tv_tensors.BoundingBoxes
    assert (got.format, got.canvas_size) == (sent.format, (5, 6))


def test_an_attribute_of_a_plain_tensor_is_kept(arrived):
    tensor = torch.ones(2)
    tensor.lengths = [1, 1]
    assert arrived(tensor).lengths is tensor.lengths


def test_a_leaf_of_autograd_stays_one(fake, arrived):
    sent = torch.ones(2, requires_grad=True)
    got = arrived(sent)
    assert got.requires_grad
    assert got.is_leaf
    assert fake.is_there(got)
    assert not arrived(torch.ones(2)).requires_grad


def test_a_parameter_stays_one(arrived):
    got = arrived(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    assert type(got) is torch.nn.Parameter
    assert not got.requires_grad


def test_gradients_flow_back_through_what_is_no_leaf(fake):
    weight = torch.ones(2, requires_grad=True)
    route = Transfer("cpu", lambda device: fake).route()
    product = weight * 2
    assert route.pin([product])[0] is product  # pinning would cut it off
    got = as_it_was(product, "to", lambda tensor: tensor.to(torch.float64))
    got.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2]


def test_a_sparse_tensor_is_not_pinned(fake):
    sent = torch.eye(3).to_sparse()
    assert Transfer("cpu", lambda device: fake).route().pin([sent])[0] is sent


@pytest.mark.parametrize("make", [lambda: torch.ones(2).to_sparse(), lambda: torch.eye(3).to_sparse()])
def test_a_sparse_tensor_arrives(fake, arrived, make):
    sent = make()
    (got,) = arrived([sent])
    assert got.layout is torch.sparse_coo
    assert torch.equal(got.to_dense(), sent.to_dense())
    assert fake.log.count("record default") == 2  # its indices and its values


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state")
def test_the_memory_of_a_compressed_tensor_is_in_three_parts(layout):
    assert len(list(parts_of(getattr(torch.eye(3), f"to_sparse_{layout}")()))) == 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_nested_tensor_is_left_to_itself(fake):
    route = Transfer("cpu", lambda device: fake).route()
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert all(one is other for one, other in zip(route.pin([jagged, strided]), [jagged, strided], strict=True))
    assert {part.data_ptr() for part in parts_of(jagged)} >= {jagged.values().data_ptr()}
    assert [part.data_ptr() for part in parts_of(strided)] == [strided.unbind()[0].data_ptr()]
    plain = Transfer("cpu").route()
    assert plain.end(plain.begin([jagged]))[0] is jagged


def test_a_tensor_without_memory_passes(arrived):
    sent = torch.ones(2, device="meta")
    assert arrived([sent])[0] is sent


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and other")
def test_a_quantized_tensor_is_not_pinned(fake):
    sent = torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8)
    assert Transfer("cpu", lambda device: fake).route().pin([sent])[0] is sent


class Mover(torch.Tensor):
    """A tensor that has its own way."""

    def to(self, device):
        moved = self.clone().as_subclass(Mover)
        moved.went_to = device
        return moved


def test_a_tensor_with_a_way_of_its_own_goes_it(arrived):
    got = arrived([torch.ones(2).as_subclass(Mover)])[0]
    assert got.went_to == CPU


# Objects ------------------------------------------------------------------------------------------------------------


class Batch:
    """A batch of the user's own, which tells what was done to it."""

    def __init__(self, value: torch.Tensor | None = None, done: tuple[Any, ...] = ()) -> None:
        self.value = torch.ones(2) if value is None else value
        self.done = done

    def pin_memory(self) -> "Batch":
        return type(self)(self.value, (*self.done, "pinned"))

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        return type(self)(self.value, (*self.done, device, non_blocking))


class ToldDevice(Batch):
    def pin_memory(self, device: str) -> "Batch":
        return type(self)(self.value, (*self.done, "pinned for", device))


class Blocking(Batch):
    def to(self, device: Any) -> "Batch":
        return super().to(device)


class Anything(Batch):
    def to(self, *args: Any, **kwargs: Any) -> "Batch":
        return super().to(*args, **kwargs)


class Pinnable:
    def __init__(self, is_pinned: bool = False) -> None:
        self.is_pinned = is_pinned

    def pin_memory(self, *names: str) -> "Pinnable":
        assert not names
        return Pinnable(True)


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        (Batch, ("pinned", CPU, True)),
        (ToldDevice, ("pinned for", "cpu", CPU, True)),
        (Blocking, ("pinned", CPU, False)),
        (Anything, ("pinned", CPU, True)),
    ],
)
def test_an_object_pins_and_moves_itself(arrived, kind, done):
    got = arrived({"batch": [kind()]})["batch"][0]
    assert type(got) is kind
    assert got.done == done


def test_one_that_only_pins_itself_is_only_pinned(arrived):
    assert arrived([Pinnable()])[0].is_pinned


class Time:
    """Its ``to`` is about something else."""

    def to(self, zone: str) -> "Time":
        raise AssertionError("it was moved to another zone")


class Quantity:
    def to(self, other: Any = None, *contexts: Any, **options: Any) -> "Quantity":
        raise AssertionError("it was converted")


class Static:
    @staticmethod
    def to(device: Any) -> None:
        raise AssertionError("it belongs to nobody")


@pytest.mark.parametrize("kind", [Time, Quantity, Static])
def test_a_method_that_knows_no_device_is_not_called(arrived, kind):
    sent = kind()
    assert arrived([sent, torch.ones(1)])[0] is sent


def test_a_class_in_a_batch_is_not_called(arrived):
    assert arrived([Batch, torch.ones(1)])[0] is Batch


class Answers(dict):
    """Its elements are attributes too, whatever they are called."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def test_an_element_called_to_is_no_method(fake, arrived):
    got = arrived(Answers(to=torch.ones(2), pin_memory=3))
    assert type(got) is Answers
    assert fake.is_there(got.to)


class Encoding(UserDict):
    """Moves in place and returns itself, as a tokenizer's batches do; has no ``pin_memory``."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self.encodings = ["kept"]

    def to(self, device: Any, *, non_blocking: bool = False) -> "Encoding":
        self.data = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in self.items()}
        return self


def test_the_batch_of_a_tokenizer_is_pinned_by_us_and_moves_itself(fake):
    route = Transfer("cpu", lambda device: fake).route()
    sent = Encoding({"ids": torch.ones(2), "names": ["a"]})
    before = sent["ids"]
    pinned = route.pin(sent)
    assert type(pinned) is Encoding
    assert fake.is_pinned(pinned["ids"])
    got = route.end(route.begin(pinned))
    assert got.encodings == ["kept"]
    assert sent["ids"] is before


class Recorder(Batch):
    """Tells its own memory."""

    streams: tuple[Any, ...] = ()

    def record_stream(self, stream: Any) -> None:
        self.streams += (stream,)


def test_an_object_that_tells_its_own_memory_is_asked_to(fake, arrived, monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "record", lambda self, used, stream: used.record_stream(stream))
    assert arrived([Recorder()])[0].streams == (fake.default,)


class Opaque:
    """Nobody sees its tensors."""

    __slots__ = ("hidden",)

    def __init__(self, fake: FakeAccelerator, tensor: torch.Tensor) -> None:
        self.hidden = lambda: (fake, tensor)

    def to(self, device: Any) -> "Opaque":
        fake, tensor = self.hidden()
        return Opaque(fake, fake.copy(tensor))


def test_an_object_whose_tensors_nobody_sees_is_copied_as_the_thread_itself_would(fake):
    route = Transfer("cpu", lambda device: fake).route()
    fake.set_stream(FakeStream("mine"))
    moved = route.begin([Opaque(fake, torch.tensor([4.0])), torch.ones(1)])
    assert fake.log[:2] == ["copy on mine", "copy on side"]
    fake.set_stream(FakeStream("another"))
    hidden, _ = route.end(moved)
    assert fake.read(hidden.hidden()[1]).tolist() == [4.0]


class Slotted:
    __slots__ = ("inner", "unset")

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def to(self, device: Any) -> "Slotted":
        return self


def test_tensors_are_seen_in_containers_attributes_and_slots():
    a, b, c, d = (torch.ones(n) for n in range(1, 5))
    graph = Batch(a)
    graph.more = {"b": [b], "slotted": Slotted(Batch(c))}
    graph.itself = graph
    graph.stranger = type("Stranger", (), {"tensor": d})()  # its attributes are not the batch's
    assert {tensor.numel() for tensor in tensors_in(graph)} == {1, 2, 3}


def test_a_method_written_in_c_is_left_alone():
    assert method_of(memoryview(b""), "to", CPU) is None
    assert method_of(3, "pin_memory", CPU) is None
