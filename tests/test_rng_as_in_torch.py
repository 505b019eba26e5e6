"""Rng: torch's functions that seed and save act on the thread's own generators, and a worker's draws are torch's."""

import operator
import random

import numpy as np
import pytest
import torch
from drawing import SEEDS
from torch.utils.data import DataLoader

from torchstage import rng

pytest_plugins = "scoped"
pytestmark = pytest.mark.usefixtures("process_keeps_its_states")


# As in torch's worker --------------------------------------------------------------------------------------


class Drawing(torch.utils.data.Dataset):
    """Draws from the process's generators, as most datasets do."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (
            torch.rand(2).tolist(),
            torch.randperm(5).tolist(),
            torch.nn.functional.dropout(torch.ones(9)).tolist(),
            random.random(),
            random.gauss(0, 1),
            random.sample(range(99), 3),
            np.random.rand(2).tolist(),
            np.random.normal(),
            np.random.permutation(5).tolist(),
            torch.initial_seed(),
        )


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_scope_of_a_worker_draws_what_torchs_worker_process_draws():
    from torch.utils.data._utils.worker import _generate_state

    state = torch.get_rng_state()
    iterator = iter(DataLoader(Drawing(), num_workers=2, batch_size=1, collate_fn=operator.itemgetter(0)))
    base_seed = iterator._base_seed
    expected = list(iterator)
    torch.set_rng_state(state)
    scopes = [rng.Scope.of_worker(base_seed, number, _generate_state(base_seed, number)) for number in range(2)]
    for index, sample in enumerate(expected):
        with rng.drawing_from(scopes[index % 2]):
            assert Drawing()[index] == sample


def test_the_initial_seed_is_the_workers_until_user_code_seeds():
    scope = rng.Scope.of_worker(40, 2, [1, 2])
    with rng.drawing_from(scope):
        assert torch.initial_seed() == 42
        scope.begin(SEEDS, "sample", 1)
        assert torch.initial_seed() == 42
        torch.manual_seed(5)
        assert torch.initial_seed() == 5
        scope.begin(SEEDS, "sample", 2)
        assert torch.initial_seed() == 42


def test_the_initial_seed_of_a_scope_without_a_worker_is_the_samples(scope):
    one = torch.initial_seed()
    scope.begin(SEEDS, "sample", 1)
    assert torch.initial_seed() == scope.torch.initial_seed() != one


def test_a_worker_init_function_that_seeds_says_what_the_initial_seed_is():
    scope = rng.Scope.of_worker(40, 2, [1, 2])
    with rng.drawing_from(scope):
        torch.manual_seed(7)
        scope.begin(SEEDS, "sample", 1)
        assert torch.initial_seed() == 7


# torch's own functions -------------------------------------------------------------------------------------

manual_seed, seed, initial_seed = torch.manual_seed, torch.seed, torch.initial_seed  # as users import them
get_rng_state, set_rng_state, fork_rng = torch.get_rng_state, torch.set_rng_state, torch.random.fork_rng


def test_user_code_that_seeds_torch_seeds_its_sample_alone(scope):
    assert manual_seed(9) is scope.torch
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert initial_seed() == 9
    assert seed() == initial_seed() != 9
    scope.begin(SEEDS, "sample", 1)
    one = torch.rand(3)
    scope.begin(SEEDS, "sample", 1)
    manual_seed(torch.tensor(9)), manual_seed(-1), manual_seed(seed=2**63)
    scope.begin(SEEDS, "sample", 1)
    assert torch.equal(torch.rand(3), one)


def test_user_code_sees_and_sets_the_state_of_its_sample(scope):
    state = get_rng_state()
    one = torch.rand(3)
    set_rng_state(new_state=state)
    assert torch.equal(torch.rand(3), one)
    with fork_rng():
        forked = torch.rand(3)
    assert torch.equal(torch.rand(3), forked)
    with fork_rng(enabled=False):
        forked = torch.rand(3)
    assert not torch.equal(torch.rand(3), forked)

    @fork_rng()
    def draw():
        return torch.rand(3)

    assert torch.equal(draw(), torch.rand(3))
    with pytest.raises(ZeroDivisionError), fork_rng():
        1 / 0  # noqa: B018


@pytest.mark.parametrize("act", [lambda: manual_seed(3), seed, lambda: fork_rng().__enter__()])
def test_accelerators_are_left_alone(scope, monkeypatch, act):
    def never(*arguments):
        raise AssertionError("it was asked")

    for name in ("manual_seed_all", "manual_seed", "device_count", "get_rng_state", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, never)
    act()


def test_elsewhere_torchs_functions_do_what_they_did():
    before = torch.get_rng_state()
    rng.install()
    assert manual_seed(9) is torch.default_generator
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert torch.initial_seed() == 9
    assert seed() == torch.initial_seed() != 9
    with fork_rng(devices=[]):
        one = torch.rand(3)
    assert torch.equal(torch.rand(3), one)
    with pytest.raises(TypeError):
        manual_seed()
    set_rng_state(before)
