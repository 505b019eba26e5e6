"""Stand-ins for deadlines: a stage that stops inside, and a consumer that looks when the test says so."""

import threading
from contextlib import contextmanager
from time import perf_counter

from fakes import Gate, chain_of, do_nothing, pool_of, run_of

from torchstage.engine.deadlines import Stuck, Threads
from torchstage.engine.pool import Pool
from torchstage.engine.stuck import Running

SECONDS = 10.0  # that a sample may be in the stage: no test waits for them


class Slow:
    """A stage that stops inside with some samples until it is let through, looked at from outside."""

    def __init__(self, *slow):
        self.gates = {index: Gate() for index in slow}
        self.threads = {}
        self.running = Running()
        self.limited = self.running.limited(self, "fetch", SECONDS)

    def __call__(self, index):
        if index in self.gates:
            self.threads[index] = threading.current_thread()
            self.gates[index]()
        return index

    def let_go(self):
        for gate in self.gates.values():
            gate.open()

    @property
    def chain(self):
        return chain_of(self.limited)


class Looking:
    """What a consumer looks at: threads that are replaced."""

    def __init__(self, pool, slow, run=None, *, why_not=None):
        self.pool, self.run, self.stuck, self.replaced = pool, run, Stuck(), []
        self.why_not = why_not
        self.threads = Threads(
            slow.running,
            lambda: [pool, *(annex for annex in pool.annexes if isinstance(annex, Pool))],
            lambda batch, slot, stage: f"stage {stage!r}, slot {slot}, batch {batch.number}",
            lambda worker: "its stack\n",
            self.stuck,
            self.replace,
            lambda batch: self.why_not,
        )

    def replace(self, pool, worker):
        self.replaced.append(worker)
        pool.replace(worker, do_nothing)
        if self.run is not None:
            self.run.call_again()

    def after(self, seconds):
        """Look when so many seconds have passed."""
        return self.threads.look(perf_counter() + seconds)


@contextmanager
def stuck_in(num_threads, *slow_samples, batches, window=4):
    """A run whose slow samples have been begun, as far as there are threads for them."""
    slow = Slow(*slow_samples)
    with pool_of(num_threads) as pool:
        try:
            run = run_of(pool, batches, slow.chain, window)
            for index in slow_samples[:num_threads]:
                slow.gates[index].wait_until_inside()
            yield slow, pool, run, Looking(pool, slow, run)
        finally:
            slow.let_go()


def outcome(batch):
    return batch.value if batch.failure is None else type(batch.failure.error)
