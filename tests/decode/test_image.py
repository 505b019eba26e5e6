"""decode_image: what comes out of ordinary pictures, the same as Pillow's own."""

import io
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image

from tests.decode.pictures import by_pillow, encoded, noise, picture, with_orientation
from torchstage.decode import DecodeError, ImageInfo, decode_image, image_info


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_pillow_s(format: str, mode: str) -> None:
    data = encoded(picture("RGB"), format)
    decoded = decode_image(data, mode=mode)
    assert decoded.dtype is torch.uint8
    assert decoded.is_contiguous()
    assert torch.equal(decoded, by_pillow(data, mode))


def test_a_path_is_as_good_as_bytes(tmp_path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(picture()))
    expected = by_pillow(path.read_bytes())
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        assert torch.equal(decode_image(source), expected)


def test_the_tensor_owns_its_memory() -> None:
    data = encoded(picture())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = decode_image(data)
    decoded.zero_()
    assert torch.equal(decode_image(data), by_pillow(data))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(10, (10, 20)), ((7, 9), (7, 9)), ([7, 9], (7, 9)), (20, (20, 40)), (64, (64, 128)), (None, (20, 40))],
)
def test_an_integer_size_is_the_shorter_side(size, expected) -> None:
    data = encoded(picture())
    decoded = decode_image(data, size)
    assert tuple(decoded.shape) == (3, *expected)
    assert torch.equal(decoded, by_pillow(data, size=expected if expected != (20, 40) else None))


def test_a_tall_picture_keeps_its_aspect() -> None:
    assert decode_image(encoded(picture(height=40, width=20)), 10).shape == (3, 20, 10)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_every_orientation_is_turned_as_pillow_turns_it(orientation: int, format: str) -> None:
    data = with_orientation(picture(), orientation, format)
    decoded = decode_image(data)
    assert tuple(decoded.shape) == ((3, 40, 20) if orientation >= 5 else (3, 20, 40))
    assert torch.equal(decoded, by_pillow(data))
    assert torch.equal(decode_image(data, exif_orientation=False), by_pillow(data, upright=False))


def test_size_means_the_upright_picture() -> None:
    data = with_orientation(picture(), 6)
    assert torch.equal(decode_image(data, (10, 6)), by_pillow(data, size=(10, 6)))


def test_a_large_jpeg_may_be_drafted() -> None:
    data = encoded(Image.fromarray(noise(320, 480)), "JPEG")
    exact, drafted = decode_image(data, (64, 96)), decode_image(data, (64, 96), draft=True)
    assert drafted.shape == exact.shape
    assert not torch.equal(drafted, exact)
    assert (drafted.float() - exact.float()).abs().mean() < 3
    turned = with_orientation(Image.fromarray(noise(320, 480)), 6)
    assert decode_image(turned, (96, 64), draft=True).shape == (3, 96, 64)


def test_nothing_is_drafted_that_is_not_twice_as_large() -> None:
    data = encoded(Image.fromarray(noise(100, 150)), "JPEG")
    assert torch.equal(decode_image(data, (64, 96), draft=True), decode_image(data, (64, 96)))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float32])
def test_other_dtypes_hold_the_same_values(dtype: torch.dtype) -> None:
    data = encoded(picture())
    decoded, bytes_ = decode_image(data, dtype=dtype), decode_image(data)
    assert decoded.dtype is dtype
    full = 257 if dtype is torch.uint16 else 1 / 255
    assert torch.allclose(decoded.double(), bytes_.double() * full, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # it says so itself
def test_torchvision_decodes_plain_jpegs_where_it_is_asked_to() -> None:
    pytest.importorskip("torchvision")
    data = encoded(Image.fromarray(noise(200, 300)), "JPEG", quality=95)
    exact, other = decode_image(data, (100, 150)), decode_image(data, (100, 150), backend="torchvision")
    assert other.shape == exact.shape
    assert (other.float() - exact.float()).abs().mean() < 2
    turned = with_orientation(Image.fromarray(noise(200, 300)), 6)
    assert decode_image(turned, backend="torchvision").shape == (3, 300, 200)
    assert decode_image(turned, backend="torchvision", exif_orientation=False).shape == (3, 200, 300)
    png = encoded(picture("RGBA"))
    assert torch.equal(decode_image(png, backend="torchvision"), decode_image(png))


def test_the_header_can_be_asked_for_alone() -> None:
    assert image_info(with_orientation(picture(), 6)) == ImageInfo("JPEG", "RGB", 20, 40, 1, 6)


def test_many_threads_decode_what_one_does() -> None:
    sources = [encoded(Image.fromarray(noise(seed=seed)), "JPEG") for seed in range(16)] * 8
    together = threading.Barrier(8)

    def decode(source: bytes) -> torch.Tensor:
        return decode_image(source, (17, 23))

    with ThreadPoolExecutor(8, initializer=together.wait) as pool:
        found = list(pool.map(decode, sources))
    assert all(torch.equal(one, decode(source)) for one, source in zip(found, sources, strict=True))


# Faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_truncated_picture_is_an_error_that_names_it(format: str, tmp_path) -> None:
    path = tmp_path / "cut.img"
    whole = encoded(Image.fromarray(noise(100, 100)), format)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DecodeError, match=r"cut\.img: "):
        decode_image(path)


@pytest.mark.parametrize("data", [b"", b"not a picture", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", bytes(1000)])
def test_what_is_no_picture_is_an_error_that_says_how_long_it_is(data: bytes) -> None:
    with pytest.raises(DecodeError, match=f"<{len(data)} bytes>"):
        decode_image(data)


def test_pillow_s_own_error_is_the_cause() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_image(b"not a picture")
    assert type(caught.value.__cause__).__name__ == "UnidentifiedImageError"


def test_a_file_that_is_not_there_is_an_oserror(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        decode_image(tmp_path / "gone.png")


def test_a_picture_of_too_many_pixels_is_an_error() -> None:
    data = encoded(picture())
    with pytest.raises(DecodeError, match="40 x 20 pixels, more than max_pixels=799"):
        decode_image(data, max_pixels=799)
    assert decode_image(data, max_pixels=800).shape == (3, 20, 40)


def test_a_decompression_bomb_is_an_error() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)), "PNG")  # 400 million pixels in 50 kilobytes
    with pytest.raises(DecodeError, match="decompression bomb"):
        decode_image(bomb)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size must be"),
        ({"size": (1, 2, 3)}, "size must be"),
        ({"mode": "CMYK"}, "mode must be one of RGB, L, RGBA, LA, got 'CMYK'"),
        ({"dtype": torch.int64}, "dtype must be"),
        ({"background": (1, 2)}, "background must be"),
        ({"max_pixels": 0}, "max_pixels must be"),
        ({"backend": "cv2"}, "backend must be"),
    ],
)
def test_arguments_are_checked(arguments, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode_image(encoded(picture()), **arguments)


def test_a_source_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes or a path, got BytesIO"):
        decode_image(io.BytesIO())  # type: ignore[arg-type]
