"""Rng: a thread with a scope draws what its sample says; nobody else notices."""

import operator
import random
import threading

import numpy as np
import pytest
import torch
from drawing import SEEDS

from torchstage import rng

pytest_plugins = ("outside", "scoped")
pytestmark = pytest.mark.usefixtures("process_keeps_its_states")

PATIENCE_SECONDS = 20.0


def draws():
    """A draw from every source."""
    return [
        torch.rand(()).item(),
        torch.nn.functional.dropout(torch.ones(20)).tolist(),
        random.random(),
        random.gauss(0, 1),
        random.randrange(1000),
        np.random.rand(),
        np.random.normal(),
        rng.sample_rng().numpy.random(),
    ]


def draws_of(scope, index):
    scope.begin(SEEDS, "sample", index)
    return draws()


class Counted:
    """An index that counts how often somebody asks for its value."""

    num_asked = 0

    def __index__(self):
        self.num_asked += 1
        return 5


# Samples ---------------------------------------------------------------------------------------------------


def test_a_sample_draws_the_same_whatever_came_before_it(scope):
    expected = draws_of(scope, 5)
    assert draws_of(scope, 6) != expected
    scope.begin(SEEDS, "sample", 7)
    random.gauss(0, 1), np.random.normal(), torch.randn(1)  # each keeps a second draw for the next call
    assert draws_of(scope, 5) == expected
    with rng.drawing_from(rng.Scope()) as other:
        assert draws_of(other, 5) == expected


def test_no_source_of_a_sample_draws_like_another(scope):
    sources = (lambda: torch.rand((), dtype=torch.float64).item(), random.random, np.random.rand)
    assert len({draw() for draw in sources} | {rng.sample_rng().numpy.random()}) == 4


def test_nothing_is_seeded_before_the_first_draw(scope):
    index = Counted()
    scope.begin(SEEDS, "sample", index)
    assert index.num_asked == 0
    random.random()
    assert index.num_asked == 1
    torch.rand(1), random.random(), np.random.rand()
    assert index.num_asked == 1  # one digest seeds them all


def test_before_its_first_sample_a_scope_can_be_drawn_from():
    with rng.drawing_from(rng.Scope()):
        one = draws()
    with rng.drawing_from(rng.Scope()):
        assert draws() == one


def test_the_draws_that_the_user_asks_for_and_those_that_come_by_themselves_are_one_stream(scope):
    together = torch.rand(6, dtype=torch.float64), [random.random() for _ in range(4)]
    scope.begin(SEEDS, "sample", 0)
    own = rng.sample_rng()
    halves = [torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64, generator=own.torch)]
    assert torch.equal(torch.cat(halves), together[0])
    assert [random.random(), own.python.random(), own.python.random(), random.random()] == together[1]


def test_a_generator_of_numpy_that_is_kept_goes_on_by_itself(scope):
    def spawned(index):
        scope.begin(SEEDS, "sample", index)
        return rng.sample_rng().numpy.spawn(2)[1].random()

    expected = spawned(1), spawned(2)
    assert (spawned(2), spawned(1)) == expected[::-1]
    scope.begin(SEEDS, "sample", 1)
    kept = rng.sample_rng().numpy
    scope.begin(SEEDS, "sample", 2)
    assert rng.sample_rng().numpy is not kept
    assert rng.sample_rng().numpy is rng.sample_rng().numpy


def test_the_rng_has_the_names_that_torch_looks_for(scope):
    own = rng.sample_rng()
    assert own.torch_generator is own.torch
    assert own.random_generator is own.python
    assert own.numpy_generator is own.numpy


def test_outside_a_loader_there_is_no_sample_rng():
    with pytest.raises(RuntimeError, match=r"sample_rng\(\): no loader makes a sample in this thread\. Call it in"):
        rng.sample_rng()


# Generators that the dataset holds -------------------------------------------------------------------------


def test_held_generators_draw_what_the_sample_says(scope):
    held = [np.random.default_rng(3), np.random.RandomState(3), random.Random(3), torch.Generator().manual_seed(3)]
    known = [(generator, rng.digest_of(generator)) for generator in held]

    def drawn(index):
        scope.begin(SEEDS, "sample", index, 0, known)
        one, two, three, four = held
        return one.random(), two.rand(), three.random(), torch.rand((), generator=four).item()

    expected = drawn(1)
    assert len(set(expected)) == len(expected)
    assert all(map(operator.ne, drawn(2), expected))
    assert drawn(1) == expected


def test_held_generators_that_began_alike_draw_alike_and_others_do_not(scope):
    one, twin, other = np.random.default_rng(3), np.random.default_rng(3), np.random.default_rng(4)
    scope.begin(SEEDS, "sample", 1, 0, [(each, rng.digest_of(each)) for each in (one, twin, other)])
    first = one.random()
    assert twin.random() == first
    assert other.random() != first


# Blocks and threads ----------------------------------------------------------------------------------------


def test_blocks_nest_and_restore_what_was_before():
    outer, inner = rng.Scope(), rng.Scope()
    with rng.drawing_from(outer):
        one = draws_of(outer, 1)
        outer.begin(SEEDS, "sample", 1)
        first = torch.rand(())
        with rng.drawing_from(inner):
            assert rng.current() is inner
            draws_of(inner, 2)
        assert rng.current() is outer
        assert first.item() == one[0]
        assert torch.nn.functional.dropout(torch.ones(20)).tolist() == one[1]
    assert rng.current() is None


def test_a_block_restores_after_an_exception():
    with pytest.raises(ZeroDivisionError), rng.drawing_from(rng.Scope()), rng.drawing_from(rng.Scope()):
        1 / 0  # noqa: B018
    assert rng.current() is None
    before = torch.get_rng_state()
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)


def test_an_error_of_a_draw_is_torchs_own_and_the_next_draw_is_the_scopes(scope):
    with pytest.raises(RuntimeError, match="uniform_ expects to return a"):
        torch.empty(1).uniform_(2, 1)
    torch.rand(1)  # the fixture sees to it that it was not the process's


def test_a_thread_without_a_scope_draws_from_the_process_meanwhile():
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = torch.rand(3).tolist(), random.random(), np.random.rand()
    torch.set_rng_state(torch_state), random.setstate(python_state), np.random.set_state(numpy_state)
    is_inside, may_leave, found = threading.Event(), threading.Event(), []

    def loader_thread():
        scope = rng.Scope()
        rng.enter_thread(scope)
        found.append(draws_of(scope, 1))
        is_inside.set()
        may_leave.wait(PATIENCE_SECONDS)
        rng.leave_thread()

    thread = threading.Thread(target=loader_thread)
    thread.start()
    assert is_inside.wait(PATIENCE_SECONDS)
    assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == expected
    may_leave.set()
    thread.join(PATIENCE_SECONDS)
    torch.set_rng_state(torch_state), random.setstate(python_state), np.random.set_state(numpy_state)
    with rng.drawing_from(rng.Scope()) as scope:
        assert draws_of(scope, 1) == found[0]


def test_a_thread_that_has_left_draws_from_the_process():
    found = []

    def loader_thread():
        rng.enter_thread(rng.Scope())
        torch.rand(1), random.random(), np.random.rand()
        rng.leave_thread()
        found.append((torch.rand(3).tolist(), random.random(), np.random.rand()))

    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = torch.rand(3).tolist(), random.random(), np.random.rand()
    torch.set_rng_state(torch_state), random.setstate(python_state), np.random.set_state(numpy_state)
    thread = threading.Thread(target=loader_thread)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [expected]
    torch.set_rng_state(torch_state), random.setstate(python_state), np.random.set_state(numpy_state)


def test_a_thread_that_enters_meanwhile_waits_until_draws_can_be_diverted(monkeypatch):
    """Or its first draw would find half of the kernels."""
    is_under_way, may_end, order = threading.Event(), threading.Event(), []

    def install(*arguments):
        is_under_way.set()
        may_end.wait(PATIENCE_SECONDS)
        order.append("installed")

    monkeypatch.setattr(rng, "_is_installed", False)
    monkeypatch.setattr(rng.torch_draws, "install", install)
    monkeypatch.setattr(rng.redirect, "install", lambda *arguments: None)
    first = threading.Thread(target=rng.install)
    second = threading.Thread(target=lambda: (rng.install(), order.append("entered")))
    first.start()
    assert is_under_way.wait(PATIENCE_SECONDS)
    second.start()
    second.join(0.05)  # as long as it would take if it did not wait
    may_end.set()
    first.join(PATIENCE_SECONDS)
    second.join(PATIENCE_SECONDS)
    assert order == ["installed", "entered"]


def test_a_child_that_a_loader_thread_forks_draws_from_its_own_process(outside):
    """Its draws differ from the scope's and follow the process's seed, but for Python's: Python seeds it anew."""
    ended = outside.run("""
        import random, numpy as np, warnings
        from torchstage import rng
        warnings.simplefilter("ignore")
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        expected = torch.rand(2).tolist(), np.random.rand()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        python_state = random.getstate()
        with rng.drawing_from(rng.Scope()) as scope:
            scope_state = scope.python.getstate()
            pid = os.fork()
            if not pid:
                same = (torch.rand(2).tolist(), np.random.rand()) == expected
                anew = random.getstate() not in (python_state, scope_state)
                os._exit(0 if same and anew and rng.current() is None else 1)
            print(os.waitpid(pid, 0)[1], scope.python.getstate() == scope_state)
        print(random.getstate() == python_state)
    """)
    assert (ended.out, ended.err) == ("0 True\nTrue\n", "")
