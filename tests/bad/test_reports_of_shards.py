"""What was reported of other loaders (UR-079, UR-081), on tar shards that a dataset of the user's own reads: shards
that are cut, empty or missing, and names with dots. The dataset below is what such a dataset has to look like."""

import errno
import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import Stage, StageLoader

Sample = dict[str, bytes]


class Samples:
    """The samples of some shards: members that follow each other and have the same name up to the first dot of their
    last part. After an error it goes on with the next shard, which a generator could not. What is in a member is read
    only once the sample before it was given, so that an error there costs no whole sample."""

    def __init__(self, shards: Iterable[str]) -> None:
        self._shards = iter(shards)
        self._tar: tarfile.TarFile | None = None
        self._info: tarfile.TarInfo | None = None  # of the next member

    def __iter__(self) -> "Samples":
        return self

    def __next__(self) -> Sample:
        if self._tar is None and self._info is None:
            self._path = next(self._shards)
        sample: Sample = {}
        try:
            self._tar = self._tar or tarfile.open(self._path, "r:")  # noqa: SIM115  # see close
            while (info := self._header(self._tar)) is not None:
                key, field = split_name(info.name)
                if sample and key != sample["__key__"].decode():
                    return sample
                file = self._tar.extractfile(info)
                assert file is not None
                sample |= {"__key__": key.encode(), field: file.read()}
                self._info = None
        except (tarfile.TarError, OSError) as error:
            where = f"in member {self._info.name}, at byte {self._info.offset}" if self._info else "at its beginning"
            self.close()  # before it is raised: the next call begins with the next shard
            raise OSError(errno.EIO, f"{error}, {where}", self._path) from error
        self.close()
        return sample or next(self)

    def _header(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        while self._info is None or not self._info.isfile():
            self._info = tar.next()
            if self._info is None:
                return None
        return self._info

    def close(self) -> None:
        self._info = None
        if self._tar is not None:
            self._tar.close()
            self._tar = None

    def __del__(self) -> None:
        self.close()


def split_name(name: str) -> tuple[str, str]:
    """Dots of directories are none; of the last part, what comes after the first dot is the field."""
    directory, slash, last = name.rpartition("/")
    stem, _, field = last.partition(".")
    return directory + slash + stem, field


class Shards(IterableDataset[Sample]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        return Samples(self.paths if info is None else self.paths[info.id :: info.num_workers])


WHERE: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "one lane": {"num_workers": 1},
    "two lanes": {"num_workers": 2},
}
everywhere = pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)


def write(path: Path, members: Iterable[tuple[str, bytes]]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, value in members:
            info = tarfile.TarInfo(name)
            info.size = len(value)
            tar.addfile(info, io.BytesIO(value))
    return str(path)


@pytest.fixture
def five_shards(tmp_path: Path) -> list[str]:
    """Five of four samples; the third is cut inside its third sample, the fourth is empty, the fifth is not there."""
    paths: list[str] = []
    for shard in range(5):
        members = [(f"{shard}{at}.bin", bytes([shard, at]) * 2000) for at in range(4)]
        paths.append(write(tmp_path / f"shard-{shard}.tar", members))
    with Path(paths[2]).open("rb+") as file:
        file.truncate(2 * (512 + 4096) + 512 + 1000)
    Path(paths[3]).write_bytes(b"")
    Path(paths[4]).unlink()
    return paths


def keys_of(samples: list[Sample]) -> list[str]:
    assert all(len(sample["bin"]) == 4000 for sample in samples)  # nothing that was cut is taken for a sample
    return [sample["__key__"].decode() for sample in samples]


WHOLE = {f"{shard}{at}" for shard in (0, 1) for at in range(4)} | {"20", "21"}


@everywhere
def test_ur_079_skip_delivers_every_whole_sample_and_names_the_shards(
    where: dict[str, Any], five_shards: list[str]
) -> None:
    loader = StageLoader(Shards(five_shards), batch_size=3, collate_fn=keys_of, on_error="skip", **where)
    with loader, pytest.warns(UserWarning, match="3 bad samples") as told:
        batches = list(loader)
    found = [key for batch in batches for key in batch]
    assert sorted(found) == sorted(WHOLE)
    assert sorted(map(len, batches)) == [1, 3, 3, 3]
    bad = sorted(loader.stats().bad, key=lambda one: one.file or "")
    assert [one.file for one in bad] == five_shards[2:]
    cut, empty, missing = bad
    assert cut.kind == "OSError"
    assert "unexpected end of data, in member 22.bin, at byte 9216" in cut.message
    assert "empty file, at its beginning" in empty.message
    assert "No such file" in missing.message
    assert all(path in str(told[-1].message) for path in five_shards[2:])


@everywhere
def test_ur_079_raise_says_shard_member_and_place_and_goes_on_if_asked_to(
    where: dict[str, Any], five_shards: list[str]
) -> None:
    loader = StageLoader(Shards(five_shards[:3] + five_shards[:1]), batch_size=1, collate_fn=keys_of, **where)
    found: list[str] = []
    errors: list[OSError] = []
    batches = iter(loader)
    while True:
        try:
            found += next(batches)
        except StopIteration:
            break
        except OSError as error:
            errors.append(error)
    loader.close()
    assert sorted(found) == sorted([*WHOLE, "00", "01", "02", "03"])
    (error,) = errors
    assert error.filename == five_shards[2]
    assert "unexpected end of data, in member 22.bin, at byte 9216" in str(error)


@everywhere
def test_ur_079_a_bound_of_bad_shards_ends_the_run(where: dict[str, Any], five_shards: list[str]) -> None:
    loader = StageLoader(
        Shards(five_shards), batch_size=3, collate_fn=keys_of, on_error="skip", max_bad_samples=2, **where
    )
    with loader, pytest.raises(RuntimeError, match=r"3 bad samples.*max_bad_samples=2"):
        list(loader)


@pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning")
@everywhere
def test_ur_079_a_run_that_was_cut_goes_on_past_the_same_shards(where: dict[str, Any], five_shards: list[str]) -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "collate_fn": keys_of, "on_error": "skip", **where}
    with pytest.warns(UserWarning, match="3 bad samples"), StageLoader(Shards(five_shards), **arguments) as loader:
        whole = list(loader)
    for number in range(1, len(whole)):
        with StageLoader(Shards(five_shards), **arguments) as loader:
            batches = iter(loader)
            assert [next(batches) for _ in range(number)] == whole[:number]
            state = loader.state_dict()
        with StageLoader(Shards(five_shards), **arguments) as loader:
            loader.load_state_dict(state)
            with pytest.warns(UserWarning, match="3 bad samples"):
                assert list(loader) == whole[number:]


# UR-081 -----------------------------------------------------------------------------------------------------------


def png_of(sample: Sample) -> bytes:
    try:
        return sample["png"]
    except KeyError:
        fields = sorted(name for name in sample if name != "__key__")
        raise KeyError(f"sample {sample['__key__'].decode()!r} has no png, but {fields}") from None


@everywhere
def test_ur_081_a_field_that_is_missing_follows_the_policy_and_what_is_there_is_told(
    where: dict[str, Any], tmp_path: Path
) -> None:
    members = [
        ("a.b/22.png", b"dots of directories are none"),
        ("a.b/22.05.png", b"its field is 05.png, and its key that of the one before"),
        ("a.b/23.05.png", b"so this one has no png"),
        ("x.left.png", b"1"),
        ("x.right.png", b"2"),
        ("readme", b"no field at all"),
        ("y.png", b"good"),
    ]
    shards = Shards([write(tmp_path / "shard.tar", members)])
    arguments: dict[str, Any] = {"batch_size": 2, "stages": [Stage(png_of)], "collate_fn": list, **where}
    with StageLoader(shards, on_error="skip", **arguments) as loader, pytest.warns(UserWarning, match="3 bad samples"):
        assert list(loader) == [[b"dots of directories are none", b"good"]]
    messages = [(one.stage, one.message) for one in loader.stats().bad]
    assert [stage for stage, _ in messages] == ["png_of"] * 3
    assert "'a.b/23' has no png, but ['05.png']" in messages[0][1]
    assert "'x' has no png, but ['left.png', 'right.png']" in messages[1][1]
    assert "'readme' has no png, but ['']" in messages[2][1]
    with StageLoader(shards, **arguments) as loader, pytest.raises(KeyError, match=r"has no png, but \['05.png'\]"):
        list(loader)
