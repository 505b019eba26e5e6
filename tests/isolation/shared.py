"""Datasets that all threads may share: nothing of theirs is copied, nothing is said, and all threads work."""

import functools
import io
import logging
import re
import threading
from dataclasses import dataclass, field

import numpy as np
import PIL.Image
import torch
import torchvision
from torch.utils.data import StackDataset, Subset

from .stories import NUM_SAMPLES, Numbered, Story, pause, story

SIDE_PIXELS = 8


def as_it_is(index):
    return index


class Paths(Numbered):
    """Opens what it reads where it reads it."""

    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, index):
        with self.paths[index].open("rb") as file:
            return int(file.read())


def write_paths(folder):
    paths = [folder / f"{index}.txt" for index in range(NUM_SAMPLES)]
    for index, path in enumerate(paths):
        path.write_bytes(b"%d" % index)
    return paths


@story(as_it_is)
def a_list_of_paths(folder):
    return Paths(write_paths(folder))


@story(as_it_is)
def a_list_of_fresh_paths(folder):
    """A path finds out what it is called when it is first used."""
    write_paths(folder)
    return Paths([folder / f"{index}.txt" for index in range(NUM_SAMPLES)])


class Array(Numbered):
    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        pause()
        return int(self.array[index].max())


def numbered_rows(num_columns):
    return np.repeat(np.arange(NUM_SAMPLES, dtype=np.int32), num_columns).reshape(NUM_SAMPLES, num_columns)


@story(as_it_is)
def a_big_array(folder):
    return Array(numbered_rows(20_000))


@story(as_it_is)
def a_big_tensor(folder):
    return Array(torch.from_numpy(numbered_rows(20_000)))


@story(as_it_is)
def a_memory_mapped_array(folder):
    numbered_rows(1000).tofile(folder / "rows")
    return Array(np.memmap(folder / "rows", np.int32, "r", shape=(NUM_SAMPLES, 1000)))


class Remembering(Numbered):
    """A cache that only grows: whoever comes second finds it there, or makes the same again."""

    def __init__(self):
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            pause()
            self.cache[index] = [index] * 3
        return self.cache[index]


@story(lambda index: [index] * 3)
def a_cache_that_grows(folder):
    return Remembering()


class Indexed(Numbered):
    """Reads its table of contents for its first sample, and never again."""

    def __init__(self, path):
        self.path = path
        self.contents = None

    def __getitem__(self, index):
        if self.contents is None:
            self.contents = self.path.read_text().split()
        pause()
        return int(self.contents[index])


def write_contents(folder):
    path = folder / "contents.txt"
    path.write_text(" ".join(map(str, range(NUM_SAMPLES))))
    return path


@story(as_it_is)
def an_index_loaded_once(folder):
    return Indexed(write_contents(folder))


class Computed(Indexed):
    @functools.cached_property
    def table(self):
        return [int(word) for word in self.path.read_text().split()]

    def __getitem__(self, index):
        pause()
        return self.table[index]


@story(as_it_is)
def a_cached_property(folder):
    return Computed(write_contents(folder))


class Images(torchvision.datasets.ImageFolder):
    def close(self):
        pass


def last(pair):
    """The brightest pixel tells which image it was."""
    image, label = pair
    return int(image.max() * 255 + 0.5), label


class Pairs(Numbered):
    def __init__(self, images):
        self.images = images

    def __getitem__(self, index):
        return last(self.images[index])


@story(lambda index: (5 * index, 0))
def an_image_folder(folder):
    (folder / "images" / "cat").mkdir(parents=True)
    for index in range(NUM_SAMPLES):
        image = PIL.Image.new("RGB", (SIDE_PIXELS, SIDE_PIXELS), (5 * index, 0, 0))
        image.save(folder / "images" / "cat" / f"{index:03d}.png")
    steps = [torchvision.transforms.RandomHorizontalFlip(), torchvision.transforms.ToTensor()]
    return Pairs(Images(folder / "images", torchvision.transforms.Compose(steps)))


class Logging(Numbered):
    """Has a logger, and a lock around what is not atomic."""

    def __init__(self):
        self.logger = logging.getLogger("of a dataset of a test")
        self.lock = threading.Lock()
        self.values = list(range(NUM_SAMPLES))

    def __getitem__(self, index):
        self.logger.debug("sample %d", index)
        with self.lock:
            pause()
            return self.values[index]


@story(as_it_is)
def a_logger_and_a_lock(folder):
    return Logging()


@functools.lru_cache(maxsize=16)
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


class Fibonacci(Numbered):
    def __getitem__(self, index):
        pause()
        return fibonacci(index % 32)


def fibonacci_plainly(index):
    first, second = 0, 1
    for _ in range(index % 32):
        first, second = second, first + second
    return first


@story(fibonacci_plainly)
def a_pure_function_with_a_cache(folder):
    return Fibonacci()


class Announcing(Numbered):
    """Others may wait for its first sample: an event is of no use as a copy."""

    def __init__(self):
        self.has_begun = threading.Event()

    def __getitem__(self, index):
        self.has_begun.set()
        pause()
        return index


@story(as_it_is)
def an_event(folder):
    return Announcing()


class Quiet(io.FileIO):
    """Closed when nobody needs it."""

    def __del__(self):
        self.close()


class OnePerThread(Numbered):
    """What one is told to do about files and threads."""

    def __init__(self, path):
        self.path = path
        self.local = threading.local()

    def __getitem__(self, index):
        if not hasattr(self.local, "file"):
            self.local.file = Quiet(self.path)
        self.local.file.seek(4 * index)
        pause()
        return int(self.local.file.read(4))


@story(as_it_is)
def a_file_for_each_thread(folder):
    (folder / "numbers").write_bytes(b"".join(b"%4d" % index for index in range(NUM_SAMPLES)))
    return OnePerThread(folder / "numbers")


@dataclass(frozen=True)
class Tokenizer:
    """Compiled patterns and a vocabulary, made once."""

    pattern: re.Pattern[str] = re.compile(r"\w+")
    vocabulary: dict[str, int] = field(default_factory=lambda: {f"w{number}": number for number in range(1000)})

    def __call__(self, text):
        return [self.vocabulary[word] for word in self.pattern.findall(text)]


class Texts(Numbered):
    def __init__(self):
        self.texts = [f"w{index}, w{index + 1}!" for index in range(NUM_SAMPLES)]
        self.tokenizer = Tokenizer()

    def __getitem__(self, index):
        pause()
        return self.tokenizer(self.texts[index])


@story(lambda index: [index, index + 1])
def a_tokenizer(folder):
    return Texts()


class WholeBatches(Numbered):
    """As those of HF: columns, and a batch at a time."""

    def __init__(self):
        self.columns = {"a": np.arange(NUM_SAMPLES), "b": np.arange(NUM_SAMPLES) ** 2}

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        pause()
        return [{name: int(column[index]) for name, column in self.columns.items()} for index in indices]


@story(lambda index: {"a": index, "b": index * index})
def a_dataset_of_whole_batches(folder):
    return WholeBatches()


class Annotated(Numbered):
    """As COCO's: lists of dicts of lists."""

    def __init__(self):
        self.annotations = [{"id": index, "boxes": [[index, index, 1, 1]] * 3} for index in range(NUM_SAMPLES)]
        self.by_id = {entry["id"]: entry for entry in self.annotations}

    def __getitem__(self, index):
        pause()
        return self.by_id[index]["boxes"][-1]


@story(lambda index: [index, index, 1, 1])
def annotations(folder):
    return Annotated()


class Network(Numbered):
    """Runs a small network on each sample."""

    def __init__(self):
        self.network = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2, bias=False)).eval()
        torch.nn.init.ones_(self.network[1].weight)
        self.network[0].running_var.fill_(1 - self.network[0].eps)

    def __getitem__(self, index):
        pause()
        with torch.inference_mode():
            return self.network(torch.full((1, 4), float(index))).round().int().flatten().tolist()


@story(lambda index: [4 * index, 4 * index])
def a_network(folder):
    return Network()


@story(lambda index: NUM_SAMPLES - 1 - index)
def a_subset_of_a_big_array(folder):
    return Subset(Array(numbered_rows(1000)), range(NUM_SAMPLES)[::-1])


class Stacked(StackDataset):
    def close(self):
        pass


@story(lambda index: (index, 2 * index))
def stacked_lists(folder):
    return Stacked(list(range(NUM_SAMPLES)), list(range(0, 2 * NUM_SAMPLES, 2)))


SHARED: dict[str, Story] = {name: value for name, value in list(globals().items()) if isinstance(value, Story)}
