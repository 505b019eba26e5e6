"""Assembly: a sample draws the same whatever runs its stages together or apart."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torchstage import Stage, StagedDataset, StageLoader
from torchstage.split import Split, split

NUM_SAMPLES = 6


class Many(StagedDataset):
    """Fetched a batch at a time; each sample then draws."""

    def __len__(self):
        return NUM_SAMPLES

    def fetch_many(self, indices):
        return [torch.tensor(float(index)) for index in indices]

    def decode(self, value):
        return torch.stack([value, torch.rand(())])

    def transform(self, value):
        return torch.cat([value, torch.rand(1)])


class Coroutines(StagedDataset):
    """Each of its coroutines draws."""

    def __len__(self):
        return NUM_SAMPLES

    async def fetch(self, index):
        return torch.stack([torch.tensor(float(index)), torch.rand(())])

    async def decode(self, value):
        return torch.cat([value, torch.rand(1)])


class InExecutor(StagedDataset):
    """Two stages of its own in one executor."""

    def __init__(self, executor):
        self.executor = executor

    def __len__(self):
        return NUM_SAMPLES


@split.register
def _(dataset: InExecutor) -> Split:
    def fetch(index):
        return torch.stack([torch.tensor(float(index)), torch.rand(())])

    def decode(value):
        return torch.cat([value, torch.rand(1)])

    return Split(tuple(Stage(fn, executor=dataset.executor) for fn in (fetch, decode)))


@pytest.fixture(params=["Many", "Coroutines", "InExecutor"])
def dataset(request):
    if request.param == "InExecutor":
        with ThreadPoolExecutor(2) as executor:
            yield InExecutor(executor)
    else:
        yield {"Many": Many, "Coroutines": Coroutines}[request.param]()


def samples_of(dataset, **arguments):
    with StageLoader(dataset, batch_size=3, seed=1, **arguments) as loader:
        return torch.cat(list(loader))


def test_each_sample_and_each_stage_draws_something_else(dataset):
    draws = samples_of(dataset, num_workers=2)[:, 1:]
    assert len(set(draws.flatten().tolist())) == draws.numel()


@pytest.mark.parametrize("isolation", ["auto", "shared", "per_thread", "serial"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_draws_are_the_same_wherever_the_stages_run(dataset, isolation, num_workers):
    expected = samples_of(dataset, num_workers=2, isolation="shared")
    assert torch.equal(samples_of(dataset, num_workers=num_workers, isolation=isolation), expected)


def test_one_sample_made_alone_draws_what_it_draws_in_the_loader(dataset):
    expected = samples_of(dataset, num_workers=2)
    alone = [StageLoader(dataset, seed=1).sample(index).value for index in range(NUM_SAMPLES)]
    assert torch.equal(torch.stack(alone), expected)
