"""Parcels: tensors of all kinds arrive as they are, and share the memory that they shared."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from lending import sent, through

from torchstage.executors import parcel as parcels
from torchstage.executors.desk import Desk
from torchstage.executors.parcel import pack, unpack
from torchstage.executors.slots import Slots


@pytest.fixture(params=["carried", "slot", "copied from a slot"])
def travel(request):
    if request.param == "carried":
        yield lambda value: unpack(sent(pack(value)))
        return
    slots, desk = Slots(8 if request.param == "slot" else 1), Desk()
    yield lambda value: through(slots, desk, lambda: value)
    slots.close()
    desk.close()


DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


def can_be_made(dtype):
    try:
        torch.empty(4, dtype=dtype).untyped_storage().nbytes()
    except Exception:
        return False
    return not str(dtype).startswith(("torch.q",))


@pytest.mark.parametrize("size", [5, 70_000])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if can_be_made(d)], ids=str)
def test_every_dtype(travel, dtype, size):
    value = torch.empty(size, dtype=dtype)
    value.view(torch.uint8).copy_(torch.randint(0, 2, (value.nbytes,), dtype=torch.uint8))
    got = travel(value)
    assert (got.dtype, got.shape, got.stride()) == (value.dtype, value.shape, value.stride())
    assert torch.equal(got.view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("size", [4, 200])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.rand(n, n),
        lambda n: torch.rand(n, n).t(),
        lambda n: torch.rand(2, 3, n, n).to(memory_format=torch.channels_last),
        lambda n: torch.rand(n, 2 * n)[1:, 1::2],
        lambda n: torch.rand(n, 1).expand(n, n),
        lambda n: torch.rand(n * n).as_strided((n, n), (1, 1)),
        lambda n: torch.tensor(3.0 + n),
        lambda n: torch.empty(n, 0, n),
        lambda n: torch.empty(0),
        lambda n: torch.rand(n, n)[0:0],
        lambda n: torch.rand(n, n)[:, :1],
        lambda n: torch.rand(1, n, n)[:, 1],
        lambda n: torch.view_as_complex(torch.rand(n, n, 2)),
        lambda n: torch.view_as_real(torch.rand(n, n, dtype=torch.complex64)),
        lambda n: torch.rand(n, n, dtype=torch.complex64).conj(),
        lambda n: torch.rand(n, n, dtype=torch.complex64).conj().imag,
        lambda n: torch.rand(n, n).requires_grad_(),
        lambda n: torch.nn.Parameter(torch.rand(n, n)),
        lambda n: torch.nn.Parameter(torch.rand(n, n), requires_grad=False),
        lambda n: torch.rand(n, n, device="meta"),
        lambda n: torch.from_numpy(torch.rand(n, n).numpy()),
    ],
    ids=[
        *(
            "rows",
            "transposed",
            "channels last",
            "strided",
            "expanded",
            "overlapping",
            "scalar",
            "no columns",
            "nothing",
        ),
        *("no rows", "column", "plane", "complex", "real", "conjugated", "negated", "requires grad", "parameter"),
        *("frozen parameter", "meta", "of an array"),
    ],
)
def test_every_kind_of_strided_tensor(travel, make, size):
    value = make(size)
    got, expected = travel(value), copy.deepcopy(value)
    assert type(got) is type(expected)
    assert (got.dtype, got.shape, got.stride()) == (value.dtype, value.shape, value.stride())
    assert (got.requires_grad, got.is_leaf, got.is_conj(), got.is_neg(), got.device) == (
        *(value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.device),
    )
    assert value.is_meta or torch.equal(got, value)


@pytest.mark.parametrize("size", [3, 300])
def test_sparse_and_nested_tensors(travel, size):
    dense = torch.eye(size)
    parts = [torch.rand(2, size), torch.rand(5, size)]
    values = [dense.to_sparse(), dense.to_sparse().coalesce()]
    got = travel(values)
    for mine, theirs in zip(got, values, strict=True):
        assert mine.layout is theirs.layout
        assert torch.equal(mine.to_dense(), theirs.to_dense())
    jagged = travel(torch.nested.nested_tensor(parts, layout=torch.jagged))
    assert jagged.layout is torch.jagged
    for mine, theirs in zip(jagged.unbind(), parts, strict=True):
        assert torch.equal(mine, theirs)


def test_subclasses_keep_their_type_and_what_belongs_to_them(travel):
    tv = pytest.importorskip("torchvision.tv_tensors")
    image = tv.Image(torch.randint(0, 255, (3, 100, 100), dtype=torch.uint8))
    boxes = tv.BoundingBoxes(torch.rand(4, 4), format="XYXY", canvas_size=(100, 100))
    got = travel([image, boxes, image[:, 5:7]])
    assert [type(each) for each in got] == [tv.Image, tv.BoundingBoxes, torch.Tensor]
    assert torch.equal(got[0], image)
    assert torch.equal(got[1], boxes)
    assert (got[1].format, got[1].canvas_size) == (boxes.format, boxes.canvas_size)


class Named(torch.Tensor):
    pass


def test_attributes_of_tensors_come_along(travel):
    plain, own = torch.rand(3), torch.rand(30_000).as_subclass(Named)
    plain.path, own.path = "a", "b"
    got = travel([plain, own])
    assert [(type(each), each.path) for each in got] == [(torch.Tensor, "a"), (Named, "b")]
    assert torch.equal(got[0], plain)
    assert torch.equal(got[1].as_subclass(torch.Tensor), own.as_subclass(torch.Tensor))


@pytest.mark.parametrize("size", [30, 30_000])
def test_tensors_that_share_memory_share_it_there(travel, size):
    whole = torch.arange(float(size))
    got = travel({"whole": whole, "part": whole[2:9], "bytes": whole.view(torch.uint8)[5:], "other": whole.clone()})
    got["part"][0] = -1.0
    assert got["whole"][2] == -1.0
    got["bytes"][16 * 4 - 5 : 17 * 4 - 5] = 0
    assert got["whole"][16] == 0
    assert got["other"][2] == 2.0
    assert got["part"].untyped_storage().data_ptr() == got["whole"].untyped_storage().data_ptr()


@pytest.mark.parametrize("size", [30, 30_000])
def test_parameters_subclasses_and_storages_share_memory_too(travel, size):
    whole = torch.arange(float(size))
    parameter, named = torch.nn.Parameter(whole[3:]), whole[1:20].as_subclass(Named)
    storage, detached, required = whole.untyped_storage(), parameter.detach(), whole.detach().requires_grad_()
    got = travel([whole, parameter, named, storage, detached, required])
    got[0].fill_(7.0)
    assert all(each.eq(7.0).all() for each in (*got[1:3], *got[4:]))
    assert torch.tensor(got[3][:8].tolist(), dtype=torch.uint8).view(torch.float32).eq(7.0).all()
    assert got[3].nbytes() == 4 * size


def test_overlapping_views_of_unlike_alignment_share_memory(travel):
    raw = torch.arange(400, dtype=torch.uint8)
    values = [raw[3:50], raw[8:48].view(torch.int64), raw[10:40].view(torch.int16)]
    got = travel(values)
    for mine, theirs in zip(got, values, strict=True):
        assert torch.equal(mine, theirs)
    got[0][5:13] = 0
    assert got[1][0] == 0
    assert got[2][:3].tolist() == [0, 0, 0]


def test_storages_of_all_types(travel):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        typed = torch.arange(5000).storage()
        got = travel([typed, torch.ones(3).untyped_storage(), torch.empty(0).untyped_storage()])
        assert got[0].tolist() == typed.tolist()
        assert got[0].dtype is torch.int64
    assert got[1].tolist() == torch.ones(3).untyped_storage().tolist()
    assert got[2].nbytes() == 0


def test_a_small_part_of_a_large_storage_is_sent_alone():
    large = torch.arange(10_000_000)
    parcel = pack([large[500:600], large[5_000_000:5_000_100], large[550:650].as_subclass(Named)])
    assert parcel.num_bytes < 10_000
    first, second, third = unpack(parcel)
    assert (first[0], second[0], third[0].item()) == (500, 5_000_000, 550)
    third[0] = -1
    assert first[50] == -1


def test_a_tensor_that_was_computed_says_what_to_do(travel):
    with pytest.raises(RuntimeError, match=r"shape \(2,\) requires grad.*Send tensor\.detach\(\)"):
        travel({"loss": torch.ones(2, requires_grad=True) * 2})


def test_a_tensor_whose_storage_was_freed_is_refused(travel):
    tensor = torch.ones(10)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="ends after its storage, which was resized to 0 bytes"):
        travel([tensor])


class OnDevice(torch.Tensor):
    """As a tensor on an accelerator would look."""

    device = torch.device("cuda:0")


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [{"image": t}]])
def test_a_tensor_on_a_device_is_refused_with_the_way_out(wrap):
    value = wrap(torch.ones(3).as_subclass(OnDevice))
    desk = Desk(lambda: "the dataset Images")
    with pytest.raises(TypeError) as caught:
        desk.pack(value)
    assert str(caught.value) == (
        "the dataset Images: a tensor on cuda:0 was made in a process, and cannot be sent to another one. Make it on "
        "the CPU and move it in the loader: StageLoader(device=...); or make it in a thread: worker_method='thread'."
    )
    with pytest.raises(TypeError, match="a tensor on cuda:0 cannot be sent to a process"):
        pack(value)


def test_packing_leaves_nothing_behind():
    value = {"tensor": torch.rand(50_000), "small": torch.rand(3), "named": torch.rand(9).as_subclass(Named)}
    watched = [weakref.ref(each) for each in value.values()]
    gc.disable()
    try:
        parcels.pack(value)
        del value
        assert [each() for each in watched] == [None] * 3
    finally:
        gc.enable()
