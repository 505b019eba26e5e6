"""Slots between processes: what one wrote the other reads, until nobody holds it; a process may die at any time."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchstage.executors.parcel import unpack
from torchstage.executors.slots import Slots

PROGRAM = Path(__file__).with_name("other_process.py")


class Other:
    """The other process, spoken to."""

    def __init__(self, *arguments):
        self.line, theirs = socket.socketpair()
        command = [sys.executable, str(PROGRAM), str(theirs.fileno()), *map(str, arguments)]
        paths = os.pathsep.join([str(PROGRAM.parents[2]), *sys.path])
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths})
        theirs.close()

    def ask(self, slot, *order):
        content = pickle.dumps((-1 if slot is None else slot.number, order))
        socket.send_fds(self.line, [content], [] if slot is None else [slot.fd])

    def parcel(self):
        return pickle.loads(self._received(int.from_bytes(self._received(8), "little")))

    def _received(self, num_bytes):
        content = bytearray()
        while len(content) < num_bytes:
            part = self.line.recv(num_bytes - len(content))
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def through(self, slots, *order):
        slot = slots.take()
        self.ask(slot, *order)
        parcel = self.parcel()
        return unpack(parcel) if slot is None else slot.open(parcel)


@contextlib.contextmanager
def others(number, *arguments):
    made = [Other(*arguments) for _ in range(number)]
    try:
        yield made
    finally:
        for other in made:
            other.line.close()
            other.process.wait()


@pytest.fixture(scope="module")
def pair():
    with others(2) as made:
        yield made


def number_of(value):
    """What it was filled with; the value must be whole."""
    if isinstance(value, dict):
        assert value["x"].eq(value["label"]).all()
        return int(value["label"])
    array = np.asarray(value)
    assert (array == array[0]).all()
    return int(array[0])


def test_two_processes_take_turns_in_the_slots(pair):
    slots = Slots(4)
    held = []
    for number in range(200):
        kind = ("room", "tensor", "array", "kept")[number % 4 if number % 40 < 20 else number % 3]
        held.append((number, pair[number % 2].through(slots, kind, number, 5_000 + 997 * (number % 50))))
        if number % 7 == 6:
            assert [number_of(value) for _, value in held] == [number for number, _ in held]
            del held[number % len(held) :]
    assert [number_of(value) for _, value in held] == [number for number, _ in held]
    slots.close()
    assert [number_of(value) for _, value in held] == [number for number, _ in held]


def test_a_process_that_is_killed_leaves_its_slot_and_its_batches(pair):
    slots, other = Slots(3), pair[1]
    with others(1) as (victim,):
        batch = victim.through(slots, "room", 1, 100_000)
        slot = slots.take()
        victim.ask(slot, "room", 2, 100_000_000)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        slot.give_back()
        assert number_of(batch) == 1
        again = [other.through(slots, "room", number, 100_000) for number in (3, 4)]
        assert [number_of(value) for value in again] == [3, 4]
        assert number_of(batch) == 1
    slots.close()


def test_where_files_may_not_be_large_batches_are_carried():
    slots = Slots(2)
    with others(1, 1 << 22) as (other,):
        assert number_of(other.through(slots, "room", 5, 50_000)) == 5
        for kind in ("room", "tensor", "array"):
            assert number_of(other.through(slots, kind, 6, 2_000_000)) == 6
        assert number_of(other.through(slots, "room", 7, 50_000)) == 7
    slots.close()


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="has no /dev/shm")
def test_nothing_has_a_name(pair):
    def names():
        return {path.name for path in Path("/dev/shm").iterdir() if "torchstage" in path.name}

    slots = Slots(2)
    batch = pair[0].through(slots, "room", 1, 1_000_000)
    assert not names()
    slots.close()
    assert number_of(batch) == 1
