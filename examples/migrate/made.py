"""What the scripts of this folder load: photographs, short videos, tar shards and text, made from what scikit-image and
scikit-learn ship. Nothing is downloaded. Each is made once, and kept under the system's temporary folder."""

import hashlib
import importlib.util
import io
import random
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

PHOTOGRAPHS = {
    "skimage": ["data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"],
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
}
SIZE = (160, 120)
NUM_OF_EACH = 8
NUM_FRAMES = 24
SHARD_SIZE = 10


def photographs() -> list[tuple[str, bytes]]:
    """Name and JPEG of 48 crops; what is before the first dash of a name is its class."""
    found = []
    for path in shipped(PHOTOGRAPHS):
        draw = random.Random(path.stem)
        with Image.open(path) as file:
            image = file.convert("RGB")
        for number in range(NUM_OF_EACH):
            found.append((f"{path.stem}-{number:02}.jpg", jpeg_of(crop(image, draw))))
    return sorted(found)


def folder() -> Path:
    """The photographs as files. ``rocket-03.jpg`` was cut in the middle, as by a full disk."""

    def make(path: Path) -> None:
        for name, data in photographs():
            (path / name).write_bytes(data[: len(data) // 2] if name == "rocket-03.jpg" else data)

    return kept("folder", make)


def archive() -> Path:
    """The photographs in one zip archive."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path / "photographs.zip", "w") as archive:
            for name, data in photographs():
                archive.writestr(zipfile.ZipInfo(name), data)

    return kept("archive", make) / "photographs.zip"


def shards() -> list[str]:
    """The photographs as tar shards of ten, in an order that mixes the classes, each with its class beside it."""

    def make(path: Path) -> None:
        samples = photographs()
        random.Random(0).shuffle(samples)
        for first in range(0, len(samples), SHARD_SIZE):
            with tarfile.open(path / f"photographs-{first // SHARD_SIZE:03}.tar", "w") as tar:
                for name, data in samples[first : first + SHARD_SIZE]:
                    add(tar, name, data)
                    add(tar, name.replace(".jpg", ".cls"), str(class_number(name)).encode())

    return [str(path) for path in sorted(kept("shards", make).glob("*.tar"))]


def videos() -> list[str]:
    """Twelve H.264 videos of 24 frames: a window that wanders over a photograph. Two are of each photograph."""

    def make(path: Path) -> None:
        import av

        for picture in shipped(PHOTOGRAPHS):
            draw = random.Random(picture.stem)
            with Image.open(picture) as file:
                image = file.convert("RGB")
            for number in range(2):
                with av.open(str(path / f"{picture.stem}-{number}.mp4"), "w") as container:
                    stream = container.add_stream("h264", rate=12)
                    stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
                    stream.thread_count = 1  # so that the file is the same each time
                    left, top = (draw.randrange(image.width - 2 * SIZE[0]), draw.randrange(image.height - SIZE[1]))
                    for at in range(NUM_FRAMES):
                        window = (left + 4 * at, top, left + 4 * at + SIZE[0], top + SIZE[1])
                        container.mux(stream.encode(av.VideoFrame.from_image(image.crop(window))))
                    container.mux(stream.encode(None))

    return [str(path) for path in sorted(kept("videos", make).glob("*.mp4"))]


def texts() -> list[str]:
    """The descriptions of scikit-learn's data sets, some hundred long lines."""
    [any_photograph, *_] = shipped({"sklearn": PHOTOGRAPHS["sklearn"]})
    return [str(path) for path in sorted((any_photograph.parent.parent / "descr").glob("*.rst"))]


def class_number(name: str) -> int:
    """Of a photograph or video: which one it was cut from."""
    return sorted(Path(path).stem for paths in PHOTOGRAPHS.values() for path in paths).index(name.split("-")[0])


def shipped(names: dict[str, list[str]]) -> Iterator[Path]:
    """These files of installed packages, which are not imported for that."""
    for package, paths in names.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("The photographs come with scikit-image and scikit-learn: pip install both.")
        yield from (Path(spec.submodule_search_locations[0]) / path for path in paths)


def crop(image: Image.Image, draw: random.Random) -> Image.Image:
    width = draw.randint(SIZE[0], min(image.width, image.height * SIZE[0] // SIZE[1]))
    height = width * SIZE[1] // SIZE[0]
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    return image.crop((left, top, left + width, top + height)).resize(SIZE)


def jpeg_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name. One that is half made is never seen; another version of this file has others."""
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    parent = Path(tempfile.gettempdir()) / f"torchstage-migrate-{version}"
    path = parent / name
    if not path.is_dir():
        parent.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=parent))
        try:
            make(unfinished)
            unfinished.rename(path)
        except OSError:
            if not path.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return path
