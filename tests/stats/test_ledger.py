"""Ledger and tallies: durations fall into bins, sums are exact, and what has ended takes no room."""

import gc
import random
import threading
import weakref
from time import perf_counter

import pytest

from torchstage.engine.histogram import NUM_BINS, bin_of, percentile
from torchstage.engine.ledger import Ledger, Steps, Total
from torchstage.engine.stats import Tally, Work

FETCH = (False, ("fetch",))


class Owner:
    """An iterator, as far as a ledger knows."""


@pytest.mark.parametrize("exponent", range(-26, 13))
def test_a_duration_is_found_again_to_four_and_a_half_percent(exponent):
    for part in (1.0, 1.01, 1.1, 1.5, 1.99):
        histogram = [0] * NUM_BINS
        histogram[bin_of(part * 2.0**exponent)] = 1
        assert percentile(histogram, 0.5) == pytest.approx(part * 2.0**exponent, rel=0.045)


@pytest.mark.parametrize("seconds", [0.0, -1e-9 * 0, 1e-12, 1e9])
def test_what_is_beyond_the_bins_is_in_the_last_one(seconds):
    assert bin_of(seconds) in (0, NUM_BINS - 1, bin_of(1e-9))


def test_percentiles_are_those_of_the_samples():
    draw = random.Random(1)
    samples = sorted(draw.lognormvariate(-7, 1.0) for _ in range(10_000))
    histogram = [0] * NUM_BINS
    for seconds in samples:
        histogram[bin_of(seconds)] += 1
    for share in (0.5, 0.95, 0.99):
        assert percentile(histogram, share) == pytest.approx(samples[int(share * 10_000) - 1], rel=0.045)


def test_no_samples_have_no_percentile():
    assert percentile([0] * NUM_BINS, 0.5) is None


def test_the_difference_of_sums_is_what_was_added():
    ledger = Ledger()
    work = ledger.tally("home").work(("fetch",))
    work.add([(0.5, 0.25)], 1, 1)
    before = ledger.total()
    work.add([(2.0, None)], 1, 3)
    work.num_samples += 3
    after = ledger.total().plus(before, -1).works[False, ("fetch",)]
    assert (after.num_samples, after.stages[0].seconds, after.stages[0].cpu_seconds) == (3, 6.0, 0.0)
    assert sum(after.stages[0].histogram) == 3


def test_a_ticket_that_failed_on_the_way_is_not_timed():
    work = Work(2)
    work.add([(0.5, None)], 1, 1)
    assert [stage.seconds for stage in work.stages] == [0.0, 0.0]


def test_accounts_of_what_has_ended_are_summed_up():
    ledger = Ledger()
    for _ in range(100):
        tally = ledger.tally("home")
        tally.work(("fetch",)).num_samples = 7
        tally.fail(FETCH, "fetch", 1)
        tally.is_over = True
        owner = Owner()
        ledger.steps(owner).num_batches = 2
        del owner
    gc.collect()
    ledger.tally("home")
    assert len(ledger._open) == 1
    total = ledger.total()
    assert total.works[False, ("fetch",)].num_samples == 700
    assert total.works[FETCH].stages[0].num_errors == 100
    assert total.numbers["num_batches"] == 200


def test_sums_are_whole_while_accounts_come_and_go():
    ledger, is_over, seen = Ledger(), threading.Event(), []

    def num_errors():
        work = ledger.total().works.get(FETCH)
        return 0 if work is None else work.stages[0].num_errors

    def look():
        while not is_over.is_set():
            seen.append(num_errors())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(300):
        tally = ledger.tally("home")
        tally.fail(FETCH, "fetch", 1)
        tally.is_over = True
    is_over.set()
    looking.join()
    assert num_errors() == 300
    assert seen == sorted(seen)


def test_whoever_sums_up_is_not_waited_for():
    ledger = Ledger()
    ledger.tally("home").is_over = True
    with ledger._summing:  # as if a signal came while another sums up
        ledger.tally("home")
    assert len(ledger._open) == 2
    ledger.tally("home")
    assert len(ledger._open) == 2


def test_a_sum_that_was_broken_off_counts_nothing_twice():
    """Ctrl-C came when the sum was put down, and before what is in it was taken off the list."""
    ledger = Ledger()
    tally = ledger.tally("home")
    tally.work(("fetch",)).num_samples = 7
    tally.is_over = True

    class Broken(list):
        def remove(self, account):
            raise KeyboardInterrupt

    ledger._open = Broken(ledger._open)
    with pytest.raises(KeyboardInterrupt):
        ledger.tally("home")
    ledger._open = list(ledger._open)
    assert ledger.total().works[FETCH].num_samples == 7
    ledger.tally("home")
    assert ledger.total().works[FETCH].num_samples == 7
    assert tally not in ledger._open


class Between(Steps):
    """Another thread asks what was counted at the moment when a wait is being counted."""

    seen = None

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "wait_seconds" and value and self.seen is None:
            self.seen = Total.of_consumer(self, perf_counter()).numbers["wait_seconds"]


def test_a_wait_is_not_told_twice_while_it_is_being_counted():
    owner, steps = Owner(), Between()
    steps.owner = weakref.ref(owner)
    for _ in range(2):
        steps.call()
        steps.hand_out()
    assert 0 < steps.seen <= steps.wait_seconds


def test_what_is_read_while_a_wait_ends_is_read_again():
    owner = Owner()

    class Ending(Steps):
        """The wait ends right after a reader saw that there is one."""

        is_armed = False

        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            if name == "returned_at" and super().__getattribute__("is_armed"):
                self.is_armed = False
                self.hand_out()
            return value

    steps = Ending()
    steps.owner = weakref.ref(owner)
    steps.call()
    steps.hand_out()
    steps.call()
    steps.is_armed = True
    told = Total.of_consumer(steps, perf_counter() + 1000.0)
    assert told.numbers["wait_seconds"] == steps.wait_seconds < 1000.0


def test_a_thread_that_stays_behind_in_a_fork_is_parked_no_longer():
    tally = Tally()
    tally.parked = 1.0, 5.0
    assert Total.of_thread(tally, 7.0).parked[""] == 3.0
    tally.leave()
    assert Total.of_thread(tally, 1000.0).parked[""] == 1.0
    assert tally.is_over
