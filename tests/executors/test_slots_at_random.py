"""Slots at random: whatever is held, of whatever came through them, never changes."""

import gc
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lending import filled, lending, through

from torchstage.executors.desk import Desk
from torchstage.executors.slots import Slots

STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which process
        st.lists(
            st.tuples(st.sampled_from(["room", "tensor", "array", "view", "small"]), st.integers(1, 40_000)),
            max_size=5,
        ),
        st.sampled_from(["drop", "hold", "hold part", "hold array"]),
        st.lists(st.integers(0, 30), max_size=4),  # which to let go of
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.fuzz
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, max_slots=st.integers(1, 5))
def test_what_is_held_never_changes(steps, max_slots):
    with lending(max_slots, 3) as (slots, *desks):
        held = []
        for number, (which, parts, fate, to_drop) in enumerate(steps * 3):
            value = number % 251

            def make(desk=desks[which], parts=parts, value=value):
                return [part_of(desk, kind, size, value) for kind, size in parts]

            batch = through(slots, desks[which], make)
            assert [len(part) for part in batch] == [size for _, size in parts]
            assert all(bool((part == value).all()) for part in batch)
            if fate != "drop":
                held.append((value, [PARTS[fate](part) for part in batch]))
            for index in to_drop:
                if index < len(held):
                    held.pop(index)
            if number % 10 == 9:
                held_is_right(held)
        held_is_right(held)


def held_is_right(held):
    for value, batch in held:
        assert all(bool((part == value).all()) for part in batch)


PARTS = {
    "hold": lambda part: part,
    "hold part": lambda part: part[len(part) // 2 :],
    "hold array": lambda part: part.numpy() if isinstance(part, torch.Tensor) else torch.from_numpy(part),
}


def part_of(desk, kind, size, value):
    match kind:
        case "room":
            return desk.empty((size,), torch.uint8).fill_(value)
        case "tensor":
            return torch.full((size,), value, dtype=torch.int32)
        case "array":
            return np.full(size, value, np.int16)
        case "view":
            return desk.empty((2 * size,), torch.int64).fill_(value)[size:]
        case _:
            return torch.full((size,), value, dtype=torch.uint8)[::1]


@pytest.mark.stress
def test_threads_that_take_open_and_let_go(short_switch_interval):
    slots, wrong = Slots(4), []

    def work(value):
        desk = Desk()
        held = []
        for round in range(150):
            number = (value * 37 + round) % 251
            held.append((number, through(slots, desk, filled(desk, number, 40_000))))
            if round % 3 == 2:
                wrong.extend(n for n, tensor in held if not tensor.eq(n).all())
                held.pop(round % len(held))
            if len(held) > 6:
                held.clear()
        desk.close()

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    gc.collect()
    assert len(slots._free) == 4 - len(slots._numbers)
    slots.close()
