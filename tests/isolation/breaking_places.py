"""The same state in other places: inside other objects, and where no copy of a dataset can reach it."""

import functools
import tempfile

from torch.utils.data import ConcatDataset, Subset

from .breaking_handles import RECORD_BYTES, Seeking, records
from .breaking_memory import ScratchArray
from .breaking_state import Shift, Transformed, as_it_is, shifted
from .stories import NUM_SAMPLES, Case, Numbered, pause, story

# Inside other objects ---------------------------------------------------------------------------------------


class Compose:
    """One after another, as torchvision's."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Positive:
    def __call__(self, value):
        return abs(value)


@story(shifted, "dataset.transform.transforms[1]")
def state_of_a_later_transform(folder):
    return Transformed(Compose([Positive(), Shift()]))


def apply(function, index):
    return function(index)


@story(shifted, "shift")
def state_behind_a_partial(folder):
    return Transformed(functools.partial(apply, Compose((Positive(), Shift()))))


class Padding(Numbered):
    """Collates in a list of its own, which the next batch fills anew."""

    def __init__(self):
        self.batch = []

    def __getitem__(self, index):
        return index

    def collate(self, samples):
        self.batch = []
        for sample in samples:
            self.batch.append(sample)
            pause()
        return list(self.batch)


@story(as_it_is, "batch")
def state_of_a_collate_method(folder):
    dataset = Padding()
    return Case(dataset, dataset.collate)


class Collator:
    """As those of tokenizers: an object that is called."""

    def __init__(self):
        self.length = None

    def __call__(self, samples):
        self.length = max(samples)
        pause()
        return [sample if max(samples) == self.length else -1 for sample in samples]


@story(as_it_is, "collate_fn.length")
def state_of_a_collate_object(folder):
    return Case(Transformed(Positive()), Collator())


@story(lambda index: 64 * (NUM_SAMPLES - index), "dataset.dataset.scratch")
def state_behind_a_subset(folder):
    return Subset(ScratchArray(), range(NUM_SAMPLES)[::-1])


class Half(Transformed):
    def __len__(self):
        return NUM_SAMPLES // 2


def shifted_in_a_half(index):
    return shifted(index % (NUM_SAMPLES // 2))


@story(shifted_in_a_half, "dataset.datasets[0].transform.shift", way="either")
def state_of_two_parts(folder):
    return ConcatDataset([Half(Shift()), Half(Shift())])


class Pausing:
    """As slow as the others: of what is quick, a thread takes many samples at once."""

    def __call__(self, value):
        pause()
        return value


class HalfOfRecords(Seeking):
    def __len__(self):
        return NUM_SAMPLES // 2


@story(lambda index: index % (NUM_SAMPLES // 2), "dataset.datasets[1].file")
def a_handle_of_the_second_part(folder):
    (folder / "records").write_bytes(records())
    return ConcatDataset([Half(Pausing()), HalfOfRecords((folder / "records").open("rb"))])


@story(
    lambda index: index if index < NUM_SAMPLES // 2 else shifted_in_a_half(index), "dataset.datasets[1].transform.shift"
)
def state_of_the_second_part(folder):
    return ConcatDataset([Half(Pausing()), Half(Shift())])


# Where a copy does not help ---------------------------------------------------------------------------------


class OnTheClass(Numbered):
    current = None

    def __getitem__(self, index):
        type(self).current = index
        pause()
        return type(self).current


@story(as_it_is, "current", way="serial")
def state_on_the_class(folder):
    class Fresh(OnTheClass):
        """Each story its own class."""

    return Fresh()


class ListOnTheClass(Numbered):
    """A mutable default that all objects share."""

    def __getitem__(self, index):
        self.parts.clear()
        self.parts.append(index)
        pause()
        return self.parts[0]


@story(as_it_is, "parts", way="either")
def a_list_on_the_class(folder):
    class Fresh(ListOnTheClass):
        parts = [None]  # noqa: RUF012  # the very fault

    return Fresh()


_current = None


class OfTheModule(Numbered):
    def __getitem__(self, index):
        global _current
        _current = index
        pause()
        return _current


@story(as_it_is, "_current", way="serial")
def a_global_of_the_module(folder):
    return OfTheModule()


@functools.lru_cache
def opened_once(path):
    return path.open("rb")


class ThroughACache(Numbered):
    """UR-071: decoders are kept by path in a cache of the module."""

    def __init__(self, path):
        self.path = path
        opened_once(path)  # else several threads open it at once, and all but one leave it open

    def __getitem__(self, index):
        file = opened_once(self.path)
        file.seek(index * RECORD_BYTES)
        pause()
        return int(file.read(RECORD_BYTES))

    def close(self):
        opened_once(self.path).close()
        opened_once.cache_clear()


@story(as_it_is, "opened_once", way="serial")
def a_cache_of_the_module(folder):
    (folder / "records").write_bytes(records())
    return ThroughACache(folder / "records")


@story(as_it_is, "dataset.file", way="serial")
def a_file_without_a_name(folder):
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # the dataset closes it
    file.write(records())
    file.flush()
    return Seeking(file)


@story(as_it_is, "dataset.file", way="serial")
def a_file_that_was_deleted(folder):
    (folder / "records").write_bytes(records())
    dataset = Seeking((folder / "records").open("rb"))
    (folder / "records").unlink()
    return dataset


def counting_closure():
    count = None

    def call(index):
        nonlocal count
        count = index
        pause()
        return count

    return call


@story(as_it_is, "count", way="either")
def a_variable_of_a_closure(folder):
    return Transformed(counting_closure())
