"""decode_image on the pictures that surprise: transparency, palettes, CMYK, 16 bits, profiles, animations."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from tests.decode.pictures import by_pillow, encoded, noise, picture
from torchstage.decode import DecodeError, decode_image, image, image_info

RED, WHITE = (255, 0, 0), (255, 255, 255)


def colour_at(decoded: torch.Tensor, row: int = 0, column: int = 0) -> tuple[int, ...]:
    return tuple(decoded[:, row, column].tolist())


def half_clear(mode: str = "RGBA") -> Image.Image:
    """Left half red, right half garbage that is fully transparent."""
    rgba = np.zeros((4, 8, 4), np.uint8)
    rgba[:, :4] = (255, 0, 0, 255)
    rgba[:, 4:] = (17, 200, 99, 0)
    return Image.fromarray(rgba, "RGBA").convert(mode)


def test_what_is_transparent_shows_the_background() -> None:
    data = encoded(half_clear())
    assert [colour_at(decode_image(data), column=c) for c in (0, 7)] == [RED, WHITE]
    assert colour_at(decode_image(data, background=(1, 2, 3)), column=7) == (1, 2, 3)


def test_without_a_background_alpha_is_dropped_as_pillow_drops_it() -> None:
    data = encoded(half_clear())
    decoded = decode_image(data, background=None)
    assert colour_at(decoded, column=7) == (17, 200, 99)
    assert torch.equal(decoded, by_pillow(data))


def test_alpha_is_kept_where_it_is_asked_for() -> None:
    data = encoded(half_clear())
    assert torch.equal(decode_image(data, mode="RGBA"), by_pillow(data, "RGBA"))
    assert decode_image(encoded(picture("L")), mode="RGBA")[3].unique().tolist() == [255]


def test_half_a_transparency_mixes() -> None:
    grey = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert colour_at(decode_image(encoded(grey))) == (127, 127, 127)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_gives_the_channels_of_the_mode(kind: str, mode: str) -> None:
    data = encoded(Image.new(kind, (6, 4)))
    assert decode_image(data, mode=mode).shape == ({"RGB": 3, "L": 1, "RGBA": 4, "LA": 2}[mode], 4, 6)


def test_grey_with_alpha_is_put_on_the_background() -> None:
    data = encoded(half_clear("LA"))
    assert colour_at(decode_image(data), column=7) == WHITE


def test_a_palette_becomes_its_colours() -> None:
    image_ = Image.new("P", (4, 4), 3)
    image_.putpalette([0, 0, 0, 1, 1, 1, 2, 2, 2, *RED])
    assert colour_at(decode_image(encoded(image_))) == RED


@pytest.mark.parametrize("transparency", [3, bytes([255, 255, 255, 0])], ids=["an index", "bytes"])
def test_a_palette_s_transparent_colour_shows_the_background(transparency) -> None:
    image_ = Image.new("P", (4, 4), 3)
    image_.putpalette([0, 0, 0, 1, 1, 1, 2, 2, 2, *RED])
    data = encoded(image_, "PNG", transparency=transparency)
    assert colour_at(decode_image(data)) == WHITE
    assert colour_at(decode_image(data, mode="RGBA")) == (*RED, 0)


@pytest.mark.parametrize("inverted", [False, True])
def test_cmyk_has_its_true_colours(inverted: bool) -> None:
    """Adobe's programs store CMYK upside down and say so in a marker."""
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    data = encoded(ink, "JPEG", quality=100)
    if not inverted:
        assert b"Adobe" in data
    decoded = decode_image(data)
    assert torch.equal(decoded, by_pillow(data))
    red, green, blue = colour_at(decoded)
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_cut_off(format: str) -> None:
    ramp = np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32)
    data = encoded(Image.fromarray(ramp), format)
    grey = decode_image(data)
    assert grey.shape == (3, 32, 32)
    assert len(grey.unique()) >= 250
    assert torch.equal(
        decode_image(data, mode="L", dtype=torch.uint16)[0].int(), torch.from_numpy(ramp.astype("int32"))
    )
    floats = decode_image(data, mode="L", dtype=torch.float32)
    assert torch.allclose(floats[0], torch.from_numpy(ramp.astype(np.float32) / 65535))
    assert decode_image(data, (8, 8), mode="L", dtype=torch.uint16).shape == (1, 8, 8)


def test_more_than_sixteen_bits_are_an_error_that_says_so() -> None:
    data = encoded(Image.fromarray(np.array([[0, 70_000]], np.int32)), "TIFF")
    with pytest.raises(DecodeError, match="integers from 0 to 70000"):
        decode_image(data)


def test_floats_are_given_as_floats_alone() -> None:
    values = np.array([[0.5, -3.0]], np.float32)
    data = encoded(Image.fromarray(values), "TIFF")
    assert decode_image(data, mode="L", dtype=torch.float32).tolist() == [values.tolist()]
    with pytest.raises(DecodeError, match=r"use dtype=torch\.float32"):
        decode_image(data)


def test_a_colour_profile_is_ignored_unless_it_is_asked_for() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encoded(picture(), "PNG", icc_profile=srgb)
    assert torch.equal(decode_image(data), by_pillow(data))
    same = decode_image(data, icc_to_srgb=True).int() - by_pillow(data).int()
    assert same.abs().max() <= 1  # from sRGB to sRGB
    wrong = encoded(picture(), "PNG", icc_profile=profile.tobytes())  # a profile of another colour space
    with pytest.raises(DecodeError):
        decode_image(wrong, icc_to_srgb=True)


def test_transparency_outlives_the_profile() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encoded(half_clear(), "PNG", icc_profile=srgb)
    assert colour_at(decode_image(data, icc_to_srgb=True), column=7) == WHITE


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_gives_its_first_frame_and_one_warning(format: str, monkeypatch) -> None:
    monkeypatch.setattr(image, "_has_warned", [])
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 255, 0), (0, 0, 255))]
    data = encoded(
        frames[0], format, save_all=True, append_images=frames[1:], **({"lossless": True} if format == "WEBP" else {})
    )
    with pytest.warns(UserWarning, match="3 frames") as caught:
        assert colour_at(decode_image(data)) == RED
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert colour_at(decode_image(data)) == RED  # in silence: warnings are errors here
    assert image_info(data).num_frames == 3


def test_a_grey_jpeg_has_three_equal_channels() -> None:
    decoded = decode_image(encoded(picture("L"), "JPEG"))
    assert decoded.shape[0] == 3
    assert torch.equal(decoded[0], decoded[2])


def test_an_odd_palette_in_a_gif_is_read_as_pillow_reads_it() -> None:
    file = io.BytesIO()
    Image.fromarray(noise()).quantize(7).save(file, "GIF")
    assert torch.equal(decode_image(file.getvalue()), by_pillow(file.getvalue()))
