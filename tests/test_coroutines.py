"""Coroutines: each draws from its own sample's generators, however they take turns."""

import asyncio
import gc
import random

import pytest
import torch

from torchstage import coroutines, rng
from torchstage.coroutines import RunHere, drawing, remember
from torchstage.order import Placed
from torchstage.seeds import Seeds

SEEDS = Seeds(1, 0)


async def draw_twice(value, between=None):
    first = torch.rand(()).item(), random.random()
    if between is not None:
        await between(value)
    else:
        await asyncio.sleep(0)
    return first, (torch.rand(()).item(), random.random())


async def made(index, function, seeds=SEEDS):
    remember(seeds)(index)
    return await function(index)


def run(*coroutines_):
    """What they give when they take turns in one event loop."""

    async def together():
        return await asyncio.gather(*coroutines_, return_exceptions=True)

    rng.install()
    return asyncio.run(together())


def test_coroutines_that_take_turns_draw_what_each_draws_alone():
    function = drawing(draw_twice, "sample")
    alone = [run(made(index, function))[0] for index in range(4)]
    assert run(*(made(index, function) for index in range(4))) == alone
    assert len({draw for sample in alone for pair in sample for draw in pair}) == 16


def test_samples_of_one_index_are_told_apart():
    function = drawing(draw_twice, "sample")
    first, second = run(made(7, function), made(Placed(7, 1), function))
    assert first != second


def test_stages_of_one_sample_are_told_apart():
    first, second = run(made(7, drawing(draw_twice, "stage 0")), made(7, drawing(draw_twice, "stage 1")))
    assert first != second


def test_without_seeds_it_draws_from_where_everybody_does():
    torch.manual_seed(3)
    expected = torch.rand(()).item()
    torch.manual_seed(3)
    assert run(made(7, drawing(draw_twice, "sample"), None))[0][0][0] == expected


def test_the_processs_generators_stay_as_they_are():
    states = torch.get_rng_state(), random.getstate()
    run(*(made(index, drawing(draw_twice, "sample")) for index in range(3)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_whoever_comes_in_between_draws_from_its_own():
    seen = []

    async def look(value):
        await asyncio.sleep(0)
        seen.append(rng.current())
        asyncio.get_running_loop().call_soon(lambda: seen.append(rng.current()))
        await asyncio.sleep(0.01)

    run(made(7, drawing(lambda value: draw_twice(value, look), "sample")))
    inside, outside = seen
    assert inside is not None
    assert outside is None


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_an_error_of_what_it_waits_for_is_its_own_to_catch(kind):
    async def fail(value):
        await asyncio.sleep(0)
        raise kind

    async def function(value):
        try:
            await fail(value)
        except kind:
            return torch.rand(()).item()

    async def simply(value):
        return torch.rand(()).item()

    assert run(made(7, drawing(function, "sample"))) == run(made(7, drawing(simply, "sample")))


def test_a_scope_is_given_back_after_an_error_and_after_a_cancellation():
    async def fail(value):
        raise ValueError(value)

    async def cancelled():
        task = asyncio.ensure_future(made(7, drawing(lambda value: asyncio.sleep(60), "sample")))
        await asyncio.sleep(0)
        task.cancel()
        await task

    run(made(7, drawing(draw_twice, "sample")))
    num_idle = len(coroutines._idle)
    assert isinstance(run(made(7, drawing(fail, "sample")))[0], ValueError)
    assert isinstance(run(cancelled())[0], asyncio.CancelledError)
    assert len(coroutines._idle) == num_idle
    assert rng.current() is None


def test_one_that_nobody_will_wait_for_can_be_closed():
    """Else Python warns of it, which is an error here."""

    async def begin():
        remember(SEEDS)(7)
        drawing(draw_twice, "sample")(7).close()
        gc.collect()

    assert run(begin()) == [None]


def test_it_is_waited_for_in_the_calling_thread_or_in_another_where_a_loop_runs():
    here = RunHere()
    remember(SEEDS)(7)
    function = drawing(draw_twice, "sample")
    rng.install()
    expected = here(function(7))

    async def in_a_notebook():
        return here(function(7))

    assert asyncio.run(in_a_notebook()) == expected
    coroutines.coming.set(None)
