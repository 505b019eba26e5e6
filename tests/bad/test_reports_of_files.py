"""UR-063: one broken image out of millions made the whole pipeline invalid. Here seven of 10,000 are broken, in
torchvision's ImageFolder, read by Pillow."""

import io
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("PIL")
pytest.importorskip("torchvision")

from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor

from torchstage import StageLoader, TooManyBadSamples

LENGTH, BATCH_SIZE = 10_000, 64
CUT = 80  # batches: after the fourth bad sample
EMPTY, TRUNCATED, TEXT = (17, 2048), (4096, 4097, 9999), (5000, 9000)
BAD = sorted((*EMPTY, *TRUNCATED, *TEXT))
GOOD = [number for number in range(LENGTH) if number not in BAD]
WHERE: dict[str, dict[str, Any]] = {
    "threads": {"num_workers": 4, "worker_method": "thread"},
    "processes": {"num_workers": 2, "worker_method": "multiprocessing"},
}
everywhere = pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)

pytestmark = pytest.mark.timeout(300)  # 10,000 files are read in each test


def picture_of(number: int, size: int = 1, kind: str = "PNG") -> bytes:
    """Its colour tells its number."""
    file = io.BytesIO()
    Image.new("RGB", (size, size), (number % 256, number // 256, 7)).save(file, kind)
    return file.getvalue()


def content_of(number: int) -> bytes:
    if number in EMPTY:
        return b""
    if number in TRUNCATED:
        whole = picture_of(number, 64, "JPEG")
        return whole[: len(whole) - 40]
    return b"404: not found\n" if number in TEXT else picture_of(number)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
    for number in range(LENGTH):
        (folder / ("cats" if number < LENGTH // 2 else "dogs") / f"{number:05}.png").write_bytes(content_of(number))
    return folder


def loader_of(folder: Path, where: dict[str, Any], **arguments: Any) -> StageLoader[Any]:
    return StageLoader(ImageFolder(str(folder), transform=PILToTensor()), BATCH_SIZE, **{**where, **arguments})


def numbers(batch: Any) -> list[int]:
    """What each image of a batch shows, which belongs to its label."""
    images, labels = batch
    red, green, blue = images.reshape(len(images), 3).long().unbind(1)
    found = red + 256 * green
    assert (blue == 7).all()
    assert torch.equal(labels, (found >= LENGTH // 2).long())
    return found.tolist()


def path_of(folder: Path, number: int) -> str:
    return str(folder / ("cats" if number < LENGTH // 2 else "dogs") / f"{number:05}.png")


def sizes(batches: list[list[int]]) -> list[int]:
    return [len(batch) for batch in batches]


@everywhere
def test_with_skip_every_batch_is_full_and_all_seven_files_are_told(folder: Path, where: dict[str, Any]) -> None:
    with loader_of(folder, where, on_error="skip") as loader:
        with pytest.warns(UserWarning, match="7 bad samples in this epoch") as told:
            batches = [numbers(batch) for batch in loader]
        stats = loader.stats()
    assert list(chain.from_iterable(batches)) == GOOD
    assert sizes(batches) == [BATCH_SIZE] * (len(GOOD) // BATCH_SIZE) + [len(GOOD) % BATCH_SIZE]
    assert [(bad.index, bad.file) for bad in stats.bad] == [(number, path_of(folder, number)) for number in BAD]
    assert all(bad.kind == ("OSError" if bad.index in TRUNCATED else "UnidentifiedImageError") for bad in stats.bad)
    assert (stats.bad_samples, stats.samples) == (7, len(GOOD))
    (words,) = (str(one.message) for one in told if "bad samples" in str(one.message))
    assert all(f"index {number} ({path_of(folder, number)})" in words for number in BAD)


@everywhere
def test_with_replace_the_next_file_that_can_be_read_comes_instead(folder: Path, where: dict[str, Any]) -> None:
    expected = list(range(LENGTH))
    for number in BAD:
        expected[number] = next(other for other in (number + 1, number + 2, 0) if other in set(GOOD))
    with loader_of(folder, where, on_error="replace") as loader:
        with pytest.warns(UserWarning, match="7 bad samples in this epoch"):
            batches = [numbers(batch) for batch in loader]
        instead = [(bad.index, bad.substitute) for bad in loader.stats().bad]
    assert list(chain.from_iterable(batches)) == expected
    assert instead == [(number, expected[number]) for number in BAD]


@everywhere
def test_above_the_cap_all_that_were_found_are_listed(folder: Path, where: dict[str, Any]) -> None:
    seen: list[int] = []
    loader = loader_of(folder, where, on_error="skip", max_bad_samples=5)
    with loader, pytest.raises(TooManyBadSamples, match=r"6 bad samples .*max_bad_samples=5") as caught:
        seen.extend(chain.from_iterable(map(numbers, loader)))
    assert [(bad.index, bad.file) for bad in caught.value.bad] == [(n, path_of(folder, n)) for n in BAD[:6]]
    whole = [number for number in GOOD if number < BAD[5]]
    assert seen == whole[: len(whole) // BATCH_SIZE * BATCH_SIZE]  # all batches before it


@everywhere
def test_with_raise_the_first_one_ends_it_and_it_is_closed_in_order(folder: Path, where: dict[str, Any]) -> None:
    """What the loader has in flight then is let go of: the test's fixture looks for threads, processes, files."""
    with loader_of(folder, where) as loader:
        batches = iter(loader)
        with pytest.raises(Image.UnidentifiedImageError) as caught:
            next(batches)
    note = f"dataset index 17 ({path_of(folder, 17)})"
    assert any(note in one for one in caught.value.__notes__)


@everywhere
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_cut_in_the_middle_places_of_the_sampler_are_counted(
    folder: Path, where: dict[str, Any], on_error: Any
) -> None:
    def new_loader() -> StageLoader[Any]:
        return loader_of(folder, where, on_error=on_error)

    before: list[int] = []
    with new_loader() as loader:
        for number, batch in enumerate(loader, 1):
            before += numbers(batch)
            if number == CUT:
                break
        state = loader.state_dict()
    assert len(before) == CUT * BATCH_SIZE
    num_bad = sum(number < CUT * BATCH_SIZE for number in BAD)
    assert state["bad_samples"]["bad"] == num_bad
    assert state["position"] == CUT * BATCH_SIZE + (num_bad if on_error == "skip" else 0)
    with new_loader() as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="7 bad samples in this epoch"):
            after = [number for batch in loader for number in numbers(batch)]
    if on_error == "skip":
        assert before + after == GOOD
    else:
        assert [number for number in (before + after) if number in set(GOOD)] == before + after
        assert len(before + after) == LENGTH
