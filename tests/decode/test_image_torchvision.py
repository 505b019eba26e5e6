"""decode_image by torchvision: the same pictures, and Pillow's where torchvision would give others."""

import sys

import pytest
import torch

from tests.decode.pictures import encoded, noise, smooth, with_orientation
from torchstage.decode import DecodeError, decode_image, image_torchvision

pytest.importorskip("torchvision")
# torchvision 0.29 says that its decoders will go, in a warning that Python's own filters hide.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")

JPEG = encoded(smooth(375, 500), "JPEG", quality=90)


def fast(data, *arguments, **options):
    return decode_image(data, *arguments, backend="torchvision", **options)


@pytest.fixture
def times_used(monkeypatch):
    """How many pictures torchvision decoded."""
    used: list[int] = []
    decode_jpeg = image_torchvision.decoder()

    def counted(encoded_):
        used.append(len(encoded_))
        return decode_jpeg(encoded_)

    monkeypatch.setattr(image_torchvision, "decoder", lambda: counted)
    return used


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_jpeg_is_the_same_pixels(grey, subsampling, times_used):
    image = smooth(101, 75).convert("L") if grey else smooth(101, 75)
    data = encoded(image, "JPEG", subsampling=subsampling)
    assert torch.equal(fast(data), decode_image(data))
    assert len(times_used) == 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(224, 224), 224, 100, (400, 30)])
def test_a_resized_jpeg_is_a_level_off_at_most(interpolation, size, times_used):
    ours, exact = (function(JPEG, size, interpolation=interpolation) for function in (fast, decode_image))
    assert ours.shape == exact.shape
    assert ours.is_contiguous()
    assert (ours.int() - exact.int()).abs().max() <= 1
    assert len(times_used) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [None, (7, 9), 10])
def test_orientation_is_that_of_pillow(orientation, size, times_used):
    data = with_orientation(orientation)
    assert (fast(data, size).int() - decode_image(data, size).int()).abs().max() <= 1
    assert (fast(data, size, exif_orientation=False).shape) == decode_image(data, size, exif_orientation=False).shape
    assert len(times_used) == 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
@pytest.mark.parametrize("size", [None, 100])
def test_dtypes_are_those_of_pillow(dtype, size):
    ours, exact = fast(JPEG, size, dtype=dtype), decode_image(JPEG, size, dtype=dtype)
    assert ours.dtype == dtype
    assert (ours.double() - exact.double()).abs().max() <= {torch.uint8: 1, torch.uint16: 257, torch.float32: 0.004}[
        dtype
    ]


def test_the_memory_is_its_own():
    for result in (fast(JPEG), fast(JPEG, 100), fast(JPEG, dtype=torch.float32)):
        assert result.is_contiguous()
        assert result.untyped_storage().nbytes() == result.numel() * result.element_size()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (encoded(noise()), {}),
        (encoded(noise(channels=4)), {}),
        (encoded(smooth(40, 40).convert("CMYK"), "JPEG"), {}),
        (encoded(smooth(40, 40), "WEBP"), {}),
        (encoded(smooth(40, 40), "GIF"), {}),
        (JPEG, {"mode": "L"}),
        (JPEG, {"mode": "RGBA"}),
        (JPEG, {"draft": True, "size": 90}),
    ],
    ids=["PNG", "PNG with alpha", "CMYK", "WEBP", "GIF", "grey wanted", "alpha wanted", "a draft"],
)
def test_other_pictures_are_pillows_to_the_last_bit(data, options, times_used):
    assert torch.equal(fast(data, **options), decode_image(data, **options))
    assert times_used == []


def test_a_draft_of_less_than_a_quarter_is_not_worth_it(times_used):
    assert (fast(JPEG, 150, draft=True).int() - decode_image(JPEG, 150).int()).abs().max() <= 1
    assert len(times_used) == 1


def test_a_damaged_jpeg_is_told_by_pillow(times_used):
    with pytest.raises(DecodeError, match=r"cannot be decoded: OSError: image file is truncated"):
        fast(JPEG[:3000])
    assert torch.equal(fast(JPEG[:3000], damaged="conceal"), decode_image(JPEG[:3000], damaged="conceal"))
    assert len(times_used) == 2


def test_a_bomb_is_refused_before_torchvision_sees_it(times_used):
    with pytest.raises(DecodeError, match="more than max_pixels=1000"):
        fast(JPEG, max_pixels=1000)
    assert times_used == []


@pytest.fixture
def untried():
    image_torchvision.decoder.cache_clear()
    yield
    image_torchvision.decoder.cache_clear()


def test_without_torchvision_it_says_so(monkeypatch, untried):
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(ImportError, match="needs torchvision, which is not installed: pip install torchvision"):
        fast(JPEG)
    assert decode_image(JPEG, 10).shape == (3, 10, 13)


def test_a_torchvision_that_cannot_decode_says_so_at_once(monkeypatch, untried):
    def fail(*arguments, **options):
        raise RuntimeError("compiled without libjpeg")

    monkeypatch.setattr("torchvision.io.decode_jpeg", fail)
    with pytest.raises(ImportError, match="built with libjpeg; this one says: compiled without libjpeg"):
        fast(JPEG)
