"""Redirect: in a thread with a source every function of random and numpy.random draws from it, as numpy's and Python's
own generators of the same seed do; what cannot follow is named."""

import inspect
import random
import types
from random import betavariate, choice, gauss, getstate, randint, sample, seed, setstate, shuffle  # before install

import numpy as np
import pytest
from drawing import SEEDS, states_kept

from torchstage import redirect, rng

pytest_plugins = "outside"

PYTHON_ARGUMENTS = {
    "betavariate": (1.0, 2.0),
    "binomialvariate": (9, 0.5),
    "choice": ([1, 2, 3],),
    "choices": ([1, 2, 3],),
    "expovariate": (1.0,),
    "gammavariate": (1.0, 2.0),
    "getrandbits": (70,),
    "lognormvariate": (0, 1),
    "normalvariate": (0, 1),
    "paretovariate": (1.0,),
    "randbytes": (5,),
    "randint": (1, 99),
    "randrange": (99,),
    "sample": (range(99), 3),
    "triangular": (1, 2),
    "uniform": (1, 2),
    "vonmisesvariate": (1.0, 2.0),
    "weibullvariate": (1.0, 2.0),
}
NUMPY_ARGUMENTS = {
    "beta": (1, 2),
    "binomial": (9, 0.5),
    "bytes": (5,),
    "chisquare": (2,),
    "choice": (99,),
    "dirichlet": ([1, 2],),
    "f": (2, 3),
    "gamma": (2,),
    "geometric": (0.5,),
    "hypergeometric": (50, 50, 50),
    "logseries": (0.5,),
    "multinomial": (9, [0.5, 0.5]),
    "multivariate_normal": ([0, 0], [[1, 0], [0, 1]]),
    "negative_binomial": (5, 0.5),
    "noncentral_chisquare": (2, 3),
    "noncentral_f": (2, 3, 4),
    "pareto": (2,),
    "permutation": (9,),
    "power": (2,),
    "rand": (3,),
    "randint": (99,),
    "random_integers": (99,),
    "rayleigh": (2,),
    "standard_gamma": (2,),
    "standard_t": (2,),
    "triangular": (1, 2, 3),
    "vonmises": (1, 2),
    "wald": (1, 2),
    "weibull": (2,),
    "zipf": (2,),
}
SEEDING = {"seed", "getstate", "setstate", "get_state", "set_state", "shuffle"}
NUMPY_ALIASES = {"sample": "random_sample", "ranf": "random_sample", "random": "random_sample"}


def functions_of(module):
    """The names of the module's functions that draw."""
    names = (name for name in module.__all__ if not inspect.isclass(getattr(module, name)))
    return [name for name in names if name not in SEEDING | {"default_rng"}]


@pytest.fixture(autouse=True)
def scope():
    with states_kept(), rng.drawing_from(rng.Scope()) as scope:
        scope.begin(SEEDS, "sample", 0)
        yield scope


# Python's --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", functions_of(random))
def test_a_function_of_random_draws_from_the_source(scope, name):
    own = random.Random()
    own.setstate(scope.python.getstate())
    arguments = PYTHON_ARGUMENTS.get(name, ())
    for _ in range(3):
        assert getattr(random, name)(*arguments) == getattr(own, name)(*arguments)
    assert own.getstate() == scope.python.getstate() == random.getstate()


def test_functions_that_were_imported_by_name_follow(scope):
    def drawn(source):
        deck = list(range(9))
        source.shuffle(deck)
        return deck, source.randint(1, 9), source.betavariate(1, 2), source.choice("abc"), source.sample(range(9), 3)

    names = (betavariate, choice, gauss, getstate, randint, sample, seed, setstate, shuffle)
    by_name = types.SimpleNamespace(**{function.__name__: function for function in names})
    own = random.Random(11)
    by_name.seed(11)
    assert drawn(by_name) == drawn(own)
    assert by_name.gauss(0, 1) == own.gauss(0, 1)
    state = by_name.getstate()  # with the second draw of gauss in store
    assert state == own.getstate() == scope.python.getstate()
    second = by_name.gauss(0, 1)
    assert second == own.gauss(0, 1)
    by_name.seed(12)
    by_name.setstate(state)
    assert by_name.gauss(0, 1) == second


@pytest.mark.parametrize("value", [3, -3, "three", b"three", 2.5, None])
def test_random_is_seeded_as_ever(scope, value):
    random.seed(value)
    if value is not None:
        assert random.random() == random.Random(value).random()


def test_instances_of_the_users_classes_are_left_alone():
    class Own(random.Random):
        def random(self):
            return 0.5

    assert Own(3).random() == 0.5
    assert Own(3).uniform(0, 1) == 0.5
    assert random.SystemRandom().random() != random.SystemRandom().random()
    assert random.Random(3).random() == random.Random(3).random()


# numpy's ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This function is deprecated:DeprecationWarning")  # random_integers
@pytest.mark.parametrize("name", functions_of(np.random))
def test_a_function_of_numpy_draws_from_the_source(scope, name):
    own = np.random.RandomState()
    own.set_state(scope.numpy_legacy.get_state())
    arguments = NUMPY_ARGUMENTS.get(name, ())
    for _ in range(3):
        drawn = getattr(np.random, name)(*arguments)
        np.testing.assert_equal(drawn, getattr(own, NUMPY_ALIASES.get(name, name))(*arguments))
    assert str(own.get_state()) == str(np.random.get_state()) == str(scope.numpy_legacy.get_state())


def test_numpy_is_seeded_and_its_state_saved_as_ever(scope):
    np.random.seed(11)
    own = np.random.RandomState(11)
    assert np.random.normal() == own.normal()
    state = np.random.get_state()
    drawn = np.random.normal(size=3)
    np.random.set_state(state)
    assert np.array_equal(np.random.normal(size=3), drawn)
    one, other = np.arange(9), np.arange(9)
    np.random.shuffle(one), own.normal(size=3), own.shuffle(other)
    assert np.array_equal(one, other)
    np.random.seed(seed=[1, 2])
    assert np.random.random_sample(size=2).tolist() == np.random.RandomState([1, 2]).random_sample(2).tolist()


# What cannot follow ----------------------------------------------------------------------------------------


def test_what_cannot_follow_is_named_and_nothing_else(outside):
    ended = outside.run("""
        import random, numpy, numpy as np
        from random import random as draw, getrandbits, randint, gauss, shuffle, seed, Random
        from numpy.random import rand, normal as bell, seed as seed_numpy, sample, RandomState, default_rng
        from numpy.random.mtrand import _rand
        own, own_random = RandomState(3), Random(3).random
        own_rand = own.rand
        from torchstage import rng
        rng.install()
        from random import random as late
        from numpy.random import rand as late_rand
        print(*sorted(rng.uncontrolled(globals())))
    """)
    assert (ended.out, ended.err) == ("_rand bell draw getrandbits rand sample seed_numpy\n", "")


def test_nothing_is_named_where_all_follow():
    module = types.ModuleType("plain")
    exec("import random, numpy as np\nfrom random import randint\nx = [1]\ndef f(): pass", module.__dict__)
    assert redirect.uncontrolled(vars(module)) == []
