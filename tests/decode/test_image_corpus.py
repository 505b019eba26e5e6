"""decode_image on the test images of Pillow's source package: a thousand files of every format, many of them made to
break a decoder. Each gives the picture that Pillow gives, or one DecodeError; in eight threads as in one."""

import random
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.decode import pillow_sources
from torchstage.decode import DecodeError, decode_image, image_info

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

MIN_NUM_FILES = 700  # 1,058 in Pillow 13
MIN_NUM_PICTURES = 500  # the others are damaged, or not images
ALLOWED_GROWTH_MIB = 100

PASSED_ON = re.compile(
    r"Corrupt EXIF data|Tag data larger|Tag offset too large|Truncated File Read|Metadata Warning|Possibly corrupt|"
    r"Image was not the expected size|malformed MPO|Invalid APNG|deprecated and will be removed in Pillow|"
    r"id_section has been trimmed|decode_image: .* frames, of which the first is used"
)  # what docs/decode-images.md calls odd metadata; one format of Pillow announces its end; and our own


@pytest.fixture(scope="module")
def files() -> list[Path]:
    try:
        folder = pillow_sources.folder()
    except pillow_sources.NotFetchedError as error:
        pytest.skip(f"the source package of Pillow could not be fetched: {error}")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(found) >= MIN_NUM_FILES
    return found


def reference(path: Path) -> np.ndarray:
    """What docs/decode-images.md promises, by Pillow and numpy alone. Raises what Pillow raises."""
    with Image.open(path) as image:
        image.load()
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("no range")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("no range")
        grey = np.rint(values / 257).astype(np.uint8)
        return np.stack([np.where(values == image.info.get("transparency", -1), 255, grey)] * 3)
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, "white")
        canvas.paste(image, mask=image)
        image = canvas
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def told(picture: np.ndarray) -> str:
    """A picture, to compare."""
    return f"{picture.shape} {sha256(np.ascontiguousarray(picture).tobytes()).hexdigest()}"


def outcome(path: Path) -> str:
    """Of decode_image: the picture, or the error's words. Any other exception is not caught."""
    try:
        return told(decode_image(path).numpy())
    except DecodeError as error:
        return str(error)


@pytest.fixture(scope="module")
def alone(files) -> tuple[dict[Path, str], set[str]]:
    """What one thread gets of each file, and all that was warned meanwhile."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcomes = {path: outcome(path) for path in files}
    return outcomes, {str(warning.message) for warning in seen}


def test_every_file_is_the_picture_that_pillow_gives_or_one_error(alone):
    differences, num_pictures = [], 0
    for path, got in alone[0].items():
        is_picture = got.startswith("(3, ")
        num_pictures += is_picture
        try:
            expected = told(reference(path))
        except Exception as error:
            if is_picture or str(path) not in got:
                differences.append(f"{path.name}: Pillow says {error!r:.99}, we give {got}")
            continue
        if got != expected:
            differences.append(f"{path.name}: Pillow has {expected}, we give {got}")
    assert differences == []
    assert num_pictures >= MIN_NUM_PICTURES


def test_eight_threads_give_what_one_gives_and_keep_nothing(files, alone):
    psutil = pytest.importorskip("psutil")
    shuffled = random.Random(0).sample(files, len(files))
    with ThreadPoolExecutor(8) as threads:
        assert dict(zip(shuffled, threads.map(outcome, shuffled), strict=True)) == alone[0]
        before = psutil.Process().memory_info().rss
        assert dict(zip(shuffled, threads.map(outcome, shuffled), strict=True)) == alone[0]
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    assert grown < ALLOWED_GROWTH_MIB


def test_what_a_file_tells_is_told_or_one_error(files):
    for path in files:
        try:
            info = image_info(path)
        except DecodeError:
            continue
        assert info.format
        assert info.num_frames >= 1


def test_the_warnings_are_those_that_are_documented(alone):
    assert {message for message in alone[1] if not PASSED_ON.search(message)} == set()
