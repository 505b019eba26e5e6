"""Kill a training in mid-epoch and go on with another number of threads: the same batches, pixel for pixel.

Three trainings on patches of the photographs that scikit-image ships, cropped, flipped and coloured at random:

1. one that nobody disturbs, with 2 threads;
2. the same in a process of its own, which is killed in the second epoch, between two checkpoints;
3. one with another number of threads, which begins with the last checkpoint.

What the second did until its last checkpoint and what the third did are together what the first did: each batch has the
same hash, and each step the same loss.
"""

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from torchstage import StageLoader

PHOTOGRAPHS = ["astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg"]
PATCH_SIZE, IMAGE_SIZE, BATCH_SIZE, NUM_EPOCHS = 160, 64, 16, 3
STEPS_PER_CHECKPOINT = 4
TRANSFORM = v2.Compose(
    [
        v2.RandomResizedCrop(IMAGE_SIZE, scale=(0.3, 1)),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.3, 0.3, 0.3),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


# ---------------------------------------------------------------- the training, which can go on anywhere


@dataclass(frozen=True)
class Task:
    folder: Path
    name: str
    checkpoint: str
    num_workers: int
    killed_in_step: int | None = None


def train(task: Task) -> None:
    torch.set_num_threads(1)  # the network is small: the other cores are the loader's
    torch.manual_seed(0)
    dataset = ImageFolder(task.folder / "images", transform=TRANSFORM)
    loader = StageLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=task.num_workers, seed=1)
    network = make_network(len(dataset.classes))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    step = 0
    checkpoint = task.folder / task.checkpoint
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    with (task.folder / f"{task.name}.jsonl").open("w") as log:
        for epoch in range(step // len(loader), NUM_EPOCHS):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                print(json.dumps([epoch, step, hash_of(images, labels), loss.item()]), file=log, flush=True)
                if step % STEPS_PER_CHECKPOINT == 0:
                    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                    save({**state, "loader": loader.state_dict(), "step": step}, checkpoint)
                if step == task.killed_in_step:
                    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def save(state: dict[str, Any], path: Path) -> None:
    """There is a whole checkpoint at any time, whenever this process ends."""
    unfinished = path.with_suffix(".new")
    torch.save(state, unfinished)
    unfinished.replace(path)


def make_network(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


def hash_of(images: torch.Tensor, labels: torch.Tensor) -> str:
    return hashlib.blake2b(images.numpy().tobytes() + labels.numpy().tobytes(), digest_size=8).hexdigest()


# ---------------------------------------------------------------- the photographs


def write_patches(folder: Path, num_patches: int) -> int:
    """Patches of each photograph, a folder a photograph. Returns how many there are."""
    spec = importlib.util.find_spec("skimage")
    places = [Path(place) / "data" for place in (spec.submodule_search_locations if spec else None) or []]
    photographs = [path for place in places for name in PHOTOGRAPHS if (path := place / name).exists()]
    if len(photographs) < 2:
        raise SystemExit("The photographs come with scikit-image: pip install scikit-image.")
    for path in photographs:
        draw = random.Random(path.stem)
        (folder / path.stem).mkdir(parents=True)
        with Image.open(path) as file:
            image = file.convert("RGB")
        for number in range(num_patches):
            left, top = (draw.randrange(side - PATCH_SIZE) for side in image.size)
            patch = image.crop((left, top, left + PATCH_SIZE, top + PATCH_SIZE))
            patch.save(folder / path.stem / f"{number:04}.jpg", quality=90)
    return len(photographs) * num_patches


# ---------------------------------------------------------------- three runs, compared


def compare(folder: Path, num_patches: int) -> bool:
    num_images = write_patches(folder / "images", num_patches)
    num_steps = -(-num_images // BATCH_SIZE)
    killed_in_step = num_steps + num_steps // 2
    killed_in_step += killed_in_step % STEPS_PER_CHECKPOINT == 0  # else it would be right after a checkpoint
    print(f"{num_images} images, {NUM_EPOCHS} epochs of {num_steps} steps, a checkpoint every {STEPS_PER_CHECKPOINT}")
    train(Task(folder, "whole", "whole.pt", num_workers=2))
    whole = steps_of(folder, "whole")
    print(f"  never cut, num_workers=2: steps 1 to {len(whole)}", flush=True)
    run_until_killed(Task(folder, "before", "cut.pt", num_workers=2, killed_in_step=killed_in_step))
    before = steps_of(folder, "before")
    print(f"  killed, num_workers=2:    steps 1 to {len(before)}, in epoch {before[-1][0] + 1}", flush=True)
    num_workers = 4 if (os.cpu_count() or 1) >= 4 else 1
    train(Task(folder, "after", "cut.pt", num_workers))
    after = steps_of(folder, "after")
    print(f"  gone on, num_workers={num_workers}:   steps {after[0][1]} to {after[-1][1]}", flush=True)
    together = [*before[: after[0][1] - 1], *after]
    all_differ = len({step[2] for step in whole}) == len(whole)
    is_same = together == whole and all_differ
    print(f"  Same batches and losses: {'yes' if is_same else 'NO'} ({len(together)} steps, compared exactly)")
    return is_same


def steps_of(folder: Path, name: str) -> list[Any]:
    """Epoch, step, hash and loss of each step."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def run_until_killed(task: Task) -> None:
    child = multiprocessing.get_context("spawn").Process(target=train, args=(task,))
    child.start()
    child.join()
    if child.exitcode == 0:
        raise SystemExit("That training should have been killed.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few images")
    num_patches = 16 if parser.parse_args().quick else 64
    with tempfile.TemporaryDirectory() as folder:
        return 0 if compare(Path(folder), num_patches) else 1


if __name__ == "__main__":
    sys.exit(main())
