"""Early: what is foreseen of the next epoch in, its first batches out, made behind those of the epoch before."""

import gc
import weakref

import pytest
from fakes import Gate, chain_of, next_of, pool_of, rest_of, wait_for

from torchstage.engine.early import Early
from torchstage.engine.pipeline import Exhausted, Run


class Foreseen:
    """These batches of indices are foreseen; how it turned out."""

    def __init__(self, batches, chain):
        self._left = [(indices, chain, None) for indices in batches]
        self.num_finished = 0
        self.has_come = False
        self.asked = []

    def admission(self):
        return self._left.pop(0) if self._left else None

    def is_as(self, early, admitted):
        self.asked.append((early[0], admitted[0]))
        return early[0] == admitted[0]

    def came(self):
        self.has_come = True

    def put(self, item):
        self.num_finished += 1


def run_of(pool, batches, chain, early, window=4):
    return Run(pool, iter([(indices, chain, None) for indices in batches]), lambda batch: window, early=early)


def values_of(run):
    return [batch.value for batch in rest_of(run)]


def begun(pool, chain, batches, *, window=4, foreseen=None):
    """A first epoch of one batch that was handed out, and what was begun behind it."""
    early = Early()
    foreseen = foreseen or Foreseen(batches, chain)
    early.follow(lambda: foreseen)
    run = run_of(pool, [[0]], chain, early, window)
    run.fill()
    assert values_of(run) == [[0]]
    return early, foreseen


def next_epoch(pool, batches, chain, early, window=4):
    early.follow(lambda: None)
    run = run_of(pool, batches, chain, early, window)
    run.fill()
    return run


def test_the_next_epoch_is_begun_when_this_one_has_no_more_and_there_is_room():
    asked = []
    with pool_of(1, start=False) as pool:
        early, chain = Early(), chain_of()
        early.follow(lambda: asked.append("what comes") or Foreseen([[7], [8], [9]], chain))
        run = run_of(pool, [[1], [2], [3], [4]], chain, early, window=3)
        run.fill()
        assert (len(run.in_flight), len(early), asked) == (3, 0, [])
        pool.start(1, lambda number: None)
        next_of(run)
        assert (len(run.in_flight), len(early)) == (3, 0)  # the source has not said yet that it has no more
        next_of(run)
        assert (len(run.in_flight), len(early), asked) == (2, 1, ["what comes"])
        next_of(run)
        assert (len(run.in_flight), len(early)) == (1, 2)
        next_of(run)
        assert (len(run.in_flight), len(early), asked) == (0, 3, ["what comes"])
        with pytest.raises(Exhausted):
            next_of(run)


def test_what_was_begun_is_given_in_its_place_and_the_rest_made():
    made = []
    chain = chain_of(lambda index: made.append(index) or index)
    with pool_of(1) as pool:
        early, foreseen = begun(pool, chain, [[1, 2], [3]])
        wait_for(lambda: foreseen.num_finished == 2)
        run = next_epoch(pool, [[1, 2], [3], [4], [5]], chain, early)
        assert (len(run.in_flight), len(early), foreseen.has_come) == (4, 0, True)
        assert values_of(run) == [[1, 2], [3], [4], [5]]
        assert made == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_is_being_made_is_waited_for():
    gate = Gate()
    chain = chain_of(lambda index: gate(index) if index == 2 else index)
    with pool_of(1) as pool:
        early, foreseen = begun(pool, chain, [[1, 2], [3]])
        gate.wait_until_inside()
        run = next_epoch(pool, [[1, 2], [3]], chain, early)
        assert not any(batch.done for batch in run.in_flight)
        gate.open()
        assert values_of(run) == [[1, 2], [3]]
        assert foreseen.num_finished == 0  # the consumer is told of those that it waits for


def test_a_batch_that_nobody_was_called_to_is_made_when_its_epoch_begins():
    with pool_of(1, start=False) as pool:
        chain = chain_of()
        early = Early()
        early.follow(lambda: Foreseen([[1]], chain))
        assert early.admit() is not None  # and then Ctrl-C
        pool.start(1, lambda number: None)
        assert values_of(next_epoch(pool, [[1]], chain, early)) == [[1]]


@pytest.mark.parametrize("batches", [[[9], [2]], [[1], [9]], [[9], [9], [9]], [[1]], []])
def test_what_did_not_come_is_dropped_and_made_anew(batches):
    chain = chain_of()
    with pool_of(1) as pool:
        early, foreseen = begun(pool, chain, batches, window=3)
        wait_for(lambda: foreseen.num_finished == len(batches))
        run = next_epoch(pool, [[1], [2]], chain, early)
        assert len(early) == 0
        assert foreseen.has_come is (batches in ([[1]],))
        assert values_of(run) == [[1], [2]]


def test_once_one_did_not_come_none_of_the_others_is_asked_for():
    chain = chain_of()
    with pool_of(1) as pool:
        early, foreseen = begun(pool, chain, [[9], [2], [3]])
        assert values_of(next_epoch(pool, [[1], [2], [3]], chain, early)) == [[1], [2], [3]]
        assert foreseen.asked == [([9], [1])]


def test_an_epoch_that_was_shorter_than_foreseen_leaves_nothing():
    chain = chain_of()
    with pool_of(1) as pool:
        early, _ = begun(pool, chain, [[1], [2]])
        early.follow(lambda: Foreseen([[5]], chain))
        run = run_of(pool, [[1]], chain, early)
        run.fill()
        assert values_of(run) == [[1]]
        assert values_of(next_epoch(pool, [[5]], chain, early)) == [[5]]


def test_an_error_comes_in_its_place():
    chain = chain_of(lambda index: index if index != 1 else 1 / 0)
    with pool_of(1) as pool:
        early, foreseen = begun(pool, chain, [[1], [2]])
        wait_for(lambda: foreseen.num_finished == 2)
        batches = rest_of(next_epoch(pool, [[1], [2]], chain, early))
        assert isinstance(batches[0].failure.error, ZeroDivisionError)
        assert batches[1].value == [2]


def test_ctrl_c_while_it_is_asked_what_comes_loses_no_batch():
    chain = chain_of()

    def interrupted():
        raise KeyboardInterrupt

    with pool_of(1) as pool:
        early = Early()
        early.follow(interrupted)
        run = run_of(pool, [[1], [2]], chain, early, window=2)
        run.fill()
        with pytest.raises(KeyboardInterrupt):
            next_of(run)
        assert values_of(run) == [[1], [2]]


def test_nothing_is_begun_while_the_first_samples_are_looked_at():
    chain = chain_of()
    with pool_of(1) as pool:
        early = Early()
        early.follow(lambda: Foreseen([[7]], chain))
        run = run_of(pool, [[1]], chain, early)
        run.is_on_trial = True
        run.fill()
        assert len(early) == 0
        run.call_threads()
        run.fill()
        assert len(early) == 1


def test_nothing_is_begun_for_a_run_that_was_abandoned():
    chain = chain_of()
    with pool_of(1) as pool:
        early = Early()
        early.follow(lambda: Foreseen([[7]], chain))
        run = run_of(pool, [[1]], chain, early)
        run.abandon()
        run.fill()
        assert len(early) == 0


def test_no_sample_of_the_next_epoch_is_begun_before_the_last_of_this_one():
    order = []
    gate = Gate()
    chain = chain_of(lambda index: order.append(index) or (gate(index) if index == 0 else index))
    with pool_of(2) as pool:
        early = Early()
        early.follow(lambda: Foreseen([[10, 11], [12]], chain))
        run = run_of(pool, [[0, 1, 2], [3, 4], [5]], chain, early, window=6)
        run.fill()
        wait_for(lambda: len(order) == 9)  # the other thread does the rest
        assert order[-3:] == [10, 11, 12]
        gate.open()
        assert values_of(run) == [[0, 1, 2], [3, 4], [5]]


def test_what_was_begun_goes_with_the_last_that_refers_to_it():
    class Thing:
        pass

    alive = weakref.WeakSet()

    def make(index):
        thing = Thing()
        alive.add(thing)
        return thing

    chain = chain_of(make)
    with pool_of(1) as pool:
        early = Early()
        foreseen = Foreseen([[1], [2]], chain)
        early.follow(lambda: foreseen)
        run = run_of(pool, [[0]], chain, early)
        run.fill()
        rest_of(run)
        wait_for(lambda: foreseen.num_finished == 2 and len(alive) == 3)
        gc.collect()
        gc.disable()
        try:
            del early, run
            wait_for(lambda: not len(alive))
        finally:
            gc.enable()
