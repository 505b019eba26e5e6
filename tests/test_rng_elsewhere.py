"""Rng: whoever has no scope notices nothing of it."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from drawing import states

from torchstage import rng

pytest_plugins = ("outside", "scoped")
pytestmark = pytest.mark.usefixtures("process_keeps_its_states")


# Nobody else notices ---------------------------------------------------------------------------------------

EVERYTHING = """
    import random, warnings, numpy as np
    from torchstage import rng
    warnings.simplefilter("ignore")
    if {is_installed}:
        rng.install()
        rng.install()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    arguments = dict(
        seed=(5,), randint=(1, 9), choice=([1, 2, 3],), randrange=(9,), sample=(range(9), 3), shuffle=([1, 2, 3],),
        choices=([1, 2, 3],), expovariate=(1.0,), vonmisesvariate=(1.0, 2.0), gammavariate=(1.0, 2.0),
        betavariate=(1.0, 2.0), paretovariate=(1.0,), weibullvariate=(1.0, 2.0), getrandbits=(70,), randbytes=(5,),
        uniform=(1, 2), triangular=(1, 2), lognormvariate=(0, 1), normalvariate=(0, 1), gauss=(0, 1), setstate=None,
    )
    for name in random.__all__:
        if arguments.get(name, ()) is not None and not name[0].isupper():
            print(name, getattr(random, name)(*arguments.get(name, ())))
    state = random.getstate(); random.setstate(state); print(hash(state))
    arguments = dict(
        beta=(1, 2), binomial=(9, .5), bytes=(5,), chisquare=(2,), choice=(9,), dirichlet=([1, 2],), f=(2, 3),
        gamma=(2,),
        geometric=(.5,), hypergeometric=(5, 5, 5), logseries=(.5,), multinomial=(9, [.5, .5]),
        multivariate_normal=([0, 0], [[1, 0], [0, 1]]), negative_binomial=(5, .5), noncentral_chisquare=(2, 3),
        noncentral_f=(2, 3, 4), pareto=(2,), permutation=(9,), power=(2,), randint=(9,), random_integers=(9,),
        rayleigh=(2,), seed=(5,), shuffle=([1, 2, 3],), standard_gamma=(2,), standard_t=(2,), triangular=(1, 2, 3),
        vonmises=(1, 2), wald=(1, 2), weibull=(2,), zipf=(2,), set_state=None, default_rng=None,
    )
    for name in np.random.__all__:
        if arguments.get(name, ()) is not None and not name[0].isupper():
            print(name, getattr(np.random, name)(*arguments.get(name, ())))
    state = np.random.get_state(); np.random.set_state(state)
    x = torch.ones(3)
    print(torch.rand(2), torch.randperm(9), torch.nn.functional.dropout(x), torch.multinomial(x, 2), torch.poisson(x))
    print(torch.initial_seed(), torch.get_rng_state().sum(), torch.distributions.Gamma(x, x).sample())
"""


def test_elsewhere_every_function_draws_what_it_drew_before(outside):
    printed = [outside.run(EVERYTHING.format(is_installed=is_installed)) for is_installed in (False, True)]
    assert printed[0].err == printed[1].err == ""
    assert printed[0].out.count("\n") > 70
    assert printed[1].out == printed[0].out


TRACING = """
    import logging, warnings
    from torch.fx.experimental.proxy_tensor import make_fx
    from torchstage import rng
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if {is_installed}:
        rng.install()

    class Random(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x) * torch.rand_like(x) + torch.randn(4)

    def seeded(x):
        torch.manual_seed(4)
        return x + torch.rand(4)

    x, random = torch.ones(4), Random()
    torch.manual_seed(1)
    print(torch.compile(random, backend="aot_eager")(x), torch.compile(seeded, backend="eager")(x))
    for traced in (torch.export.export(random, (x,)), make_fx(random)(x), make_fx(random, tracing_mode="fake")(x)):
        print([node.target for node in traced.graph.nodes])
    print(torch.vmap(random, randomness="different")(torch.ones(3, 4)))
"""


def test_elsewhere_compilers_and_tracers_see_the_same_operators(outside):
    ended = [outside.run(TRACING.format(is_installed=is_installed)) for is_installed in (False, True)]
    assert ended[0].out.count("aten.") > 10
    assert ended[1].out == ended[0].out


def test_generators_of_the_users_own_are_left_alone(scope):
    python, legacy, modern, torchs = (
        random.Random(3),
        np.random.RandomState(3),
        np.random.default_rng(3),
        torch.Generator(),
    )
    torchs.manual_seed(3)
    drawn = python.random(), python.gauss(0, 1), legacy.rand(), modern.random(), torch.rand((), generator=torchs).item()
    rng.leave_thread()
    python, legacy, modern = random.Random(3), np.random.RandomState(3), np.random.default_rng(3)
    torchs.manual_seed(3)
    expected = (
        python.random(),
        python.gauss(0, 1),
        legacy.rand(),
        modern.random(),
        torch.rand((), generator=torchs).item(),
    )
    assert drawn == expected


def test_functions_are_copied_and_pickled_as_before():
    rng.install()
    for function in (random.random, random.gauss, np.random.rand, np.random.seed, torch.get_rng_state):
        assert callable(pickle.loads(pickle.dumps(function)))
        assert callable(copy.deepcopy(function))
    assert type(copy.deepcopy(random.random).__self__) is random.Random  # a generator of its own, as it always was
    assert np.random.rand.__name__ == "rand"
    assert "random values in a given shape" in np.random.rand.__doc__.lower()


def test_states_are_states():
    """The check that this file rests on sees a draw from any source."""
    for draw in (lambda: torch.rand(1), random.random, lambda: random.gauss(0, 1), np.random.rand, np.random.normal):
        before = states()
        saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
        draw()
        assert states() != before
        torch.set_rng_state(saved[0]), random.setstate(saved[1]), np.random.set_state(saved[2])


def test_no_warning_is_seen_when_it_is_installed(outside):
    ended = outside.run("""
        import warnings
        warnings.simplefilter("error")
        from torchstage import rng
        rng.install()
        with rng.drawing_from(rng.Scope()):
            print(torch.rand(1).shape)
    """)
    assert (ended.out, ended.err, ended.status) == ("torch.Size([1])\n", "", 0)
