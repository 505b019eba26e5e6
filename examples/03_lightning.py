"""Train with Lightning, see in TensorBoard what holds training back, mend it, and go on exactly.

Which photograph of scikit-image does a patch come from? Two trainings on such patches, cropped and flipped at random:

1. one from start to end with one thread, which saves a checkpoint in the midst of an epoch. StageStatsMonitor writes to
   TensorBoard how long training waits for data, and how busy each stage is;
2. one that goes on from that checkpoint with more threads: it waits less, and has the same batches, pixel for pixel.
"""

import argparse
import hashlib
import importlib.util
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from torchstage.lightning import StageDataModule, StageStatsMonitor

warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning with the newest torch
warnings.filterwarnings("ignore", message="The dirpath has changed")  # each training has its own folder, as it should

PHOTOGRAPHS = ["astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg"]
PATCH_SIZE = (500, 375)  # the size of a usual ImageNet photograph
IMAGE_SIZE, BATCH_SIZE = 64, 16
MORE_THREADS = min(8, max(2, os.cpu_count() or 2))
TENSOR = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
SAME_EACH_TIME = v2.Compose([v2.Resize(IMAGE_SIZE), v2.CenterCrop(IMAGE_SIZE), *TENSOR])
RANDOM = v2.Compose([v2.RandomResizedCrop(IMAGE_SIZE, scale=(0.3, 1)), v2.RandomHorizontalFlip(), *TENSOR])


# ---------------------------------------------------------------- the data and the training


def train(images: Path, logs: Path, name: str, epochs: int, num_workers: int, begin_with: str | None = None) -> Trainer:
    torch.manual_seed(0)
    data = StageDataModule(
        train_dataset=ImageFolder(images / "train", transform=RANDOM),
        val_dataset=ImageFolder(images / "held_out", transform=SAME_EACH_TIME),
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        seed=1,
    )
    steps_an_epoch = -(-len(data.train_dataset) // BATCH_SIZE)
    trainer = Trainer(
        max_epochs=epochs,
        logger=TensorBoardLogger(logs, name="", version=name),
        callbacks=[
            StageStatsMonitor(),
            ModelCheckpoint(every_n_train_steps=steps_an_epoch * 8 // 5),  # so, in the midst of the second epoch
        ],
        log_every_n_steps=4,
        accelerator="cpu",  # the network is small
        enable_progress_bar=sys.stdout.isatty(),
        enable_model_summary=False,
    )
    model = Model(num_classes=len(data.train_dataset.classes))
    trainer.fit(model, datamodule=data, ckpt_path=begin_with)
    return trainer


class Model(LightningModule):
    """As any in Lightning; but it notes a hash of each training batch, by which the trainings are compared."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, num_classes),
        )
        self.hashes: list[str] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        self.hashes.append(hash_of(images, labels))
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        is_right = (self.network(images).argmax(1) == labels).float()
        self.log("val/accuracy", is_right.mean(), prog_bar=True, batch_size=len(images))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def hash_of(images: torch.Tensor, labels: torch.Tensor) -> str:
    return hashlib.blake2b(images.numpy().tobytes() + labels.numpy().tobytes(), digest_size=8).hexdigest()


# ---------------------------------------------------------------- two trainings, compared


def compare(images: Path, logs: Path, epochs: int) -> bool:
    print("1. From start to end, num_workers=1", flush=True)
    trainer = train(images, logs, "whole", epochs, num_workers=1)
    whole = trainer.lightning_module.hashes
    print(f"\nWhat its training loader did:\n\n{trainer.train_dataloader.stats()}\n")

    checkpoint = trainer.checkpoint_callback.best_model_path
    print(f"2. From {Path(checkpoint).name} to the end, num_workers={MORE_THREADS}", flush=True)
    trainer = train(images, logs, "resumed", epochs, num_workers=MORE_THREADS, begin_with=checkpoint)
    resumed = trainer.lightning_module.hashes
    print(f"\nWhat its training loader did:\n\n{trainer.train_dataloader.stats()}\n")

    all_differ = len({*whole}) == len(whole)
    is_same = all_differ and 0 < len(resumed) < len(whole) and resumed == whole[-len(resumed) :]
    print(f"Same batches: {'yes' if is_same else 'NO'} (the last {len(resumed)} of {len(whole)}, pixel for pixel)")
    return is_same


# ---------------------------------------------------------------- the photographs


def write_patches(folder: Path, num_patches: int) -> None:
    """Patches of each photograph to train with, from its left half; and a quarter as many from its right, to check."""
    spec = importlib.util.find_spec("skimage")
    places = [Path(place) / "data" for place in (spec.submodule_search_locations if spec else None) or []]
    photographs = [path for place in places for name in PHOTOGRAPHS if (path := place / name).exists()]
    if len(photographs) < 2:
        raise SystemExit("The photographs come with scikit-image: pip install scikit-image.")
    for path in photographs:
        draw = random.Random(path.stem)
        with Image.open(path) as file:
            image = file.convert("RGB")
        middle = image.width // 2
        parts = {"train": (0, middle, num_patches), "held_out": (middle, image.width, num_patches // 4)}
        for part, (left_end, right_end, number_of) in parts.items():
            (folder / part / path.stem).mkdir(parents=True)
            for number in range(number_of):
                width = draw.uniform(0.5, 1) * (right_end - left_end)
                height = width * PATCH_SIZE[1] / PATCH_SIZE[0]
                left, top = draw.uniform(left_end, right_end - width), draw.uniform(0, image.height - height)
                patch = image.resize(PATCH_SIZE, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
                patch.save(folder / part / path.stem / f"{number:04}.jpg", quality=90)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logs", type=Path, help="a new folder for what is written (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="few patches, two epochs")
    arguments = parser.parse_args()
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="03_lightning-"))
    if logs.exists() and any(logs.iterdir()):
        raise SystemExit(f"{logs} is not empty. Delete it, or give another folder with --logs.")
    torch.set_num_threads(1)  # the network is small: the other cores are the loader's
    with tempfile.TemporaryDirectory() as images:
        write_patches(Path(images), num_patches=32 if arguments.quick else 128)
        is_same = compare(Path(images), logs, epochs=2 if arguments.quick else 3)
    print(f"\nTo see both: tensorboard --logdir {logs}")
    print("Open the address that it prints. The charts under 'data' say what the loaders did.")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
