"""Parking: threads that compute are held to the cores, threads that wait all stay.

The clocks here are fakes.
"""

import threading
import time

import pytest
from fakes import PATIENCE_SECONDS

from torchstage.engine import parking as parking_module
from torchstage.engine.parking import LONE_SECONDS, PERIOD_SECONDS, Parking, usable_cores

NUM_CORES = 4


class Machine:
    """Threads of a pool as clocks see them: a look comes a period after the last."""

    def __init__(self, parking: Parking, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parking = parking
        self.now = 1000.0
        self.used: dict[int, float] = {}
        monkeypatch.setattr(parking_module, "cpu_seconds", self.used.get)
        parking.running = parking._num_threads  # as if each had joined
        for clock in range(parking._num_threads):
            self.used[clock] = 0.0
            parking._clocks.append(clock)
        parking.look(self.now, None)  # the first look only learns where the clocks stand

    def live_a_period(self, cores_used: float, sample_seconds: float | None = None) -> None:
        """The running threads together use that many cores for a period; then one of them looks."""
        self.now += 1.01 * PERIOD_SECONDS
        for clock in list(self.used)[: self.parking.running]:
            self.used[clock] += 1.01 * PERIOD_SECONDS * cores_used / self.parking.running
        self.parking.look(self.now, sample_seconds)
        while self.parking.running > max(1, self.parking.limit):
            self.parking.running -= 1  # as threads do that come by the gate
            self.parking._num_parked += 1


@pytest.fixture
def machine_of(monkeypatch):
    return lambda num_threads: Machine(Parking(num_threads, NUM_CORES), monkeypatch)


def limits(machine: Machine, seconds: float, cores_of_a_thread: float) -> list[int]:
    """The limit after each period, where a thread alone would use that share of a core."""
    seen = []
    for _ in range(round(seconds / PERIOD_SECONDS)):
        machine.live_a_period(min(NUM_CORES, machine.parking.running * cores_of_a_thread))
        seen.append(machine.parking.limit)
    return seen


def share_of(limit: int, seen: list[int]) -> float:
    """For what share of the time that was the limit."""
    return seen.count(limit) / len(seen)


@pytest.mark.parametrize("num_threads", [5, 8, 16, 64])
def test_computing_threads_are_parked_down_to_the_cores(machine_of, num_threads):
    machine = machine_of(num_threads)
    seen = limits(machine, 2, cores_of_a_thread=1.0)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == machine.parking.running == NUM_CORES


def test_computing_threads_never_go_below_the_cores(machine_of):
    assert min(limits(machine_of(16), 20, cores_of_a_thread=1.0)) == NUM_CORES


def test_waiting_threads_all_stay(machine_of):
    machine = machine_of(16)
    assert set(limits(machine, 10, cores_of_a_thread=0.05)) == {16}
    assert machine.parking.running == 16


def test_threads_that_each_do_their_part_are_missed_and_called_back(machine_of):
    """Sixteen that use half of the cores between waits: with fewer less gets done, so that all go on; to find out
    costs less and less."""
    seen = limits(machine_of(16), 60, cores_of_a_thread=0.15)
    assert set(seen) == {16, 10}
    assert share_of(16, seen[: len(seen) // 10]) > 0.6
    assert share_of(16, seen[len(seen) // 2 :]) > 0.95


def test_half_waiting_threads_settle_where_the_cores_are_just_used(machine_of):
    """Threads that use 0.3 cores each: 18 use the four cores, and eleven only 3.3 of them."""
    seen = limits(machine_of(32), 60, cores_of_a_thread=0.3)
    assert share_of(18, seen[len(seen) // 2 :]) > 0.95


def test_threads_come_back_when_the_work_begins_to_wait(machine_of):
    machine = machine_of(16)
    limits(machine, 2, cores_of_a_thread=1.0)
    assert machine.parking.running == NUM_CORES
    seen = limits(machine, 2, cores_of_a_thread=0.05)
    assert seen[-1] == machine.parking.running == 16
    assert machine.parking._gate.qsize() == 12  # one token for each thread that was parked


def test_more_threads_stay_away_where_more_would_get_nothing_done(machine_of):
    """Work that only one thread can do at a time, as behind a lock of the user's."""
    machine = machine_of(16)
    limits(machine, 2, cores_of_a_thread=1.0)
    seen = []
    for _ in range(1200):
        machine.live_a_period(1.0)
        seen.append(machine.parking.limit)
    assert share_of(NUM_CORES, seen[600:]) > 0.95


def test_a_look_within_the_period_changes_nothing(machine_of):
    machine = machine_of(16)
    machine.used.update(dict.fromkeys(machine.used, 1e6))
    machine.parking.look(machine.now + 0.5 * PERIOD_SECONDS, None)
    assert machine.parking.limit == 16


def test_the_clock_of_a_thread_that_ended_counts_for_nothing(machine_of):
    machine = machine_of(16)
    for clock in range(8):
        del machine.used[clock]  # cpu_seconds answers None
    machine.now += 1.01 * PERIOD_SECONDS
    machine.parking.look(machine.now, None)
    assert machine.parking.limit == 16


@pytest.mark.parametrize("num_threads", [2, 4, 16])
def test_one_thread_works_alone_where_samples_are_nothing_but_python(machine_of, num_threads):
    """They hold the GIL: two threads would only hand it to and fro."""
    machine = machine_of(num_threads)
    machine.live_a_period(1.0, sample_seconds=0.5 * LONE_SECONDS)
    assert machine.parking.limit == machine.parking.running == 1
    machine.live_a_period(1.0, sample_seconds=0.5 * LONE_SECONDS)
    assert machine.parking.limit == 1


@pytest.mark.parametrize("sample_seconds", [2 * LONE_SECONDS, None])
@pytest.mark.parametrize("num_threads", [2, 4, 16])
def test_as_many_as_there_are_cores_come_back_at_once_when_samples_get_dear(machine_of, num_threads, sample_seconds):
    machine = machine_of(num_threads)
    machine.live_a_period(1.0, sample_seconds=0.5 * LONE_SECONDS)
    machine.live_a_period(1.0, sample_seconds)
    assert machine.parking.limit == min(num_threads, NUM_CORES)


def of_running(num_threads: int, limit: int) -> Parking:
    """A parking whose threads have all joined, of which that many may run."""
    parking = Parking(num_threads, 4)
    parking.running = num_threads
    parking.limit = limit
    return parking


def parked_threads(parking: Parking, num_threads: int) -> list[threading.Thread]:
    """Threads that are at the gate, or on their last steps to it."""
    threads = [threading.Thread(target=parking.wait_for_room, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while parking.running > parking.limit:
        assert time.monotonic() < deadline
        time.sleep(0)
    return threads


def assert_all_end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_each_thread_that_joins_is_counted():
    parking = Parking(3, 4)
    for _ in range(2):
        parking.join()
    assert parking.running == 2


def test_a_thread_is_not_parked_where_there_is_room():
    parking = of_running(8, limit=8)
    parking.wait_for_room()
    assert parking.running == 8


def test_the_last_thread_is_never_parked():
    parking = of_running(1, limit=0)
    parking.wait_for_room()
    assert parking.running == 1


def test_open_wakes_every_parked_thread_and_parks_no_other():
    parking = of_running(8, limit=5)
    threads = parked_threads(parking, 3)
    assert parking.running == 5
    parking.open()
    assert_all_end(threads)
    parking.limit = 0
    parking.wait_for_room()  # returns at once


def test_a_thread_on_its_way_to_the_gate_when_it_opens_gets_through():
    """It found the parking closed; open comes before it reaches the gate. Its token waits for it there."""
    parking = of_running(2, limit=1)
    reaches_gate, may_go_on = threading.Event(), threading.Event()
    get = parking._gate.get

    class SlowGate:
        put = parking._gate.put

        def get(self) -> None:
            reaches_gate.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
            get()

    parking._gate = SlowGate()  # type: ignore[assignment]
    thread = threading.Thread(target=parking.wait_for_room, daemon=True)
    thread.start()
    assert reaches_gate.wait(PATIENCE_SECONDS)
    parking.open()
    may_go_on.set()
    assert_all_end([thread])


def test_open_takes_no_lock():
    """A finalizer calls it, at any line of any thread: also of one that holds the lock."""
    parking = Parking(8, 4)
    with parking._lock:
        parking.open()
    assert parking._gate.qsize() == 8


def test_no_thread_is_called_back_that_is_not_parked():
    """A token too many would let a thread through the gate that should stay."""
    parking = of_running(8, limit=5)
    parking.running = 6  # two have not come by the gate yet
    parking._num_parked = 1
    parking.look(1.0, None)
    parking.limit = 8
    parking.look(2.0, None)
    assert parking._gate.qsize() <= 1


def test_a_machine_has_at_least_one_core():
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 6), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 6), ("nonsense", 6)],
)
def test_a_control_groups_quota_bounds_the_cores(monkeypatch, quota, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: quota + "\n")
    assert usable_cores() == cores


def test_without_a_control_group_the_affinity_counts(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    monkeypatch.setattr("pathlib.Path.read_text", missing)
    assert usable_cores() == 3


@pytest.mark.timing
@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of another thread here")
def test_the_clock_of_a_real_thread_can_be_read_until_it_ends():
    clocks: list[int] = []
    may_end = threading.Event()

    def live() -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        may_end.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    while not clocks:
        time.sleep(0)
    seconds = parking_module.cpu_seconds(clocks[0])
    assert seconds is not None
    assert 0 <= seconds < 5
    may_end.set()
    thread.join(PATIENCE_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while parking_module.cpu_seconds(clocks[0]) is not None:  # the system may take a moment to forget it
        assert time.monotonic() < deadline


def test_all_threads_but_one_are_held_out_and_let_in_again(machine_of):
    machine = machine_of(8)
    machine.parking.hold_out()
    assert set(limits(machine, 1, cores_of_a_thread=0.1)) == {1}  # whatever they use
    machine.parking.let_in()
    assert machine.parking.limit == 8
    assert machine.parking.running == 8


def test_no_more_threads_than_allowed_work_however_little_they_use(machine_of):
    machine = machine_of(8)
    machine.parking.allow(1)
    assert set(limits(machine, 2, cores_of_a_thread=0.05)) == {1}
    machine.parking.allow(8)
    assert limits(machine, 1, cores_of_a_thread=0.05)[-1] == 8


def test_who_is_allowed_while_all_are_held_out_comes_in_with_the_others(machine_of):
    machine = machine_of(8)
    machine.parking.hold_out()
    machine.parking.allow(3)
    assert machine.parking.limit == 1
    machine.parking.let_in()
    assert machine.parking.limit == 3


def test_at_least_one_thread_is_always_allowed():
    parking = Parking(4, NUM_CORES)
    parking.allow(0)
    assert parking.most == 1
