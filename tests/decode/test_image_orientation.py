"""decode_image on EXIF orientation (UR-047): upright by default, as Pillow's own transpose for all eight values."""

import io

import pytest
import torch
from PIL import Image, ImageOps

from tests.decode.pictures import encoded, noise, opened, smooth, tensor, with_orientation
from torchstage import StageLoader
from torchstage.decode import decode_image, image_info

ORIENTATIONS = range(1, 9)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_ur_047_it_is_upright_by_default(orientation, format):
    data = with_orientation(orientation, format)
    with Image.open(io.BytesIO(data)) as image:
        expected = tensor(ImageOps.exif_transpose(image))
    assert torch.equal(decode_image(data), expected)
    if format != "TIFF":  # which Pillow turns itself, in each version a little differently
        assert decode_image(data).shape == ((3, 20, 40) if orientation < 5 else (3, 40, 20))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_ur_047_it_is_left_as_stored_when_turned_off(orientation, format):
    data = with_orientation(orientation, format)
    assert torch.equal(decode_image(data, exif_orientation=False), tensor(opened(data)))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_size_is_that_of_the_upright_picture(orientation):
    data = with_orientation(orientation, height=20, width=40)
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
    assert decode_image(data, (7, 9)).shape == (3, 7, 9)
    assert torch.equal(decode_image(data, (7, 9)), tensor(upright.resize((9, 7), Image.Resampling.BILINEAR)))
    assert decode_image(data, 10).shape == ((3, 10, 20) if orientation < 5 else (3, 20, 10))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("size", [(40, 80), 60, (31, 47)])
def test_a_draft_is_turned_as_well(orientation, size):
    data = with_orientation(orientation, height=375, width=500)
    exact, draft = decode_image(data, size), decode_image(data, size, draft=True)
    assert draft.shape == exact.shape
    assert (draft.float() - exact.float()).abs().mean() < 1


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_upright(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(smooth(20, 40), "JPEG", exif=exif)
    assert torch.equal(decode_image(data), tensor(opened(data)))


def test_exif_data_that_cannot_be_read_is_as_good_as_none(monkeypatch):
    def broken(self):
        raise SyntaxError("not a TIFF file")

    data = encoded(noise(), "PNG")
    monkeypatch.setattr(Image.Image, "getexif", broken)
    assert decode_image(data).shape == (3, 20, 40)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_information_says_which(orientation):
    info = image_info(with_orientation(orientation))
    assert (info.orientation, info.width, info.height) == (orientation, 40, 20)


def test_ur_047_an_image_folder_with_its_own_loader_is_not_touched(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    transforms = pytest.importorskip("torchvision.transforms")
    (tmp_path / "one").mkdir()
    for orientation in ORIENTATIONS:
        (tmp_path / "one" / f"{orientation}.jpg").write_bytes(with_orientation(orientation, height=20, width=40))
    folder = datasets.ImageFolder(str(tmp_path), transforms.PILToTensor())
    images, _ = next(iter(StageLoader(folder, batch_size=8, num_workers=2)))
    assert images.shape == (8, 3, 20, 40)
    assert torch.equal(images, torch.stack([folder[index][0] for index in range(8)]))
