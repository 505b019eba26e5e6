"""Split of torchvision's folders: images, errors, warnings and draws are those of ``dataset[index]``, file by file."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import DatasetFolder, ImageFolder, folder
from torchvision.transforms import v2

from torchstage.split import Split, split
from torchstage.stage import described

from .outcomes import ODD_INDICES, assert_split_is_the_same, composed, seed

STAGES = ["fetch", "decode", "transform", "target_transform"]
PICTURES = {  # as written by Pillow: mode, size, options
    "photo.jpg": ("RGB", (40, 30), {"quality": 80}),
    "cmyk.jpg": ("CMYK", (16, 16), {}),
    "grey.jpg": ("L", (15, 17), {"progressive": True}),
    "clear.png": ("RGBA", (12, 12), {}),
    "palette.png": ("P", (12, 12), {"transparency": 3}),
    "deep.png": ("I;16", (9, 9), {}),
    "bits.png": ("1", (9, 9), {}),
    "plain.bmp": ("RGB", (7, 7), {}),
    "plain.ppm": ("RGB", (7, 7), {}),
    "deflated.tiff": ("RGB", (20, 20), {"compression": "tiff_deflate"}),
    "lzw.tif": ("RGB", (20, 20), {"compression": "tiff_lzw"}),
    "raw.tif": ("L", (20, 20), {}),
    "small.webp": ("RGB", (20, 20), {"lossless": True}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good images of every kind, and in the last class files that are none."""
    root = tmp_path_factory.mktemp("images")
    (root / "good").mkdir()
    (root / "odd").mkdir()
    for number, (name, (mode, size, options)) in enumerate(PICTURES.items()):
        pixels = torch.arange(size[0] * size[1] * 8).mul(7 + number).remainder(251).to(torch.uint8).numpy().tobytes()
        Image.frombytes(mode, size, pixels[: _num_bytes(mode, size)]).save(root / "good" / name, **options)
    photo = (root / "good" / "photo.jpg").read_bytes()
    (root / "odd" / "cut.jpg").write_bytes(photo[: len(photo) // 2])
    (root / "odd" / "cut.png").write_bytes((root / "good" / "clear.png").read_bytes()[:60])
    (root / "odd" / "cut.tif").write_bytes((root / "good" / "lzw.tif").read_bytes()[:-30])
    (root / "odd" / "empty.jpg").write_bytes(b"")
    (root / "odd" / "text.png").write_bytes(b"this is no image")
    (root / "odd" / "gone.jpg").write_bytes(photo)
    (root / "odd" / "really-a-png.jpg").write_bytes((root / "good" / "clear.png").read_bytes())
    return root


def _num_bytes(mode: str, size: tuple[int, int]) -> int:
    if mode == "1":
        return (size[0] + 7) // 8 * size[1]
    return size[0] * size[1] * {"RGB": 3, "CMYK": 4, "RGBA": 4, "I;16": 2}.get(mode, 1)


@pytest.fixture
def images(root: Path) -> ImageFolder:
    dataset = ImageFolder(root)
    assert len(dataset) == len(PICTURES) + 7
    gone = root / "odd" / "gone.jpg"
    gone.unlink(missing_ok=True)
    yield dataset
    gone.write_bytes(b"for the next one to find")


def names(parts: Split) -> list[str]:
    return [stage.label for stage in parts.stages]


def read_path(path: Any) -> str:
    """A loader of the user's, of anything but images."""
    return f"read {Path(path).name}"


def shift(image: Any) -> torch.Tensor:
    return v2.functional.pil_to_tensor(image).float() + torch.rand(())


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_every_file_gives_the_same_image_or_the_same_error(images):
    assert names(split(images)) == STAGES
    for index in range(len(images)):
        assert_split_is_the_same(images, index)
    assert {type(composed(split(images), index)[0]) for index in range(len(PICTURES))} == {Image.Image}


@pytest.mark.parametrize("index", ODD_INDICES, ids=repr)
def test_odd_indices(images, index):
    assert_split_is_the_same(images, index)


def test_an_image_is_read_once_and_decoded_from_its_bytes(images, monkeypatch):
    opened = []
    monkeypatch.setattr("builtins.open", lambda path, *mode, open=open: opened.append(path) or open(path, *mode))
    composed(split(images), 0)
    assert opened == [images.samples[0][0]]


def test_the_error_of_a_damaged_file_names_it_and_has_no_other_behind_it(images):
    index = next(i for i, (path, _) in enumerate(images.samples) if path.endswith("text.png"))
    with pytest.raises(OSError, match=r"cannot identify image file <_io.BufferedReader name='.*text\.png'>") as caught:
        composed(split(images), index)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("as_errors", [False, True])
def test_warnings_of_the_decoder_stay(root, as_errors, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # the photograph has 1200
    images = ImageFolder(root)
    index = next(i for i, (path, _) in enumerate(images.samples) if path.endswith("photo.jpg"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error" if as_errors else "always")
        assert_split_is_the_same(images, index)
    assert [str(warning.category.__name__) for warning in seen] == (
        [] if as_errors else ["DecompressionBombWarning"] * 2
    )


def test_transforms_draw_the_same(images):
    images.transform = v2.Compose(
        [v2.RandomResizedCrop(8), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2), v2.PILToTensor(), v2.RandomErasing()]
    )
    images.target_transform = lambda target: (target, torch.rand(2))
    for index in range(len(images)):
        assert_split_is_the_same(images, index)


@pytest.mark.parametrize(("transform", "target_transform"), [(None, str), (shift, None), (shift, str), (None, None)])
def test_transforms_are_applied_as_they_are_at_that_moment(images, transform, target_transform):
    parts = split(images)
    images.transform, images.target_transform = transform, target_transform
    seed()
    got = composed(parts, 0)
    seed()
    expected = images[0]
    assert described(got) == described(expected)
    assert got[0] == expected[0] if transform is None else torch.equal(got[0], expected[0])
    assert got[1] == expected[1]


def test_the_error_of_a_transform_is_its_own(images):
    images.transform = v2.functional.pil_to_tensor
    images.target_transform = {0: "good"}.__getitem__
    for index in range(len(images)):
        assert_split_is_the_same(images, index)


# who decodes


@pytest.mark.parametrize("loader", [folder.default_loader, folder.pil_loader, read_path, Image.open, str, len])
def test_any_loader(root, loader):
    dataset = ImageFolder(root, loader=loader)
    for index in (0, 3, len(dataset) - 1, len(dataset) - 2):
        if loader is Image.open:  # it leaves its file open, which the loader's caller closes
            for make in (lambda index: dataset[index], lambda index: composed(split(dataset), index)):
                image = make(0)[0]
                assert image.filename == dataset.samples[0][0]
                image.close()
        else:
            assert_split_is_the_same(dataset, index)


def test_a_loader_of_the_users_own_is_given_the_path(images):
    parts = split(images)
    images.loader = read_path
    assert parts.stages[0].fn(0) == images.samples[0]
    assert composed(parts, 0) == (f"read {Path(images.samples[0][0]).name}", 0)


def test_a_loader_that_changes_between_two_stages_is_given_the_path(images):
    fetch, decode = split(images).stages[:2]
    fetched = fetch.fn(0)
    images.loader = read_path
    assert decode.fn(fetched)[0].startswith("read ")
    fetched = fetch.fn(0)
    images.loader = folder.default_loader
    assert decode.fn(fetched)[0] == images[0][0]


def test_another_image_backend_is_left_to_torchvision(images, monkeypatch):
    parts = split(images)
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")  # as set_image_backend does
    assert len(parts.stages[0].fn(0)) == 2
    assert_split_is_the_same(images, 0)


def test_a_patched_loader_is_called_as_it_is(images, monkeypatch):
    monkeypatch.setattr(folder, "pil_loader", read_path)
    assert composed(split(images), 0)[0].startswith("read ")
    assert_split_is_the_same(images, 0)


def test_a_folder_of_anything(root):
    dataset = DatasetFolder(root, loader=lambda path: Path(path).read_bytes(), extensions=(".png",))
    assert names(split(dataset)) == STAGES
    for index in (*range(len(dataset)), -1, len(dataset), "0"):
        assert_split_is_the_same(dataset, index)


def test_paths_may_be_path_objects(images):
    images.samples = [(Path(path), target) for path, target in images.samples]
    for index in range(len(images)):
        assert_split_is_the_same(images, index)


# who is left alone


class WithPath(ImageFolder):
    def __getitem__(self, index: Any) -> Any:
        return *super().__getitem__(index), self.samples[index][0]


class Renamed(ImageFolder):
    def find_classes(self, directory: Any) -> Any:
        return ["odd"], {"odd": 7}


class InBulk(ImageFolder):
    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_a_subclass_with_a_getitem_of_its_own_is_not_split(root):
    assert names(split(WithPath(root))) == ["fetch"]
    assert composed(split(WithPath(root)), 0)[2].endswith(".tif") is False
    assert names(split(InBulk(root))) == []
    assert names(split(Renamed(root))) == STAGES
    assert_split_is_the_same(Renamed(root), -1)


def test_a_patched_getitem_is_not_split(images, monkeypatch):
    images.__getitem__ = lambda index: "patched"  # Python does not look for it there
    assert names(split(images)) == ["fetch"]
    assert composed(split(images), 0)[0] == images[0][0]
    del images.__getitem__
    monkeypatch.setattr(DatasetFolder, "__getitem__", lambda self, index: "patched")
    assert names(split(images)) == ["fetch"]
    assert composed(split(images), 0) == "patched"


def test_torchvisions_own_subclasses_are_split():
    assert issubclass(torchvision.datasets.EuroSAT, ImageFolder)
    dataset = torchvision.datasets.EuroSAT.__new__(torchvision.datasets.EuroSAT)
    assert names(split(dataset)) == STAGES


# within others


def test_subsets_and_concats_of_folders(images, root):
    other = ImageFolder(root, transform=shift)
    both = ConcatDataset([Subset(images, [2, len(images) - 1]), other, [("image", 7)]])
    assert names(split(both)) == STAGES
    for index in range(-len(both) - 1, len(both) + 1):
        assert_split_is_the_same(both, index)


def test_stages_pickle_with_the_dataset(images):
    assert composed(pickle.loads(pickle.dumps(split(images))), 0)[0] == images[0][0]


def test_torchvision_is_not_imported_for_other_datasets():
    script = "import sys; from torchstage.split import split; split([1]); print('torchvision' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
