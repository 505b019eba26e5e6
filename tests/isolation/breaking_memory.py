"""Datasets that use memory again: what belongs to one sample is overwritten by the next."""

from collections import deque

import numpy as np
import torch

from .stories import Numbered, pause, story


def as_it_is(index):
    return index


class ScratchArray(Numbered):
    def __init__(self):
        self.scratch = np.zeros((8, 8))

    def __getitem__(self, index):
        self.scratch[:] = index + 1
        pause()
        return int(self.scratch.sum())


@story(lambda index: 64 * (index + 1), "dataset.scratch")
def a_scratch_array(folder):
    return ScratchArray()


class LazyScratch(Numbered):
    """Made for the first sample, as an index that is loaded once; but then written to."""

    def __init__(self):
        self.scratch = None

    def __getitem__(self, index):
        if self.scratch is None:
            self.scratch = np.empty(8, np.int64)
        self.scratch[:] = index
        pause()
        return int(self.scratch.sum())


@story(lambda index: 8 * index, "dataset.scratch")
def a_scratch_array_made_for_the_first_sample(folder):
    return LazyScratch()


class ScratchTensor(Numbered):
    def __init__(self):
        self.scratch = torch.zeros(64)

    def __getitem__(self, index):
        self.scratch.fill_(index + 1)
        pause()
        return int(self.scratch.sum())


@story(lambda index: 64 * (index + 1), "dataset.scratch")
def a_scratch_tensor(folder):
    return ScratchTensor()


class ScratchBytes(Numbered):
    def __init__(self):
        self.scratch = bytearray(8)

    def __getitem__(self, index):
        self.scratch[:] = b"%8d" % (index + 1)
        pause()
        return int(self.scratch)


@story(lambda index: index + 1, "dataset.scratch")
def a_scratch_of_bytes(folder):
    return ScratchBytes()


class ScratchList(Numbered):
    def __init__(self):
        self.parts = [None]

    def __getitem__(self, index):
        self.parts.clear()
        self.parts.append(index)
        pause()
        self.parts.append(index)
        return list(self.parts)


@story(lambda index: [index, index], "dataset.parts")
def a_list_filled_anew(folder):
    return ScratchList()


class ReusedDict(Numbered):
    def __init__(self):
        self.sample = {"index": -1, "square": -1}

    def __getitem__(self, index):
        self.sample["index"] = index
        pause()
        self.sample["square"] = index * index
        return dict(self.sample)


@story(lambda index: {"index": index, "square": index * index}, "dataset.sample")
def a_dict_filled_anew(folder):
    return ReusedDict()


class Window(Numbered):
    """The last things seen: as long as it is full, its length tells nothing."""

    def __init__(self):
        self.seen = deque([None], maxlen=1)

    def __getitem__(self, index):
        self.seen.append(index)
        pause()
        return self.seen[-1]


@story(as_it_is, "dataset.seen")
def a_window(folder):
    return Window()


class Canvas(Numbered):
    """Big memory, of which each sample writes a small part."""

    def __init__(self):
        self.canvas = np.zeros((600, 600, 3), np.uint8)

    def __getitem__(self, index):
        patch = self.canvas[300:304, 300:304]
        patch[:] = index + 1
        pause()
        return int(patch.sum())


@story(lambda index: 48 * (index + 1), "dataset.canvas")
def a_patch_of_a_canvas(folder):
    return Canvas()


class BigScratch(ScratchArray):
    """Whole numbers as floats: most of their bytes are always zero."""

    def __init__(self):
        self.scratch = np.zeros((512, 512), np.float32)


@story(lambda index: 512 * 512 * (index + 1), "dataset.scratch")
def a_big_scratch_array(folder):
    return BigScratch()


class BigScratchTensor(ScratchTensor):
    def __init__(self):
        self.scratch = torch.zeros(512 * 512)


@story(lambda index: 512 * 512 * (index + 1), "dataset.scratch")
def a_big_scratch_tensor(folder):
    return BigScratchTensor()


class LongList(Numbered):
    def __init__(self):
        self.row = [None] * 3000

    def __getitem__(self, index):
        self.row[:] = [index] * 3000
        pause()
        return self.row[-1]


@story(as_it_is, "dataset.row")
def a_long_list_filled_anew(folder):
    return LongList()


class LongTable(Numbered):
    def __init__(self):
        self.table = dict.fromkeys(range(3000))

    def __getitem__(self, index):
        self.table[1500] = index
        pause()
        return self.table[1500]


@story(as_it_is, "dataset.table")
def an_entry_of_a_long_dict(folder):
    return LongTable()
