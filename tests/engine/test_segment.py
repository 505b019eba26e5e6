"""Segment: what one thread does with the batches that it is called to."""

import gc
import threading
import time
import weakref

import pytest
from fakes import PATIENCE_SECONDS, Gate, batch_of, bell_of, chain_of, do_nothing, pool_of

from torchstage.engine.channel import Channel
from torchstage.engine.outcome import Failure
from torchstage.engine.parking import Parking
from torchstage.engine.segment import Worker, alive
from torchstage.engine.stats import Meter
from torchstage.engine.ticket import simple_chain


@pytest.fixture
def worker():
    """A worker whose thread has not started: its steps are taken by the test."""
    return Worker(0, "torchstage-test-0", Channel(), Meter(), Parking(1, 8))


def serve(worker: Worker, *batches) -> None:
    """Let the worker do in this thread what it would do in its own."""
    for part in [batch.first for batch in batches]:
        worker.channel.put(part)
        assert worker._serve_one()


def test_a_visit_takes_every_sample_and_finishes_the_batch(worker):
    batch = batch_of(3, chain_of(lambda index: index * 2))
    serve(worker, batch)
    assert batch.done
    assert batch.value == [200, 202, 204]
    worker._wake_consumer()
    assert bell_of(batch).seen == [True]


def test_a_visit_to_a_batch_that_others_emptied_does_nothing(worker):
    batch = batch_of(3)
    batch.todo.clear()
    serve(worker, batch)
    assert not batch.done
    assert worker.tally.num_samples == 0


def test_the_end_of_the_channel_is_the_end_of_the_thread(worker):
    worker.channel.close(1)
    assert not worker._serve_one()


def test_a_visit_is_counted(worker):
    serve(worker, batch_of(3), batch_of(2))
    assert worker.tally.num_samples == 5
    assert all(work.seconds > 0 for work in worker.tally.works.values())
    assert worker.meter.sample_seconds > 0


def test_a_chain_is_entered_once_until_another_takes_over(worker):
    entered = []
    one, other = (chain_of(enter=lambda name=name: entered.append(name)) for name in ("one", "other"))
    serve(worker, batch_of(1, one), batch_of(1, one), batch_of(1, other), batch_of(1, one))
    assert entered == ["one", "other", "one"]


def test_an_error_decides_the_batch_and_spares_the_rest(worker):
    seen = []

    def sample(index):
        seen.append(index)
        if index == 101:
            raise KeyError(index)
        return index

    batch = batch_of(4, chain_of(sample))
    serve(worker, batch)
    assert seen == [100, 101]
    assert batch.done
    assert (batch.failure.stage, batch.failure.slot, batch.failure.error.args) == ("fetch", 1, (101,))


def test_cheap_batches_are_announced_together_before_the_thread_waits(worker):
    """Waking the consumer costs more than such a batch."""
    batches = [batch_of(1) for _ in range(3)]
    for batch in batches:
        serve(worker, batch)
        assert batch.done
    worker.channel.close(1)
    assert not worker._serve_one()
    assert [bell_of(batch).seen for batch in batches] == [[True]] * 3


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, BaseException, MemoryError]
)
def test_whatever_user_code_raises_ends_neither_the_thread_nor_the_wait_for_the_batch(kind):
    def sample(index):
        raise kind("user")

    with pool_of(1) as pool:
        failed, fine = batch_of(2, chain_of(sample)), batch_of(2)
        for batch in (failed, fine):
            pool.call_threads_to(batch)
        wait_for(fine)
    assert failed.done
    assert type(failed.failure.error) is kind
    assert fine.value == [100, 101]


def wait_for(batch) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not batch.done:
        assert time.monotonic() < deadline, "the batch was never announced"
        time.sleep(0.001)


def test_an_error_of_the_engines_own_is_announced_in_place_of_the_batch(worker):
    """Here the chain cannot be entered. The consumer hears of it; the thread goes on with the next batch."""

    def fail():
        raise OSError("no device")

    broken, fine = batch_of(2, chain_of(enter=fail)), batch_of(2)
    serve(worker, broken, fine)
    assert broken.done
    assert (broken.failure.stage, str(broken.failure.error)) == ("engine", "no device")
    assert fine.value == [100, 101]


def test_an_error_after_the_finish_was_claimed_is_announced_too(worker):
    """No memory for the list of values, say. Here: a list of stages that cannot be read."""
    chain = simple_chain("fetch", str, (), do_nothing)
    object.__setattr__(chain, "finish", None)
    batch = batch_of(1, chain)
    serve(worker, batch)
    assert batch.done
    assert batch.failure is not None


def test_an_engine_error_is_announced_once(worker):
    entered = []

    def fail():
        entered.append(True)
        raise OSError("no device")

    batch = batch_of(2, chain_of(enter=fail))
    serve(worker, batch, batch)
    assert len(entered) == 1  # the batch was dropped: there is nothing to come for
    assert len(bell_of(batch).seen) == 1


def test_a_thread_holds_nothing_of_a_batch_while_it_waits():
    class Value:
        """Something that can be referenced weakly."""

    with pool_of(1) as pool:
        batch = batch_of(2, chain_of(lambda index: Value()))
        pool.call_threads_to(batch)
        wait_for(batch)
        values = [weakref.ref(value) for value in batch.value]
        next_one = batch_of(1)
        pool.call_threads_to(next_one)
        wait_for(next_one)  # so the thread has left the first batch
        del batch
        assert [value() for value in values] == [None, None]


def test_set_up_runs_in_the_thread_before_its_first_batch(worker):
    seen = []
    worker.channel.close(1)
    worker.start(lambda number: seen.append((number, threading.current_thread().name)))
    worker.thread.join(PATIENCE_SECONDS)
    assert seen == [(0, "torchstage-test-0")]


def test_an_error_in_set_up_is_raised_where_the_thread_is_started_and_ends_it(worker):
    def fail(number):
        raise ValueError(f"set-up of {number}")

    with pytest.raises(ValueError, match="set-up of 0"):
        worker.start(fail)
    worker.thread.join(PATIENCE_SECONDS)
    assert not worker.thread.is_alive()
    assert worker not in alive


def test_a_thread_is_known_from_before_it_starts_until_it_ended(worker):
    gate = Gate()
    starter = threading.Thread(target=worker.start, args=(lambda number: gate(),), daemon=True)
    starter.start()
    gate.wait_until_inside()
    assert worker in alive
    assert worker.place() == "its set-up (worker_init_fn)"
    gate.open()
    starter.join(PATIENCE_SECONDS)
    assert worker.place() == "no stage"
    worker.channel.close(1)
    worker.thread.join(PATIENCE_SECONDS)
    assert worker not in alive


def test_a_thread_that_the_system_refuses_is_not_waited_for_at_exit(worker, monkeypatch):
    def refuse():
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker.thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.start(do_nothing)
    assert worker not in alive


def test_a_threads_place_is_told_in_words():
    in_sample, in_collate = Gate(), Gate()
    collate = "collate", lambda values, indices: in_collate(values)
    chain = chain_of(lambda index: in_sample(index) if index == 101 else index, collate)
    with pool_of(1) as pool:
        batch = batch_of(2, chain, number=7)
        pool.call_threads_to(batch)
        in_sample.wait_until_inside()
        assert pool.workers[0].place() == "stage 'fetch', dataset index 101 (batch 7)"
        in_sample.open()
        in_collate.wait_until_inside()
        assert pool.workers[0].place() == "stage 'collate' (batch 7)"
        in_collate.open()


@pytest.mark.xfail(strict=True, reason="place() says 'collate' in whichever of the last stages the thread is")
def test_a_thread_in_the_second_of_the_last_stages_is_said_to_be_there():
    gate = Gate()
    collate = "collate", lambda values, indices: values
    pin = "pin_memory", lambda batch, indices: gate(batch)
    chain = chain_of(str, collate, pin)
    with pool_of(1) as pool:
        batch = batch_of(2, chain, number=7)
        pool.call_threads_to(batch)
        gate.wait_until_inside()
        words = pool.workers[0].place()
        gate.open()
        wait_for(batch)
        assert words == "stage 'pin_memory' (batch 7)"


def test_a_threads_place_can_be_told_before_its_first_sample_of_a_batch(worker):
    """close() asks for it at any moment, also between taking a batch and taking a sample of it."""
    serve(worker, batch_of(8))
    worker.batch, worker.slot = batch_of(2), 7  # the slot is still that of the batch before
    assert worker.place().endswith("(batch 0)")


def test_a_cheap_batch_is_announced_before_its_thread_is_parked(worker):
    serve(worker, batch := batch_of(1))
    worker.parking.limit = -1  # it is one too many
    worker.parking.wait_for_room = lambda: parked_with.append(list(bell_of(batch).seen))
    parked_with: list[list[bool]] = []
    worker.channel.close(1)
    assert not worker._serve_one()
    assert parked_with == [[True]]


def test_two_threads_share_one_batch_sample_by_sample():
    gates = {100: Gate(), 101: Gate()}
    with pool_of(2) as pool:
        batch = batch_of(2, chain_of(lambda index: (gates[index](), threading.current_thread().name)[1]))
        pool.call_threads_to(batch)
        for gate in gates.values():
            gate.wait_until_inside()  # both are inside at the same time
        for gate in gates.values():
            gate.open()
        wait_for(batch)
    assert sorted(batch.value) == ["torchstage-test-0", "torchstage-test-1"]


def test_the_lowest_failure_decides_also_if_it_comes_last():
    """Slot 0 fails after slot 1 did: a loop over the samples would have met slot 0 first."""
    first = Gate()
    other_has_failed = threading.Event()

    def sample(index):
        if index == 100:
            first()
        else:
            first.wait_until_inside()
            other_has_failed.set()
        raise ValueError(index)

    with pool_of(2) as pool:
        batch = batch_of(3, chain_of(sample))
        pool.call_threads_to(batch)
        assert other_has_failed.wait(PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not isinstance(batch.settled.get(1), Failure):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert not batch.done
        first.open()
        wait_for(batch)
    assert (batch.failure.slot, batch.failure.error.args) == (0, (100,))


def test_an_error_that_is_dropped_frees_the_samples_beside_it():
    class Value:
        """Something that can be referenced weakly."""

    values = []

    def sample(index):
        if index == 102:
            raise ValueError(index)
        value = Value()
        values.append(weakref.ref(value))
        return value

    gc.disable()
    try:
        with pool_of(1) as pool:
            batch, next_one = batch_of(3, chain_of(sample)), batch_of(1)
            for each in (batch, next_one):
                pool.call_threads_to(each)
            wait_for(next_one)
            del batch, each
            assert [value() for value in values] == [None, None]
    finally:
        gc.enable()
