"""Data: datasets and functions that make loaders, for processes that import them by name."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from torchstage import StageLoader


class Squares(Dataset):
    """``odd``: the index of a sample that is not what it should be."""

    def __init__(self, size=23, odd=None):
        self.size, self.odd = size, odd

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        value = -1.0 if index == self.odd else float(index * index)
        return {"value": torch.full((3,), value), "index": index}


def reference():
    print("said by the user's code")
    return DataLoader(Squares(), batch_size=4, shuffle=True)


def candidate():
    return StageLoader(Squares(), batch_size=4, shuffle=True, num_workers=2)


def odd():
    return StageLoader(Squares(odd=9), batch_size=4, shuffle=True, num_workers=2)


def with_workers():
    return DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=2)


def fails():
    raise FileNotFoundError("no photos here")


def dies():
    os._exit(3)


def hangs():
    yield torch.zeros(1)
    time.sleep(3600)


def of_rank(dataset, loader_class, **arguments):
    sampler = DistributedSampler(
        dataset, num_replicas=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]), shuffle=True
    )
    return loader_class(dataset, batch_size=4, sampler=sampler, **arguments)


def reference_of_rank():
    return of_rank(Squares(), DataLoader)


def candidate_of_rank():
    return of_rank(Squares(), StageLoader, num_workers=2)


def odd_on_rank_1():
    loader = candidate_of_rank()
    if os.environ["RANK"] == "1":
        loader.dataset.odd = next(iter(loader.sampler))
    return loader


def reference_in_group():
    return DataLoader(Squares(), batch_size=4, sampler=DistributedSampler(Squares()))  # it asks the group


def candidate_in_group():
    return StageLoader(Squares(), batch_size=4, sampler=DistributedSampler(Squares()), num_workers=2)
