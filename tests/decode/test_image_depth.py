"""decode_image on 16 and 32 bits a pixel (UR-048): nothing turns white in silence."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.decode.pictures import encoded, grey_16, opened, ramp_16
from torchstage.decode import DecodeError, decode_image

RAMP = ramp_16()
FORMATS = ["PNG", "TIFF", "PPM"]


@pytest.mark.parametrize("format", FORMATS)
def test_ur_048_a_16_bit_ramp_has_all_levels_in_8_bits(format):
    result = decode_image(grey_16(RAMP, format))
    assert result.shape == (3, 256, 256)
    assert len(result.unique()) == 256
    assert np.array_equal(result[0].numpy(), np.rint(RAMP / 257))
    assert torch.equal(result[0], result[2])


@pytest.mark.parametrize("format", FORMATS)
def test_ur_048_a_16_bit_ramp_keeps_its_range_in_other_dtypes(format):
    data = grey_16(RAMP, format)
    wide = decode_image(data, mode="L", dtype=torch.uint16)
    floats = decode_image(data, mode="L", dtype=torch.float32)
    assert np.array_equal(wide[0].numpy(), RAMP)
    assert np.abs(floats[0].numpy() - RAMP / 65535).max() < 1e-7


def test_pillow_itself_would_have_made_it_white():
    """What this file is about. If Pillow learns it, ours may become simpler."""
    assert np.asarray(opened(encoded(RAMP)).convert("L")).mean() > 254


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_both_byte_orders_are_read(mode):
    image = Image.frombytes(mode, (256, 256), RAMP.astype("<u2" if mode == "I;16" else ">u2").tobytes())
    result = decode_image(encoded(image, "TIFF"), mode="L", dtype=torch.uint16)
    assert np.array_equal(result[0].numpy(), RAMP)


def test_16_bits_are_resized_in_full_precision():
    small = decode_image(encoded(RAMP), (16, 16), mode="L", dtype=torch.uint16)
    floats = Image.fromarray(RAMP.astype(np.float32)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.abs(small[0].numpy().astype(float) - np.asarray(floats)).max() <= 0.6


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_filters_that_overshoot_do_not_wrap_around(dtype):
    edge = np.zeros((32, 32), np.uint16)
    edge[:, 16:] = 65535
    large = decode_image(encoded(edge), (64, 64), mode="L", dtype=dtype, interpolation="lanczos")
    right = large[..., 32:].numpy()
    assert right.min() > np.iinfo(right.dtype).max * 0.5
    assert large[..., :32].numpy().max() < np.iinfo(right.dtype).max * 0.5


def test_a_value_range_says_what_is_black_and_white():
    """A camera of 12 bits."""
    values = np.array([[0, 1000, 2000, 4095, 5000]], np.uint16)
    result = decode_image(encoded(values), mode="L", value_range=(0, 4095))
    assert result.tolist() == [[[0, 62, 125, 255, 255]]]


def test_a_value_range_may_be_upside_down():
    values = np.array([[0, 65535]], np.uint16)
    assert decode_image(encoded(values), mode="L", value_range=(65535, 0)).tolist() == [[[255, 0]]]


def test_floats_are_given_as_they_are():
    values = np.array([[-1.5, 0.25, 300.0]], np.float32)
    result = decode_image(encoded(values, "TIFF"), dtype=torch.float32)
    assert result[:, 0].tolist() == [[-1.5, 0.25, 300.0]] * 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_floats_ask_for_a_range_where_whole_numbers_are_wanted(dtype):
    data = encoded(np.array([[0.0, 0.5, 1.0, 2.0, np.nan]], np.float32), "TIFF")
    with pytest.raises(DecodeError, match=r"has floating point values.*dtype=torch\.float32.*value_range=\(0, 1\)"):
        decode_image(data, dtype=dtype)
    white = {torch.uint8: 255, torch.uint16: 65535}[dtype]
    result = decode_image(data, mode="L", dtype=dtype, value_range=(0, 1)).tolist()
    assert result == [[[0, (white + 1) // 2, white, white, 0]]]


@pytest.mark.parametrize("value", [-1, 65536])
def test_whole_numbers_beyond_16_bits_ask_for_a_range(value):
    image = Image.fromarray(np.array([[0, value]], np.int32))
    with pytest.raises(DecodeError, match=rf"has whole values from .*{value}.* beyond 16 bits.*value_range="):
        decode_image(encoded(image, "TIFF"))
    assert decode_image(encoded(image, "TIFF"), mode="L", value_range=(0, value)).tolist() == [[[0, 255]]]


def test_whole_numbers_within_16_bits_are_taken_for_16_bits():
    image = Image.fromarray(RAMP.astype(np.int32))
    assert np.array_equal(decode_image(encoded(image, "TIFF"), dtype=torch.uint16)[0].numpy(), RAMP)


@pytest.mark.parametrize(("mode", "pixels"), [("RGB", [[10, 200, 30], [1, 1, 1]]), ("L", [[124], [1]])])
def test_a_transparent_grey_of_16_bits_shows_the_background(mode, pixels):
    data = grey_16(np.array([[700, 257]], np.uint16), transparent=700)
    assert decode_image(data, mode=mode, background=(10, 200, 30))[:, 0].T.tolist() == pixels


@pytest.mark.parametrize(("mode", "pixels"), [("LA", [[3, 0], [1, 255]]), ("RGBA", [[3, 3, 3, 0], [1, 1, 1, 255]])])
def test_a_transparent_grey_of_16_bits_is_alpha_where_that_is_asked_for(mode, pixels):
    data = grey_16(np.array([[3 * 257, 257]], np.uint16), transparent=3 * 257)
    assert decode_image(data, mode=mode)[:, 0].T.tolist() == pixels
