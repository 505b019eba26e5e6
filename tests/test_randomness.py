"""Randomness of a loader: a sample is the same for any number of threads, in any order, and inline with a seed; epochs
differ; the process's own generators are left alone."""

import random

import numpy as np
import pytest
import torch
import torchvision
from drawing import same, states, states_kept
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, default_collate
from torchvision.transforms import v2

import torchstage
from torchstage import StageLoader

NUM_SAMPLES = 64
WAYS = {
    "inline": {"num_workers": 0},
    "1 thread": {"num_workers": 1},
    "2 threads": {"num_workers": 2},
    "4 threads": {"num_workers": 4},
    "8 threads": {"num_workers": 8},
    "8 threads, persistent": {"num_workers": 8, "persistent_workers": True},
    "4 threads, as they come": {"num_workers": 4, "in_order": False},
}


class Drawing(Dataset):
    """UR-030: draws from Python's generator, numpy's, torch's, one made in ``__init__``, and the sample's own."""

    def __init__(self):
        self.rng = np.random.default_rng(3)
        self.python = random.Random(3)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        own = torchstage.sample_rng() if torchstage.rng.current() else None
        return [
            index,
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.normal(),
            torch.rand(()).item(),
            torch.nn.functional.dropout(torch.ones(9)).sum().item(),
            self.rng.random(),
            self.python.random(),
            own and own.numpy.random(),
            own and own.python.random(),
            own and torch.rand((), generator=own.torch).item(),
        ]


def samples(loader):
    """By index, whatever the order of the batches."""
    return {sample[0]: sample[1:] for batch in loader for sample in batch}


def epochs(num_epochs=3, dataset=None, **arguments):
    loader = StageLoader(Drawing() if dataset is None else dataset, batch_size=4, collate_fn=list, **arguments)
    return [samples(loader) for _ in range(num_epochs)]


@pytest.mark.parametrize("arguments", WAYS.values(), ids=WAYS)
def test_a_seed_makes_the_same_samples_in_any_number_of_threads(arguments):
    with states_kept():
        made = epochs(seed=7, generator=torch.Generator(), **arguments)
    assert made == epochs(seed=7, num_workers=3)
    assert [len(epoch) for epoch in made] == [NUM_SAMPLES] * 3


@pytest.mark.parametrize("isolation", ["serial", "shared", "per_thread"])
def test_the_ways_of_isolation_change_no_sample_of_a_dataset_that_holds_no_generator(isolation):
    def made(**arguments):
        dataset = Drawing()
        dataset.rng, dataset.python = np.random, random
        return epochs(1, dataset, seed=7, **arguments)

    assert made(num_workers=4, isolation=isolation) == made(num_workers=0)


def test_epochs_differ_and_samples_differ_in_every_source():
    made = epochs(seed=7, num_workers=4)
    for source in range(len(made[0][0])):
        if source != 5:  # dropout of nine ones has few values
            assert len({sample[source] for epoch in made for sample in epoch.values()}) == 3 * NUM_SAMPLES


def test_without_a_seed_torchs_own_decides():
    def run(num_workers):
        torch.manual_seed(5)
        return epochs(num_workers=num_workers)

    before = torch.get_rng_state()
    one = run(1)
    assert run(4) == one
    torch.manual_seed(6)
    assert epochs(num_workers=4) != one
    torch.set_rng_state(before)


def test_the_order_of_the_sampler_changes_no_sample():
    expected = epochs(1, seed=7, num_workers=2)
    assert epochs(1, seed=7, num_workers=4, sampler=list(reversed(range(NUM_SAMPLES)))) == expected
    assert epochs(1, seed=7, num_workers=4, shuffle=True, generator=torch.Generator()) == expected
    assert epochs(1, seed=7, num_workers=0, sampler=range(0, NUM_SAMPLES, 2))[0].items() <= expected[0].items()


def test_a_sample_that_comes_again_draws_anew():
    sampler = [1, 2, 1, 3, 1, 2]

    def made(num_workers):
        loader = StageLoader(Drawing(), 2, sampler=sampler, collate_fn=list, seed=7, num_workers=num_workers)
        return [sample for batch in loader for sample in batch]

    one = made(1)
    assert made(4) == made(0) == one
    assert len({str(sample) for sample in one}) == len(one)


def test_with_replacement_each_draw_is_another():
    sampler = RandomSampler(range(4), replacement=True, num_samples=40, generator=torch.Generator().manual_seed(1))
    loader = StageLoader(Drawing(), 4, sampler=sampler, collate_fn=list, seed=7, num_workers=4)
    made = [sample for batch in loader for sample in batch]
    assert len({str(sample) for sample in made}) == 40


def test_ranks_agree_on_a_sample_and_the_samplers_epoch_counts():
    def made(rank, epoch):
        sampler = DistributedSampler(Drawing(), num_replicas=2, rank=rank, seed=11)
        sampler.set_epoch(epoch)
        return samples(StageLoader(Drawing(), 4, sampler=sampler, collate_fn=list, num_workers=2))

    def all_of(epoch):
        return made(0, epoch) | made(1, epoch)

    alone = DistributedSampler(Drawing(), num_replicas=1, rank=0, seed=11)
    alone.set_epoch(2)
    expected = samples(StageLoader(Drawing(), 4, sampler=alone, collate_fn=list, num_workers=3))
    assert all_of(2) == expected
    assert all_of(3) != expected


@pytest.mark.parametrize("num_workers", [0, 4])
def test_what_a_training_loop_draws_meanwhile_is_what_it_draws_with_torchs_loader(num_workers):
    """A trainer's own random stream: its dropout, its noise."""

    def losses(loader_class):
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        loader = loader_class(range(NUM_SAMPLES), 4, num_workers=num_workers, shuffle=True)
        return [(torch.rand(()).item(), random.random(), np.random.rand(), batch.tolist()) for batch in loader]

    saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
    assert losses(StageLoader) == losses(DataLoader)
    torch.set_rng_state(saved[0]), random.setstate(saved[1]), np.random.set_state(saved[2])


def test_inline_without_a_seed_samples_draw_from_the_process_as_in_torch():
    def made(loader_class):
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        return list(loader_class(Drawing(), 4, collate_fn=list)), states()

    saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
    assert made(StageLoader) == made(DataLoader)
    torch.set_rng_state(saved[0]), random.setstate(saved[1]), np.random.set_state(saved[2])


def test_sample_rng_false_lets_threads_draw_from_the_process():
    saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
    before = states()
    epochs(1, num_workers=2, sample_rng=False)
    assert all(now != then for now, then in zip(states()[:2], before[:2], strict=True))
    torch.set_rng_state(saved[0]), random.setstate(saved[1]), np.random.set_state(saved[2])


# torchvision -----------------------------------------------------------------------------------------------

crop_and_jitter = v2.Compose([v2.RandomResizedCrop(16, antialias=True), v2.ColorJitter(0.5, 0.5, 0.5, 0.2)])


class Images(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        image = torch.arange(3 * 24 * 32).reshape(3, 24, 32).mul(index + 3).remainder(251).to(torch.uint8)
        return self.transform(image), index % 4


def batches(num_workers, dataset, **arguments):
    arguments["generator"] = (
        torch.Generator()
    )  # or each iterator takes its base seed from the process's, as torch's does
    return [list(batch) for batch in StageLoader(dataset, 8, num_workers=num_workers, seed=7, **arguments)]


def test_transforms_of_torchvision_make_the_same_images_in_any_number_of_threads():
    """UR-033."""
    one = batches(0, Images(crop_and_jitter))
    for num_workers in (1, 8):
        assert same(batches(num_workers, Images(crop_and_jitter)), one)


@pytest.mark.skipif(not hasattr(torch.random, "thread_safe_generator"), reason="torch before 2.12 has none")
def test_torchs_own_helper_finds_the_generator_of_the_sample():
    class Asking(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            generator = torch.random.thread_safe_generator()
            assert generator is torchstage.sample_rng().torch
            return torch.rand(2, generator=generator)

    made = [batches(num_workers, Asking()) for num_workers in (1, 4)]
    assert same(*made)


@pytest.mark.parametrize("mix", [v2.MixUp(num_classes=4), v2.CutMix(num_classes=4)], ids=["MixUp", "CutMix"])
def test_a_collate_function_that_draws_makes_the_same_batches_in_any_number_of_threads(mix):
    def collate(samples):
        return mix(*default_collate(samples))

    dataset = Images(v2.ToDtype(torch.float32))
    with states_kept():
        one = batches(1, dataset, collate_fn=collate)
        for num_workers in (0, 4):
            assert same(batches(num_workers, dataset, collate_fn=collate), one)
    assert not same(one[0][1], one[1][1])


def test_an_image_folder_makes_the_same_images_in_any_number_of_threads(tmp_path):
    for number in range(12):
        folder = tmp_path / str(number % 2)
        folder.mkdir(exist_ok=True)
        image = torch.arange(3 * 40 * 48).reshape(3, 40, 48).mul(number + 3).remainder(251).to(torch.uint8)
        v2.functional.to_pil_image(image).save(folder / f"{number}.png")
    transform = torchvision.transforms.Compose(
        [
            torchvision.transforms.RandomResizedCrop(16),
            torchvision.transforms.RandomHorizontalFlip(),
            torchvision.transforms.ToTensor(),
        ]
    )
    dataset = torchvision.datasets.ImageFolder(str(tmp_path), transform)
    one = batches(0, dataset)
    for num_workers in (1, 4):
        with states_kept():
            assert same(batches(num_workers, dataset), one)
