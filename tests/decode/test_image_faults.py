"""decode_image on files that are no good: one DecodeError that names the file, and nothing left behind."""

import gc
import struct
import threading
import traceback
import weakref
import zlib

import pytest
import torch
from PIL import Image, ImageFile

from tests.decode.pictures import chunk, encoded, noise, opened, smooth, tensor
from torchstage import StageLoader
from torchstage.decode import DecodeError, decode_image, image_info, image_open

JPEG = encoded(smooth(375, 500), "JPEG", quality=90)


@pytest.mark.parametrize("function", [decode_image, image_info])
def test_an_empty_file_says_so(function, tmp_path):
    with pytest.raises(DecodeError, match=r"^<0 bytes> is empty"):
        function(b"")
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(DecodeError, match=r"empty\.jpg is empty, so there is no image in it$"):
        function(tmp_path / "empty.jpg")


@pytest.mark.parametrize("function", [decode_image, image_info])
@pytest.mark.parametrize("data", [b"x", b"hello, world\n" * 100, b"%PDF-1.7\n", b"\0" * 5000, b"<html></html>"])
def test_what_is_no_image_says_so(function, data):
    with pytest.raises(DecodeError, match=rf"^<{len(data)} bytes> (is not an image|cannot be decoded)"):
        function(data)


def test_a_format_that_fails_to_open_says_why():
    with pytest.raises(DecodeError, match=r"is not an image of a format that Pillow can read \(JPEG: "):
        decode_image(JPEG[:20])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP", "PPM", "JPEG2000"])
def test_a_truncated_file_is_an_error_with_pillow_words(format):
    data = encoded(smooth(100, 100), format)
    with pytest.raises(DecodeError, match=rf"^<{len(data) * 2 // 3} bytes> ") as caught:
        decode_image(data[: len(data) * 2 // 3])
    assert caught.value.__cause__ is None or str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM"])
def test_what_is_left_of_a_truncated_file_is_what_pillow_leaves(format, monkeypatch):
    data = encoded(smooth(100, 100), format)
    data = data[: len(data) * 2 // 3]
    concealed = decode_image(data, damaged="conceal")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert torch.equal(concealed, tensor(opened(data).convert("RGB")))
    assert concealed[:, :40].float().std() > 10  # the upper part is there


def test_concealment_does_not_invent_a_picture():
    with pytest.raises(DecodeError):
        decode_image(JPEG[:20], damaged="conceal")
    with pytest.raises(DecodeError):
        decode_image(b"no image", damaged="conceal")


def test_concealment_changes_nothing_where_nothing_is_damaged():
    assert torch.equal(decode_image(JPEG, damaged="conceal"), decode_image(JPEG))


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError("broken"),
        OSError("broken"),
        struct.error("broken"),
        ValueError("broken"),
        OverflowError("broken"),
        MemoryError("broken"),
        ZeroDivisionError("broken"),
        Image.DecompressionBombError("broken"),
        NotImplementedError("broken"),
        EOFError("broken"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_pillow_raises_is_the_cause(error, monkeypatch, tmp_path):
    def fail(self):
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    path = tmp_path / "cat.bmp"
    path.write_bytes(encoded(noise(), "BMP"))
    with pytest.raises(DecodeError, match=rf"cat\.bmp cannot be decoded: {type(error).__name__}: broken$") as caught:
        decode_image(path)
    assert caught.value.__cause__ is error


def test_an_interrupt_is_not_a_fault_of_the_picture(monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageFile.ImageFile, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        decode_image(encoded(noise(), "BMP"))


def bomb(width: int, height: int) -> bytes:
    """A PNG of one grey level that says it has so many pixels, and is small."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("function", [decode_image, image_info])
@pytest.mark.parametrize(("width", "height"), [(20_000, 10_000), (1, 178_956_971)])
def test_a_decompression_bomb_is_refused_before_it_goes_off(function, width, height):
    expected = (
        rf"has {width * height} pixels \({width} x {height}\), more than max_pixels=178956970\..*raise max_pixels"
    )
    with pytest.raises(DecodeError, match=expected):
        function(bomb(width, height))


def test_a_picture_one_pixel_wide_does_not_become_a_bomb_by_resizing():
    with pytest.raises(DecodeError, match=r"bytes> after resizing has 90000000 pixels \(300 x 300000\), more than max"):
        decode_image(bomb(1, 1000), 300, max_pixels=1_000_000)


def test_the_limit_is_the_callers_and_not_pillows(monkeypatch):
    picture = encoded(noise())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow would refuse 20 x 40, with an error
    assert decode_image(picture, max_pixels=800).shape == (3, 20, 40)
    assert decode_image(picture, max_pixels=None).shape == (3, 20, 40)
    with pytest.raises(DecodeError, match="more than max_pixels=799"):
        decode_image(picture, max_pixels=799)


def test_the_limit_leaks_no_warning_between_threads(monkeypatch):
    """Warnings are errors here; Pillow warns from its limit up to twice of it."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    picture = encoded(noise())
    results: list[object] = []

    def decode(limit):
        try:
            results.append(tuple(decode_image(picture, max_pixels=limit).shape))
        except DecodeError as error:
            results.append("more than" in str(error))

    threads = [threading.Thread(target=decode, args=(limit,)) for limit in (800, 799) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == sorted(["(3, 20, 40)", "True"] * 8)


def test_an_error_that_is_kept_keeps_no_picture(monkeypatch):
    alive: list[weakref.ref] = []
    identified = image_open.identified

    def watched(stream):
        image = identified(stream)
        alive.append(weakref.ref(image))
        return image

    monkeypatch.setattr(image_open, "identified", watched)
    with pytest.raises(DecodeError) as caught:
        decode_image(JPEG[:2000])
    gc.collect()
    assert alive[0]() is None
    assert "ImageFile.py" in "".join(traceback.format_exception(caught.value))  # where it happened can still be read


def test_a_loader_names_the_file_and_goes_on(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(JPEG if number != 3 else JPEG[:3000])
    pictures = [str(tmp_path / f"{number}.jpg") for number in range(6)]

    class Folder(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return decode_image(pictures[index], 32)

    batches = iter(StageLoader(Folder(), batch_size=2, num_workers=2))
    assert next(batches).shape == (2, 3, 32, 42)
    with pytest.raises(DecodeError, match=r"3\.jpg cannot be decoded: OSError: image file is truncated"):
        next(batches)
    assert next(batches).shape == (2, 3, 32, 42)


def test_what_pillow_warns_of_is_not_kept_from_the_user():
    """Odd metadata: Pillow says so in its own words, and the picture is decoded."""
    cut_off = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01"  # five entries, and then nothing
    data = encoded(smooth(20, 40), "JPEG", exif=cut_off)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        result = decode_image(data)
    assert torch.equal(result, tensor(opened(encoded(smooth(20, 40), "JPEG"))))


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
@pytest.mark.parametrize("options", [{}, {"damaged": "conceal"}], ids=["raise", "conceal"])
def test_bytes_changed_at_random_give_a_picture_or_one_error(format, options):
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    data = encoded(smooth(24, 24), format)
    changes = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=12)

    @hypothesis.given(changes, st.integers(1, len(data)))
    def check(changes, length):
        changed = bytearray(data)
        for place, value in changes:
            changed[place] = value
        try:
            picture = decode_image(changed[:length], 8, max_pixels=1_000_000, **options)
        except DecodeError as error:
            assert str(error).startswith(f"<{length} bytes> ")  # noqa: PT017 - it may also succeed
        else:
            assert picture.shape[0] == 3
            assert min(picture.shape[1:]) == 8

    check()
