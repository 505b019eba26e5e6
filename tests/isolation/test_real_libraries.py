"""Datasets and transforms of real libraries: what is safe is shared in silence, what is not is right all the same."""

import wave

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import TensorDataset, default_collate, random_split
from torchvision.transforms import v2

from torchstage import StageLoader

from .stories import NUM_SAMPLES, Case, Numbered, caught_warnings, pause, seen_datasets, values_of, with_info

pytestmark = pytest.mark.usefixtures("short_switch_interval")


def assert_shared_in_silence(dataset, num_workers=4):
    """Returns the samples of an epoch."""
    with caught_warnings() as messages:
        loader = Case(dataset, with_info).loader(num_workers=num_workers)
        for _ in range(2):
            assert all(seen is dataset for _, seen in seen_datasets(loader))
        samples = values_of(Case(dataset).loader(num_workers=num_workers))
    assert messages == []
    return samples


# Shared ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_map_style_datasets_of_hf(form, tmp_path):
    hf = pytest.importorskip("datasets")
    hf.disable_progress_bars()
    hf.Dataset.from_dict({"x": list(range(NUM_SAMPLES))}).save_to_disk(tmp_path / "hf")
    dataset = hf.load_from_disk(tmp_path / "hf").with_format(form)
    samples = assert_shared_in_silence(dataset)
    assert [int(sample["x"]) for sample in samples] == list(range(NUM_SAMPLES))


def test_hf_with_a_transform(tmp_path):
    hf = pytest.importorskip("datasets")
    hf.disable_progress_bars()
    dataset = hf.Dataset.from_dict({"x": list(range(NUM_SAMPLES))})
    dataset = dataset.with_transform(lambda batch: {"y": [value + 1 for value in batch["x"]]})
    samples = assert_shared_in_silence(dataset)
    assert [sample["y"] for sample in samples] == list(range(1, NUM_SAMPLES + 1))


def test_a_table_of_pandas():
    pandas = pytest.importorskip("pandas")

    class Table(Numbered):
        def __init__(self):
            self.table = pandas.DataFrame({"x": range(NUM_SAMPLES), "y": [str(n) for n in range(NUM_SAMPLES)]})

        def __getitem__(self, index):
            row = self.table.iloc[index]
            return int(row["x"]), self.table["y"][index]

    assert assert_shared_in_silence(Table()) == [(n, str(n)) for n in range(NUM_SAMPLES)]


def test_a_parquet_file_of_pyarrow(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    class Groups(Numbered):
        def __init__(self, path):
            self.table = parquet.read_table(path)

        def __getitem__(self, index):
            return self.table["x"][index].as_py()

    parquet.write_table(pyarrow.table({"x": list(range(NUM_SAMPLES))}), tmp_path / "x.parquet")
    assert assert_shared_in_silence(Groups(tmp_path / "x.parquet")) == list(range(NUM_SAMPLES))


class Images(Numbered):
    """Random images through transforms of torchvision."""

    def __init__(self, transform):
        self.images = torch.randint(0, 255, (NUM_SAMPLES, 3, 24, 24), dtype=torch.uint8)
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(self.images[index])


TRANSFORMS = {
    "v2": lambda: v2.Compose(
        [
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2, 0.2),
            v2.RandomApply([v2.GaussianBlur(3)]),
            v2.RandAugment(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
            v2.RandomErasing(),
        ]
    ),
    "v1": lambda: torchvision.transforms.Compose(
        [
            torchvision.transforms.RandomCrop(16, padding=2),
            torchvision.transforms.RandomRotation(20),
            torchvision.transforms.AutoAugment(),
            torchvision.transforms.ConvertImageDtype(torch.float32),
            torchvision.transforms.RandomErasing(),
        ]
    ),
    "trivial": lambda: torchvision.transforms.TrivialAugmentWide(),
    "scripted": lambda: torch.nn.Sequential(v2.Resize((8, 8), antialias=True), torch.nn.Flatten()),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torchvision(name):
    assert len(assert_shared_in_silence(Images(TRANSFORMS[name]()))) == NUM_SAMPLES


def test_mixing_as_collate_fn():
    mix = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)])
    dataset = TensorDataset(torch.rand(NUM_SAMPLES, 3, 8, 8), torch.arange(NUM_SAMPLES) % 3)
    with caught_warnings() as messages:
        loader = StageLoader(
            dataset, batch_size=4, num_workers=4, collate_fn=lambda samples: mix(*default_collate(samples))
        )
        assert len(list(loader)) == NUM_SAMPLES // 4
    assert messages == []


def test_parts_of_a_random_split():
    whole = Images(TRANSFORMS["v2"]())
    for part in random_split(whole, [NUM_SAMPLES // 2, NUM_SAMPLES - NUM_SAMPLES // 2]):
        assert len(assert_shared_in_silence(part)) == NUM_SAMPLES // 2


def test_fake_data_of_torchvision():
    dataset = torchvision.datasets.FakeData(NUM_SAMPLES, (3, 8, 8), transform=torchvision.transforms.ToTensor())
    one = [dataset[index][0] for index in range(NUM_SAMPLES)]
    samples = assert_shared_in_silence(dataset)
    assert all(torch.equal(image, expected) for (image, _), expected in zip(samples, one, strict=True))


def test_an_archive_of_numpy(tmp_path):
    """It locks for itself."""
    np.savez(tmp_path / "a.npz", **{f"a{index}": np.full(5000, index) for index in range(NUM_SAMPLES)})

    class Archive(Numbered):
        def __init__(self, path):
            self.archive = np.load(path)

        def __getitem__(self, index):
            return int(self.archive[f"a{index}"].max())

    dataset = Archive(tmp_path / "a.npz")
    for isolation in ("auto", "per_thread"):
        with caught_warnings():
            loader = Case(dataset).loader(isolation=isolation)
            for _ in range(2):
                assert values_of(loader) == list(range(NUM_SAMPLES))
    assert int(dataset.archive["a5"].max()) == 5
    dataset.archive.close()


# Not shared ------------------------------------------------------------------------------------------------


def test_a_sound_file(tmp_path):
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.repeat(np.arange(NUM_SAMPLES, dtype=np.int16), 100).tobytes())

    class Sound(Numbered):
        def __init__(self, path):
            self.file = wave.open(path)  # noqa: SIM115  # closed below

        def __getitem__(self, index):
            self.file.setpos(100 * index)
            pause()
            return int(np.frombuffer(self.file.readframes(100), np.int16)[-1])

    dataset = Sound(str(tmp_path / "sound.wav"))
    with caught_warnings():
        loader = Case(dataset).loader(num_workers=8)
        for _ in range(2):
            assert values_of(loader) == list(range(NUM_SAMPLES))
    dataset.file.close()


def monai_transforms():
    transforms = pytest.importorskip("monai.transforms")
    return {
        "flip": lambda: transforms.RandFlip(prob=0.5, spatial_axis=0),
        "crop": lambda: transforms.RandSpatialCrop((4, 4), random_size=True, max_roi_size=(12, 12)),
        "noise": lambda: transforms.RandGaussianNoise(prob=0.7),
        "affine": lambda: transforms.RandAffine(prob=0.8, rotate_range=1.0, translate_range=3),
        "several": lambda: transforms.Compose(
            [transforms.RandFlip(prob=0.5, spatial_axis=0), transforms.RandSpatialCrop((8, 8), random_size=False)]
        ),
    }


@pytest.mark.parametrize("name", ["flip", "crop", "noise", "affine", "several"])
def test_random_transforms_of_monai(name):
    """UR-031, with the transforms that it was about."""
    build = monai_transforms()[name]

    class Scans(Numbered):
        def __init__(self):
            self.transform = build()

        def __getitem__(self, index):
            scan = torch.arange(256, dtype=torch.float32).reshape(1, 16, 16) + 1000 * index
            return np.asarray(self.transform(scan)).tolist()

    with caught_warnings() as messages:
        one = values_of(Case(Scans()).loader(num_workers=1, seed=7))
        for num_workers in (2, 8):
            assert values_of(Case(Scans()).loader(num_workers=num_workers, seed=7)) == one
    assert [message for message in messages if "StageLoader" in message] == []
