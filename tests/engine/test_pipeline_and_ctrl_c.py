"""Ctrl-C while a batch is handed out: the batch is the next one."""

from queue import SimpleQueue

import pytest
from fakes import chain_of, next_of, pool_of, rest_of, run_of


class InterruptedWake:
    """Ctrl-C comes when the announcement of a batch is taken back: it is no longer in flight, and nobody has it."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[None] = SimpleQueue()
        self.put, self.get = self.queue.put, self.queue.get
        self.num_interrupts = 0

    def get_nowait(self) -> None:
        if not self.num_interrupts:
            self.num_interrupts = 1
            raise KeyboardInterrupt
        self.queue.get_nowait()


@pytest.mark.parametrize("in_order", [True, False])
def test_an_interrupt_while_a_batch_is_handed_out_does_not_lose_it(in_order: bool) -> None:
    with pool_of(1) as pool:
        run = run_of(pool, [[1], [2], [3], [4]], chain_of(), in_order=in_order)
        wake = InterruptedWake()
        first = next_of(run).value
        run._in_flight.wake = wake
        for batch in run._in_flight:
            batch.wake = wake
        with pytest.raises(KeyboardInterrupt):
            next_of(run)
        assert wake.num_interrupts == 1
        assert [first, *(batch.value for batch in rest_of(run))] == [[1], [2], [3], [4]]


def test_what_was_not_taken_out_is_not_put_back_twice() -> None:
    with pool_of(1) as pool:
        run = run_of(pool, [[1], [2]], chain_of())
        head = next(iter(run._in_flight))
        run.put_back(head)
        assert [batch.value for batch in rest_of(run)] == [[1], [2]]
