"""decode_image on colour: palettes, transparency, CMYK, ICC profiles: what a person sees is what the tensor holds."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from tests.decode.pictures import encoded, noise, opened, smooth, tensor
from torchstage.decode import DecodeError, decode_image, image_info

WHITE = torch.full((3, 1, 1), 255, dtype=torch.uint8)
ODD = (10, 200, 30)  # a background that no picture has


def colour(red, green, blue):
    return torch.tensor([red, green, blue], dtype=torch.uint8).view(3, 1, 1)


def palette_image() -> Image.Image:
    """Four pixels: red, green, blue, yellow."""
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 0])
    image.putdata([0, 1, 2, 3])
    return image


def test_a_palette_gives_its_colours_and_not_its_indices():
    result = decode_image(encoded(palette_image()))
    assert result[:, 0].T.tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]]


def test_transparent_entries_of_a_palette_show_the_background():
    data = encoded(palette_image(), transparency=bytes([0, 255, 128, 255]))
    assert isinstance(opened(data).info["transparency"], bytes)
    result = decode_image(data, background=ODD)
    assert result[:, 0].T.tolist() == [[10, 200, 30], [0, 255, 0], [5, 100, 143], [255, 255, 0]]


def test_one_transparent_index_of_a_gif_shows_the_background():
    data = encoded(palette_image(), "GIF", transparency=1)
    assert decode_image(data, background=ODD)[:, 0].T.tolist() == [[255, 0, 0], [*ODD], [0, 0, 255], [255, 255, 0]]


def test_palettes_with_transparency_do_not_warn():
    """Pillow warns where such an image is converted to RGB; warnings are errors here."""
    assert decode_image(encoded(palette_image(), transparency=bytes([0, 255, 128, 255])), mode="L").shape == (1, 1, 4)


def test_colours_hidden_under_full_transparency_never_show():
    hidden = noise(channels=4)
    hidden[..., 3] = 0
    assert torch.equal(decode_image(encoded(hidden)), WHITE.expand(3, 20, 40))
    assert torch.equal(decode_image(encoded(hidden), background=ODD), colour(*ODD).expand(3, 20, 40))
    assert torch.equal(decode_image(encoded(hidden), (5, 7), background=0), torch.zeros(3, 5, 7, dtype=torch.uint8))


def test_opaque_colours_are_not_changed_by_the_background():
    opaque = noise(channels=4)
    opaque[..., 3] = 255
    assert torch.equal(decode_image(encoded(opaque), background=ODD), tensor(opaque[..., :3]))


def test_half_transparent_colours_are_mixed_with_the_background():
    image = noise(channels=4)
    mixed = decode_image(encoded(image), background=ODD).numpy().astype(float)
    alpha = image[..., 3].astype(float) / 255
    expected = image[..., :3] * alpha[..., None] + np.array(ODD) * (1 - alpha[..., None])
    assert np.abs(mixed.transpose(1, 2, 0) - expected).max() <= 0.51  # rounded once


def test_transparency_is_mixed_before_resizing_so_that_no_hidden_colour_bleeds_in():
    image = np.zeros((8, 8, 4), np.uint8)
    image[:, :4] = (0, 0, 0, 255)  # black, and beside it a green that is not to be seen
    image[:, 4:] = (0, 255, 0, 0)
    small = decode_image(encoded(image), (2, 2))
    assert torch.equal(small[0], small[1])
    assert torch.equal(small[1], small[2])


def test_grey_with_alpha_is_mixed_and_stays_grey():
    grey = noise(channels=2)
    result = decode_image(encoded(_la(grey)), background=0)
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[1], result[2])
    expected = grey[..., 0].astype(float) * grey[..., 1] / 255
    assert np.abs(result[0].numpy() - expected).max() <= 0.51
    assert torch.equal(decode_image(encoded(_la(grey)), mode="L", background=0), result[:1])


def _la(grey):
    return Image.merge("LA", [Image.fromarray(grey[..., 0]), Image.fromarray(grey[..., 1])])


@pytest.mark.parametrize("source", ["RGB", "L"])
def test_a_colour_that_a_png_names_as_transparent_shows_the_background(source):
    image = Image.new(source, (2, 1), 7 if source == "L" else (7, 7, 7))
    image.putpixel((1, 0), 9 if source == "L" else (9, 9, 9))
    data = encoded(image, transparency=7 if source == "L" else (7, 7, 7))
    assert decode_image(data, background=ODD)[:, 0].T.tolist() == [[*ODD], [9, 9, 9]]


def test_alpha_is_kept_where_it_is_asked_for():
    image = noise(channels=4)
    assert torch.equal(decode_image(encoded(image), mode="RGBA"), tensor(image))
    assert torch.equal(decode_image(encoded(image), mode="LA")[1], tensor(image)[3])
    assert (decode_image(encoded(noise()), mode="RGBA")[3] == 255).all()
    assert decode_image(encoded(palette_image(), transparency=b"\0"), mode="RGBA")[3].tolist() == [[0, 255, 255, 255]]


def test_alpha_is_resized_as_pillow_does_it():
    image = Image.fromarray(noise(channels=4))
    assert torch.equal(
        decode_image(encoded(image), (7, 9), mode="RGBA"), tensor(image.resize((9, 7), Image.Resampling.BILINEAR))
    )


def test_one_bit_is_black_and_white():
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    assert decode_image(encoded(image))[:, 0].T.tolist() == [[0, 0, 0], [255, 255, 255]]


def test_grey_becomes_three_equal_channels_and_colour_becomes_pillow_grey():
    grey, rgb = noise(channels=1), Image.fromarray(noise())
    assert torch.equal(decode_image(encoded(grey)), tensor(grey).expand(3, -1, -1))
    assert torch.equal(decode_image(encoded(rgb), mode="L"), tensor(rgb.convert("L")))


def cmyk_jpeg(marker: bool) -> bytes:
    """A CMYK file of pure red, stored inverted as Adobe's programs do; with the marker that says so, or without."""
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    start = data.index(b"\xff\xee")
    length = 2 + struct.unpack(">H", data[start + 2 : start + 4])[0]
    assert data[start + 4 : start + 9] == b"Adobe"
    return data if marker else data[:start] + data[start + length :]


@pytest.mark.parametrize("marker", [True, False], ids=["with Adobe's marker", "without"])
def test_cmyk_is_taken_as_inverted_as_pillow_takes_it(marker):
    data = cmyk_jpeg(marker)
    assert (opened(data).mode, "adobe" in opened(data).info) == ("CMYK", marker)
    assert (decode_image(data).int() - colour(255, 0, 0).int()).abs().max() <= 3


def test_cmyk_that_is_not_inverted_is_red_in_a_tiff():
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "TIFF")
    assert torch.equal(decode_image(data), colour(255, 0, 0).expand(3, 16, 16))


def test_cmyk_is_converted_as_pillow_converts_it():
    data = encoded(smooth(40, 40).convert("CMYK"), "JPEG")
    assert torch.equal(decode_image(data), tensor(opened(data).convert("RGB")))


def swapped_profile() -> bytes:
    """sRGB with red and green exchanged: whoever applies it sees it at once."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", profile[128:132])[0]
    tags = {bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * count, 12)}
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    profile[red + 4 : red + 12], profile[green + 4 : green + 12] = (
        profile[green + 4 : green + 12],
        profile[red + 4 : red + 12],
    )
    return bytes(profile)


def test_an_icc_profile_is_ignored_unless_asked_for():
    image = smooth(16, 16)
    data = encoded(image, "JPEG", icc_profile=swapped_profile(), quality=95)
    assert image_info(data).has_icc_profile
    assert torch.equal(decode_image(data), tensor(opened(data)))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_icc_profile_is_applied_when_asked_for(format):
    data = encoded(Image.new("RGB", (16, 16), (200, 40, 90)), format, icc_profile=swapped_profile())
    result = decode_image(data, icc_profile="to_srgb")
    assert (result.int() - colour(40, 200, 90).int()).abs().max() <= 3


def test_the_conversion_is_that_of_pillow():
    data = encoded(smooth(16, 16), icc_profile=swapped_profile())
    profiles = ImageCms.ImageCmsProfile(io.BytesIO(swapped_profile())), ImageCms.createProfile("sRGB")
    expected = tensor(ImageCms.profileToProfile(opened(data), *profiles, outputMode="RGB"))
    assert torch.equal(decode_image(data, icc_profile="to_srgb"), expected)


def test_alpha_stays_when_a_profile_is_applied():
    image = noise(channels=4)
    result = decode_image(encoded(image, icc_profile=swapped_profile()), mode="RGBA", icc_profile="to_srgb")
    assert torch.equal(result[3], tensor(image)[3])
    grey = encoded(_la(noise(channels=2)), icc_profile=swapped_profile())
    assert torch.equal(decode_image(grey, mode="LA", icc_profile="to_srgb")[1], decode_image(grey, mode="LA")[1])


def test_grey_with_a_profile_for_colour_is_converted_as_colour():
    result = decode_image(encoded(noise(channels=1), icc_profile=swapped_profile()), icc_profile="to_srgb")
    assert result.shape == (3, 20, 40)


def test_without_a_profile_nothing_is_converted():
    data = encoded(noise())
    assert torch.equal(decode_image(data, icc_profile="to_srgb"), decode_image(data))


def test_a_profile_that_cannot_be_applied_says_so():
    data = encoded(noise(), icc_profile=b"no profile at all")
    assert decode_image(data).shape == (3, 20, 40)
    with pytest.raises(DecodeError, match=r"bytes> has an ICC profile that cannot be applied to its RGB pixels .*Use"):
        decode_image(data, icc_profile="to_srgb")
