"""decode_image: what comes out for plain arguments: sources, sizes, filters, dtypes; and what wrong ones are told."""

import inspect
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, default_collate

from tests.decode.pictures import encoded, noise, opened, smooth, tensor
from torchstage import StageLoader
from torchstage.decode import decode_image

PIXELS = noise()
PNG = encoded(PIXELS)
FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@pytest.fixture
def png(tmp_path):
    path = tmp_path / "noise.png"
    path.write_bytes(PNG)
    return path


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_every_kind_are_decoded(kind):
    assert torch.equal(decode_image(kind(PNG)), tensor(PIXELS))


def test_a_memoryview_with_gaps_is_decoded():
    gapped = memoryview(bytes(byte for pair in zip(PNG, PNG, strict=True) for byte in pair))[::2]
    assert torch.equal(decode_image(gapped), tensor(PIXELS))


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_are_decoded(kind, png):
    assert torch.equal(decode_image(kind(png)), tensor(PIXELS))


def test_a_file_too_large_to_be_read_at_once_is_read_in_parts(png, monkeypatch):
    monkeypatch.setattr("torchstage.decode.image_open.MAX_BYTES_READ_AT_ONCE", 100)
    assert torch.equal(decode_image(png), tensor(PIXELS))


def test_the_result_is_contiguous_uint8_of_three_channels():
    result = decode_image(PNG)
    assert (result.shape, result.dtype, result.is_contiguous()) == ((3, 20, 40), torch.uint8, True)


def test_the_result_owns_its_memory():
    source = bytearray(PNG)
    result = decode_image(source)
    source[:] = bytes(len(source))
    result.add_(1)  # read-only memory would have warned, and this would end the process
    assert torch.equal(result - 1, tensor(PIXELS))
    assert result.untyped_storage().nbytes() == result.numel()


@pytest.mark.parametrize("format", ["BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP", "TGA"])
def test_common_formats_equal_pillow(format):
    data = encoded(smooth(33, 47), format)
    assert torch.equal(decode_image(data), tensor(opened(data).convert("RGB")))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [(10, 15), (50, 30), (20, 40), (1, 1)])
def test_an_exact_size_is_height_and_width_by_pillow_filter(interpolation, size):
    expected = Image.fromarray(PIXELS).resize(size[::-1], Image.Resampling[interpolation.upper()])
    assert torch.equal(decode_image(PNG, size, interpolation=interpolation), tensor(expected))


@pytest.mark.parametrize(("height", "width"), [(20, 40), (40, 20), (33, 33), (375, 500), (7, 1000)])
@pytest.mark.parametrize("size", [5, 64, 224])
def test_a_whole_number_is_the_shorter_side_as_in_torchvision(height, width, size):
    transforms = pytest.importorskip("torchvision.transforms")
    image = smooth(height, width)
    expected = tensor(transforms.Resize(size)(image))
    assert torch.equal(decode_image(encoded(image), size), expected)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 4), ("L", 1), ("LA", 2)])
@pytest.mark.parametrize("source", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16"])
def test_the_number_of_channels_is_the_one_of_the_mode(mode, channels, source):
    image = Image.new(source, (3, 2)) if source.startswith("I") else smooth(2, 3).convert(source)
    data = encoded(image, "TIFF" if source in ("CMYK", "I") else "PNG")
    assert decode_image(data, mode=mode).shape == (channels, 2, 3)


def test_other_dtypes_are_the_same_levels_in_their_own_range():
    levels = decode_image(PNG)
    floats = decode_image(PNG, dtype=torch.float32)
    wide = decode_image(PNG, dtype=torch.uint16)
    assert torch.equal(floats, levels / 255)
    assert wide.dtype == torch.uint16
    assert np.array_equal(wide.numpy(), levels.numpy().astype(np.uint16) * 257)


class Pictures(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return decode_image(self.paths[index], size=(8, 8))


def test_a_loader_collates_them(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(16)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(noise(seed=number)))
    pictures = Pictures(paths)
    batches = list(StageLoader(pictures, batch_size=8, num_workers=4))
    expected = default_collate([pictures[index] for index in range(16)])
    assert torch.equal(torch.cat(batches), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"size must be None, an int or \(height, width\), of at least 1, got 0"),
        ({"size": (3, 0)}, r"size must be"),
        ({"size": (3, 4, 5)}, r"size must be"),
        ({"size": 2.5}, r"size must be"),
        ({"size": True}, r"size must be"),
        ({"mode": "P"}, r"mode must be one of 'RGB', 'RGBA', 'L', 'LA', got 'P'"),
        ({"dtype": torch.int64}, r"dtype must be one of torch\.uint8, torch\.uint16, torch\.float32, got torch\.int64"),
        ({"interpolation": "cubic"}, r"interpolation must be one of 'nearest', .*, got 'cubic'"),
        ({"background": 256}, r"background must be a grey level or \(red, green, blue\) of 0 to 255, got"),
        ({"background": (1, 2)}, r"background must be"),
        ({"background": "white"}, r"background must be .*, got 'white'"),
        ({"value_range": (1, 1)}, r"value_range must be two different finite numbers"),
        ({"value_range": 5}, r"value_range must be .*, got 5"),
        ({"value_range": (0, float("inf"))}, r"value_range must be"),
        ({"icc_profile": "srgb"}, r"icc_profile must be one of 'ignore', 'to_srgb', got 'srgb'"),
        ({"damaged": "skip"}, r"damaged must be one of 'raise', 'conceal', got 'skip'"),
        ({"max_pixels": 0}, r"max_pixels must be None or at least 1, got 0"),
        ({"backend": "cv2"}, r"backend must be one of 'pillow', 'torchvision', got 'cv2'"),
        ({"backend": "torchvision", "interpolation": "lanczos"}, r"backend='torchvision' resizes with .*'lanczos'"),
    ],
)
def test_a_wrong_argument_says_what_came_and_what_is_right(arguments, message):
    with pytest.raises(ValueError, match=f"decode_image: {message}"):
        decode_image(PNG, **arguments)


@pytest.mark.parametrize("source", [None, 3, [1, 2], torch.zeros(3, dtype=torch.uint8)])
def test_a_source_of_another_type_says_so(source):
    with pytest.raises(TypeError, match=f"must be bytes or a path, got {type(source).__name__}"):
        decode_image(source)


@pytest.mark.parametrize("error", [FileNotFoundError, IsADirectoryError])
def test_a_file_that_cannot_be_opened_is_the_error_of_the_system(tmp_path, error):
    with pytest.raises(error):
        decode_image(tmp_path if error is IsADirectoryError else tmp_path / "none.jpg")


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"decode_image needs Pillow: pip install 'torchstage\[image\]'"):
        decode_image(PNG)


def test_every_option_is_documented_with_its_name():
    options = [name for name in inspect.signature(decode_image).parameters if name != "source"]
    document = (Path(__file__).parents[2] / "docs/decode-images.md").read_text()
    assert [name for name in options if f"`{name}`" not in document] == []


def test_nothing_of_the_process_is_changed():
    from PIL import ImageFile

    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    decode_image(PNG, 8, damaged="conceal", max_pixels=None)
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before
