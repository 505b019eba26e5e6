"""A job of a process, its parcel and what the parent opens, all in one process: the slot is mapped twice."""

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch

from torchstage.executors.desk import MIN_SLOT_BYTES, Desk
from torchstage.executors.parcel import Parcel, unpack
from torchstage.executors.slots import Slot, Slots

LARGE = 2 * MIN_SLOT_BYTES


def sent(parcel: Parcel) -> Parcel:
    return pickle.loads(pickle.dumps(parcel))


def laid(desk: Desk, slot: Slot | None, make: Callable[[], Any]) -> Parcel:
    """The parcel of what a job makes in that slot, as it arrives."""
    if slot is None:
        desk.take(-1, None)
    else:
        desk.take(slot.number, os.dup(slot.fd))
    return sent(desk.sealed(desk.pack(make())))


def through(slots: Slots, desk: Desk, make: Callable[[], Any]) -> Any:
    """What the user gets of what a job makes."""
    slot = slots.take()
    parcel = laid(desk, slot, make)
    return unpack(parcel) if slot is None else slot.open(parcel)


@contextlib.contextmanager
def lending(max_slots, num_desks=1):
    slots, desks = Slots(max_slots), [Desk() for _ in range(num_desks)]
    try:
        yield slots, *desks
    finally:
        slots.close()
        for desk in desks:
            desk.close()


def filled(desk, number, num_bytes=LARGE):
    """What a job does that collates into the slot."""
    return lambda: desk.empty((num_bytes,), torch.uint8).fill_(number)
