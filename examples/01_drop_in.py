"""Swap DataLoader for StageLoader and train: which photograph does a patch come from?

The photographs are those that scikit-image and scikit-learn ship. Patches of each are written once, as a
folder of JPEG files. Then `train` below runs with torch's DataLoader and with StageLoader, each in a fresh
process, twice:

1. with a deterministic transform, to check that both give the same batches (`torchstage.compare`) and losses;
2. with the usual random crops and flips.

Nothing but the class differs. Time, CPU seconds and memory are measured, and printed side by side.
"""

import argparse
import importlib.util
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from torchstage import StageLoader, compare

LOADER_CLASSES: list[type[DataLoader]] = [DataLoader, StageLoader]

# Inside the installed packages: nothing is downloaded.
PHOTOGRAPHS = {
    "skimage": [
        "data/astronaut.png",
        "data/chelsea.png",
        "data/coffee.png",
        "data/hubble_deep_field.jpg",
        "data/ihc.png",
        "data/motorcycle_left.png",
        "data/retina.jpg",
        "data/rocket.jpg",
    ],
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
}

IMAGE_SIZE = 96
BATCH_SIZE = 32
PATCH_SIZE = (500, 375)  # the size of a usual ImageNet photograph
TRAIN_SHARE = 0.7  # training patches come from the left 70 % of a photograph, held-out ones from the rest
NORMALIZE = v2.Compose(
    [
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
)
SAME_EACH_TIME = v2.Compose([v2.Resize(IMAGE_SIZE), v2.CenterCrop(IMAGE_SIZE), NORMALIZE])
RANDOM = v2.Compose([v2.RandomResizedCrop(IMAGE_SIZE, scale=(0.3, 1)), v2.RandomHorizontalFlip(), NORMALIZE])


@dataclass(frozen=True)
class Task:
    """One training: everything but the loader class."""

    data: Path
    transform: Callable
    epochs: int
    num_workers: int


@dataclass(frozen=True)
class Outcome:
    losses: list[float]  # one a batch
    accuracy: float  # share of the held-out patches
    wall_seconds: float
    cpu_seconds: float | None
    peak_added_bytes: int | None


# ---------------------------------------------------------------- the training, the same for both loaders


def make_loader(loader_class: type[DataLoader], task: Task) -> DataLoader:
    return loader_class(
        ImageFolder(task.data / "train", transform=task.transform),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=task.num_workers,
        generator=torch.Generator().manual_seed(1),
    )


def train(loader_class: type[DataLoader], task: Task) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    loader = make_loader(loader_class, task)
    network = make_network(num_classes=len(loader.dataset.classes))
    optimizer = make_optimizer(network)
    losses: list[float] = []
    for epoch in range(1, task.epochs + 1):
        num_right = 0
        for step, (images, labels) in enumerate(loader, start=1):
            scores, loss = take_step(network, optimizer, images, labels)
            losses.append(loss.item())
            num_right += int((scores.argmax(1) == labels).sum())
            show_progress(loader_class, epoch, task.epochs, step, len(loader), losses[-1])
        mean_loss = sum(losses[-len(loader) :]) / len(loader)
        show_epoch(loader_class, epoch, task.epochs, mean_loss, num_right / len(loader.dataset))
    return network, losses


def take_step(
    network: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = network(images)
    loss = nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return scores, loss


def measure_accuracy(loader_class: type[DataLoader], task: Task, network: nn.Module) -> float:
    """Share of right answers on patches from the part of each photograph that training never saw."""
    dataset = ImageFolder(task.data / "held_out", transform=SAME_EACH_TIME)
    network.eval()
    num_right = 0
    with torch.no_grad():
        for images, labels in loader_class(dataset, batch_size=BATCH_SIZE, num_workers=task.num_workers):
            num_right += int((network(images).argmax(1) == labels).sum())
    return num_right / len(dataset)


def make_network(num_classes: int) -> nn.Module:
    def block(channels_in: int, channels_out: int) -> list[nn.Module]:
        convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=3e-3)


def show_progress(loader_class: type, epoch: int, epochs: int, step: int, steps: int, loss: float) -> None:
    """One line that is written over on a terminal; elsewhere, nothing until the epoch ends."""
    if sys.stdout.isatty() and step % 4 == 0:
        bar = ("#" * (20 * step // steps)).ljust(20, ".")
        line = f"  {loader_class.__name__:<12} epoch {epoch}/{epochs}  {bar}  {step}/{steps}  loss {loss:.3f}"
        print(f"\r{line:<78}", end="", flush=True)


def show_epoch(loader_class: type, epoch: int, epochs: int, loss: float, accuracy: float) -> None:
    start = "\r" if sys.stdout.isatty() else ""
    line = f"  {loader_class.__name__:<12} epoch {epoch}/{epochs}  loss {loss:.3f}  accuracy {accuracy:6.1%}"
    print(f"{start}{line:<78}".rstrip(), flush=True)


# ---------------------------------------------------------------- the photographs


def make_patches(cache: Path, num_train: int, num_held_out: int) -> Path:
    """The folder with the patches of each photograph, made unless it is there already."""
    folder = cache / f"photograph-patches-v1-{num_train}-{num_held_out}"
    if not folder.is_dir():
        photographs = find_photographs()
        print(f"Writing patches of {len(photographs)} photographs to {folder}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=cache))
        try:
            for path in photographs:
                write_patches(path, unfinished, num_train, num_held_out)
            unfinished.rename(folder)  # so that a folder of this name is always complete
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    for path in folder.rglob("*.jpg"):
        path.read_bytes()  # into the page cache, so that the loader measured first does not pay for the disk
    return folder


def find_photographs() -> list[Path]:
    found = []
    for package, names in PHOTOGRAPHS.items():
        spec = importlib.util.find_spec(package)
        folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]
        found += [path for folder in folders for name in names if (path := folder / name).exists()]
    if len(found) < 2:
        raise SystemExit("The photographs come with scikit-image and scikit-learn: pip install both.")
    return found


def write_patches(photograph: Path, folder: Path, num_train: int, num_held_out: int) -> None:
    draw = random.Random(photograph.stem)
    with Image.open(photograph) as file:
        image = file.convert("RGB")
    border = round(image.width * TRAIN_SHARE)
    parts = {
        "train": (image.crop((0, 0, border, image.height)), num_train),
        "held_out": (image.crop((border, 0, image.width, image.height)), num_held_out),
    }
    # Both parts are cut at the same scales, else a network might judge by sharpness.
    largest = min(parts["held_out"][0].width, image.height * PATCH_SIZE[0] / PATCH_SIZE[1])
    for name, (part, num_patches) in parts.items():
        class_folder = folder / name / photograph.stem
        class_folder.mkdir(parents=True)
        for number in range(num_patches):
            width = largest * draw.uniform(0.5, 1)
            height = width * PATCH_SIZE[1] / PATCH_SIZE[0]
            left, top = draw.uniform(0, part.width - width), draw.uniform(0, part.height - height)
            box = (left, top, left + width, top + height)
            patch = part.resize(PATCH_SIZE, Image.Resampling.BICUBIC, box)
            patch.save(class_folder / f"{number:04}.jpg", quality=90)


def cache_folder() -> Path:
    """Where this user's caches live; the temporary folder where there is no such place."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "torchstage"
    home_cache = Path.home() / ".cache"
    if os.access(home_cache if home_cache.exists() else Path.home(), os.W_OK):
        return home_cache / "torchstage"
    return Path(tempfile.gettempdir()) / "torchstage"


# ---------------------------------------------------------------- measuring


def run_in_fresh_process(loader_class: type[DataLoader], task: Task) -> Outcome:
    """Train in a new interpreter, so that no run inherits the memory or the warm caches of another."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    start_method = multiprocessing.get_start_method()  # else the child's own workers would be spawned, too
    child = spawn.Process(target=train_and_report, args=(loader_class, task, sender, start_method))
    child.start()
    sender.close()
    memory: list[tuple[float, int]] = []  # when, and bytes of the whole process tree
    while not receiver.poll(0.2) and child.is_alive():
        if child.pid is not None and (num_bytes := proportional_set_size(child.pid)) is not None:
            memory.append((time.monotonic(), num_bytes))
    try:
        outcome, bytes_before, started, ended = receiver.recv()
    except EOFError:
        raise SystemExit(f"The training with {loader_class.__name__} failed.") from None
    finally:
        child.join()
    during = [num_bytes for when, num_bytes in memory if started <= when <= ended]
    peak = max(during) - bytes_before if during and bytes_before is not None else None
    return Outcome(**outcome, peak_added_bytes=peak)


def train_and_report(loader_class: type[DataLoader], task: Task, sender: Connection, start_method: str) -> None:
    multiprocessing.set_start_method(start_method, force=True)
    torch.set_num_threads(1)  # the network is small: the other cores are the loader's
    warm_up()
    bytes_before = proportional_set_size(os.getpid())
    cpu_before = cpu_seconds_of_process_tree()
    started = time.monotonic()
    network, losses = train(loader_class, task)
    ended = time.monotonic()
    cpu_after = cpu_seconds_of_process_tree()
    outcome = {
        "losses": losses,
        "accuracy": measure_accuracy(loader_class, task, network),
        "wall_seconds": ended - started,
        "cpu_seconds": None if cpu_before is None or cpu_after is None else cpu_after - cpu_before,
    }
    sender.send((outcome, bytes_before, started, ended))


def warm_up() -> None:
    """Take one step: torch loads much of itself on the first, and no loader should be charged for that."""
    network = make_network(num_classes=2)
    images = torch.zeros(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE)
    take_step(network, make_optimizer(network), images, torch.zeros(BATCH_SIZE, dtype=torch.int64))


def cpu_seconds_of_process_tree() -> float | None:
    """Of this process, its children that ended and its descendants that run. None on Windows."""
    if sys.platform == "win32":
        return None
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    for pid in descendants(os.getpid()):
        if fields := read_stat(pid):
            total += sum(int(ticks) for ticks in fields[11:15]) / ticks_a_second
    return total


def proportional_set_size(root: int) -> int | None:
    """Bytes of a process and its descendants, shared pages counted once. None without Linux's /proc."""
    total = None
    for pid in [root, *descendants(root)]:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # no /proc here, or the process just ended
            continue
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total = (total or 0) + int(line.split()[1]) * 1024
    return total


def descendants(root: int) -> Iterator[int]:
    parents = {
        int(folder.name): int(fields[1])
        for folder in Path("/proc").glob("[0-9]*")
        if (fields := read_stat(int(folder.name)))
    }
    for pid in parents:
        ancestor = parents[pid]
        while ancestor in parents and ancestor != root:
            ancestor = parents[ancestor]
        if ancestor == root and pid != root:
            yield pid


def read_stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


# ---------------------------------------------------------------- the report


def train_with_both(title: str, task: Task) -> tuple[Outcome, Outcome]:
    print(f"\n{title}", flush=True)
    outcomes = [run_in_fresh_process(loader_class, task) for loader_class in LOADER_CLASSES]
    print()
    print(f"  {'':<32}" + "".join(f"{loader_class.__name__:>14}" for loader_class in LOADER_CLASSES))
    print_row("time, seconds", [f"{o.wall_seconds:.1f}" for o in outcomes])
    print_row("CPU seconds, all processes", [in_units(o.cpu_seconds, 1) for o in outcomes])
    print_row("peak added memory (PSS), MiB", [in_units(o.peak_added_bytes, 2**20, ".0f") for o in outcomes])
    print_row("accuracy, unseen patches", [f"{o.accuracy:.1%}" for o in outcomes])
    return outcomes[0], outcomes[1]


def print_row(name: str, cells: list[str]) -> None:
    print(f"  {name:<32}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


def in_units(value: float | None, unit: int, form: str = ".1f") -> str:
    return "n/a" if value is None else f"{value / unit:{form}}"


def check_same(task: Task, theirs: Outcome, ours: Outcome) -> bool:
    """Say whether training went the same way with both loaders, and whether they give the same batches."""
    losses_are_same = theirs.losses == ours.losses
    print(f"\n  Same losses:  {yes_or_no(losses_are_same)} ({len(ours.losses)} steps, compared exactly)", flush=True)
    reference, candidate = (partial(make_loader, loader_class, task) for loader_class in LOADER_CLASSES)
    found = compare(reference, candidate, epochs=min(2, task.epochs), timed_epochs=0, fresh_processes=True)
    print(f"  Same batches: {yes_or_no(found.equal)} ({found.scope})", flush=True)
    if not found.equal:
        print(f"\n{found}")
    return found.equal and losses_are_same


def yes_or_no(is_so: bool) -> str:
    return "yes" if is_so else "NO"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="where the patches are kept (default: the user's cache)")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of both loaders (default: 2)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of each training (default: 3)")
    parser.add_argument("--quick", action="store_true", help="few patches, one epoch, the check only")
    arguments = parser.parse_args()

    num_train, num_held_out = (12, 4) if arguments.quick else (120, 30)
    data = make_patches(arguments.data or cache_folder(), num_train, num_held_out)
    task = Task(data, SAME_EACH_TIME, 1 if arguments.quick else arguments.epochs, arguments.workers)
    print(f"Both loaders: num_workers={task.num_workers}, batch_size={BATCH_SIZE}, {os.cpu_count()} cores")

    outcomes = train_with_both("1. A deterministic transform: the batches must be the same", task)
    are_same = check_same(task, *outcomes)
    if not arguments.quick:
        task = Task(data, RANDOM, task.epochs, task.num_workers)
        train_with_both("2. Random crops and flips: each loader draws its own", task)
    print("\nOne run each, on whatever else this machine was doing. For repeated runs, see benchmarks/.")
    return 0 if are_same else 1


if __name__ == "__main__":
    sys.exit(main())
