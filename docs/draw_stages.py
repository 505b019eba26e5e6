"""Draw stages: a training on real photographs in, how busy each stage was and what training waited for, drawn, out.

    pip install 'torchstage[image]' torchvision scikit-image scikit-learn matplotlib
    python docs/draw_stages.py docs/images/stages.png

The photographs and the network are those of examples/01_drop_in.py. What ``loader.stats()`` told is kept beside the
picture, as stages.json; ``--again`` draws that.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import torch
from torchvision.datasets import ImageFolder

from torchstage import StageLoader, observe

EXAMPLE = Path(__file__).resolve().parent.parent / "examples/01_drop_in.py"
NUM_WORKERS = 2
NUM_PATCHES = 96  # of each photograph
STAGE, BOTTLENECK, WAIT, INK = "#7aa6d8", "#e08e45", "#b9b9b9", "#222222"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drop_in", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["drop_in"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure() -> dict[str, Any]:
    """Train for an epoch after a first one, which is not counted: in it, threads start and the dataset is looked at."""
    shown: Any = example()
    torch.set_num_threads(1)  # the network is small: the other cores are the loader's
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = shown.make_patches(Path(folder), NUM_PATCHES, 1)
        dataset = ImageFolder(data / "train", transform=shown.RANDOM)
        network = shown.make_network(len(dataset.classes))
        optimizer = shown.make_optimizer(network)
        with StageLoader(dataset, shown.BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, seed=7) as loader:
            since = None
            for _ in range(2):
                since = loader.stats()
                for images, labels in loader:
                    shown.take_step(network, optimizer, images, labels)
            return {**observe.as_dict(loader.stats(since)), "cores": len(os.sched_getaffinity(0))}


def draw(told: dict[str, Any], picture: Path) -> None:
    stages = [stage for stage in told["stages"] if stage["busy_share"]]  # not those that have nothing to do
    rows = [(stage["name"], stage["busy_share"], "of its threads' time") for stage in stages]
    rows.append(("training loop", told["wait_share"], "of a step goes by waiting for data"))
    figure, axes = plt.subplots(figsize=(8.4, 0.55 * len(rows) + 1.6), dpi=150)
    for place, (name, share, words) in enumerate(rows):
        is_wait = place == len(rows) - 1
        colour = WAIT if is_wait else BOTTLENECK if name == told["bottleneck"] else STAGE
        axes.barh(place + 0.35 * is_wait, 100 * share, 0.66, color=colour)
        label = f"{100 * share:.0f} % {words}" if place == 0 or is_wait else f"{100 * share:.0f} %"
        axes.text(100 * share + 1, place + 0.35 * is_wait, label, va="center", fontsize=10, color=INK)
    axes.set_yticks([place + 0.35 * (place == len(rows) - 1) for place in range(len(rows))], [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    axes.tick_params(length=0, labelsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    cores = f"{NUM_WORKERS} threads on {told['cores']} cores"
    axes.set_title(f"{told['samples']} photographs, {cores}", loc="left", fontsize=11, color=INK)
    figure.text(0.02, 0.03, told["advice"], fontsize=9.5, color=INK, wrap=True)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--again", action="store_true", help="draw what was measured before")
    arguments = parser.parse_args()
    numbers = arguments.picture.with_suffix(".json")
    if not arguments.again:
        numbers.write_text(json.dumps(measure(), indent=1) + "\n")
    draw(json.loads(numbers.read_text()), arguments.picture)
