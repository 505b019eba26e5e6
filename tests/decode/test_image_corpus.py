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


def outcome(path: Path) -> str:
    """Of decode_image, to compare: a digest, or the error's words. Any other exception is not caught."""
    try:
        picture = decode_image(path)
    except DecodeError as error:
        return str(error)
    return f"{tuple(picture.shape)} {sha256(picture.numpy().tobytes()).hexdigest()}"


def test_every_file_is_the_picture_that_pillow_gives_or_one_error(files):
    differences, num_pictures = [], 0
    for path in files:
        try:
            expected = reference(path)
        except Exception as error:
            expected = error
        try:
            picture = decode_image(path).numpy()
        except DecodeError as error:
            if not isinstance(expected, Exception) or str(path) not in str(error):
                differences.append(f"{path.name}: Pillow has {expected!r:.99}, we say {error}")
            continue
        num_pictures += 1
        if isinstance(expected, Exception):
            differences.append(f"{path.name}: only Pillow says {expected!r}")
        elif not np.array_equal(picture, expected):
            differences.append(f"{path.name}: other pixels")
    assert differences == []
    assert num_pictures >= MIN_NUM_PICTURES


def test_eight_threads_give_what_one_gives_and_keep_nothing(files):
    psutil = pytest.importorskip("psutil")
    one = {path: outcome(path) for path in files}
    shuffled = random.Random(0).sample(files, len(files))
    with ThreadPoolExecutor(8) as threads:
        assert dict(zip(shuffled, threads.map(outcome, shuffled), strict=True)) == one
        before = psutil.Process().memory_info().rss
        assert dict(zip(shuffled, threads.map(outcome, shuffled), strict=True)) == one
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


def test_the_warnings_are_those_that_are_documented(files):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for path in files:
            outcome(path)
    others = {str(warning.message) for warning in seen if not PASSED_ON.search(str(warning.message))}
    assert others == set()
