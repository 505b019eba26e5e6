"""decode_image on the pictures that Pillow tests itself with: about a thousand files of every kind, many of them broken
on purpose. They are fetched from Pillow's source package, and kept outside the project.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import psutil
import pytest
import torch
from PIL import Image, ImageOps

from torchstage.decode import DecodeError, decode_image

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]

NUM_THREADS = 8
MIN_FILES = 800  # fewer: it is not the package that was meant
MAX_GROWTH = 256 << 20  # of memory, from one pass over the files to the next: a leak of all pixels would be gigabytes
CACHE = Path(tempfile.gettempdir()) / f"torchstage-tests-pillow-{PIL.__version__}"
FETCH_SECONDS = 180


@pytest.fixture(scope="module")
def corpus() -> list[Path]:
    """The files, fetched once a machine."""
    images = CACHE / "images"
    if not images.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        package = _fetched()
        with tarfile.open(package) as archive:
            members = [member for member in archive.getmembers() if "/Tests/images/" in member.name and member.isfile()]
            unpacked = Path(tempfile.mkdtemp(dir=CACHE))
            for member in members:
                member.name = member.name.partition("/Tests/images/")[2]
                archive.extract(member, unpacked, filter="data")
            unpacked.rename(images)
    files = sorted(path for path in images.rglob("*") if path.is_file())
    assert len(files) >= MIN_FILES
    return files


def _fetched() -> Path:
    package = CACHE / "pillow.tar.gz"
    script = Path(__file__).with_name("fetch_sources.py")
    command = [sys.executable, str(script), "pillow", PIL.__version__, str(package)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Pillow's source package did not come within {FETCH_SECONDS} s")
    if done.returncode:
        pytest.skip(f"Pillow's source package cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return package


Outcome = torch.Tensor | str


def ours(path: Path) -> Outcome:
    """The pixels, or the words of the one error that may be raised."""
    try:
        return decode_image(path, background=None)
    except DecodeError as error:
        return str(error)


def pillow_s(path: Path) -> Outcome | None:
    """What Pillow itself makes of it. None: it has 16 bits or more, which we scale and Pillow cuts off."""
    try:
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            image.load()
            if image.mode in ("F", "I") or image.mode.startswith("I;"):
                return None
            upright = ImageOps.exif_transpose(image).convert("RGB")
            return torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def alone(corpus: list[Path]) -> list[Outcome]:
    """What one thread makes of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about broken metadata
        return [ours(path) for path in corpus]


def test_every_file_gives_pillow_s_pixels_or_one_clear_error(corpus: list[Path], alone: list[Outcome]) -> None:
    num_pictures, wrong = 0, list[str]()
    for path, found in zip(corpus, alone, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = pillow_s(path)
        if isinstance(found, torch.Tensor):
            num_pictures += 1
            is_right = expected is None or (isinstance(expected, torch.Tensor) and torch.equal(found, expected))
        else:
            is_right = not isinstance(expected, torch.Tensor) and str(path) in found
        if not is_right:
            wrong.append(f"{path.name}: {found if isinstance(found, str) else tuple(found.shape)}, Pillow: {expected}")
    assert wrong == []
    assert num_pictures > len(corpus) / 2


def test_eight_threads_decode_what_one_does_and_leave_nothing_behind(corpus: list[Path], alone: list[Outcome]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = psutil.Process()
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            together = list(pool.map(ours, corpus))
            differing = [
                path.name
                for path, one, many in zip(corpus, alone, together, strict=True)
                if not (torch.equal(one, many) if torch.is_tensor(one) and torch.is_tensor(many) else one == many)
            ]
            del together
            before = process.memory_info().rss
            for _ in pool.map(lambda path: ours(path) is None, corpus):
                pass
            growth = process.memory_info().rss - before
    assert differing == []
    assert growth < MAX_GROWTH
