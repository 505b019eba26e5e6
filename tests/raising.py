"""A dataset that raises, and loaders that are closed after the test whatever it kept."""

from contextlib import ExitStack

import pytest
from torch.utils.data import Dataset

from torchstage import StageLoader


class Raising(Dataset):
    """Raises for some indices; what is given for the others does not matter."""

    def __init__(self, errors, length=16):
        self.errors = errors
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.errors:
            raise self.errors[index]
        return index


@pytest.fixture
def closed_loader_of():
    """Makes loaders, and closes them: an error that the dataset keeps would keep the iterator it was raised through."""
    with ExitStack() as loaders:

        def make(dataset, num_workers=2, **arguments):
            arguments = {"batch_size": 4, "num_workers": num_workers, **arguments}
            return loaders.enter_context(StageLoader(dataset, **arguments))

        yield make
