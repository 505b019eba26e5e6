"""Placement: what is measured in, threads or processes out. Plain numbers: nothing is run here."""

from dataclasses import replace

import pytest

from torchstage.placement.choice import choice_of
from torchstage.placement.model import Costs, Method, Scene, Seen, Unit, unit_rates

MS = 1e-3


def tokenize(**named: object) -> Unit:
    """5 ms of Python."""
    return unit("tokenize", 5 * MS, 5 * MS, 4.9 * MS, **named)


def decode(**named: object) -> Unit:
    """6 ms, nearly all of it without the GIL."""
    return unit("decode", 6 * MS, 6 * MS, 0.8 * MS, **named)


def wait(**named: object) -> Unit:
    """5 ms of waiting for a disk."""
    return unit("wait", 5 * MS, 0.1 * MS, 0.1 * MS, **named)


def unit(label: str, wall: float, cpu: float, held: float | None, **named: object) -> Unit:
    return Unit((Seen(label, wall, cpu, held, 30),), **named)  # pyright: ignore[reportArgumentType]


def methods(scene: Scene) -> list[Method]:
    return [one.method for one in choice_of(scene).units]


def test_python_goes_to_processes_and_says_why() -> None:
    choice = choice_of(Scene((tokenize(),), 4, 4, batch_size=32))
    (chosen,) = choice.units
    assert chosen.method == "process"
    assert "holds the GIL" in chosen.reason
    assert choice.collate == "process"  # all before it is there
    assert choice.rate == pytest.approx(4 / (5 * MS), rel=0.05)
    assert choice.threads_rate == pytest.approx(1 / (5 * MS))  # one thread: it never has more


@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_decoding_and_waiting_stay_in_all_threads(num_cores: int) -> None:
    for one in (decode(), wait()):
        choice = choice_of(Scene((one,), 4, num_cores, batch_size=32, batch_bytes=150_000))
        assert [(unit.method, unit.max_threads) for unit in choice.units] == [("thread", None)]
        assert not choice.wants_processes
        assert choice.gain_seconds == 0


def test_what_waits_is_not_bound_by_the_cores() -> None:
    assert choice_of(Scene((wait(),), 8, 1)).rate == pytest.approx(8 / (5 * MS), rel=0.01)


def test_on_one_core_processes_gain_nothing_and_python_gets_one_thread() -> None:
    (chosen,) = choice_of(Scene((tokenize(),), 4, 1, batch_size=32)).units
    assert (chosen.method, chosen.max_threads) == ("thread", 1)
    assert "one core" in chosen.reason
    assert "one thread" in chosen.reason


def test_one_python_worker_is_a_process_for_the_sake_of_the_training_loop() -> None:
    assert methods(Scene((tokenize(),), 1, 4, batch_size=32)) == ["process"]
    assert methods(Scene((decode(),), 1, 4, batch_size=32)) == ["thread"]


def test_without_a_gil_everything_stays_in_threads() -> None:
    choice = choice_of(Scene((tokenize(), decode()), 4, 4, has_gil=False))
    assert {(unit.method, unit.max_threads) for unit in choice.units} == {("thread", None)}
    assert "no GIL" in choice.units[0].reason


def test_half_of_each_in_one_function_goes_to_processes() -> None:
    half = unit("half", 10 * MS, 10 * MS, 6.5 * MS)
    assert methods(Scene((half,), 2, 2, batch_size=32)) == ["process"]


def test_a_python_stage_after_a_decoding_one_leaves_the_threads() -> None:
    scene = Scene((decode(bytes_out=150_000), tokenize(bytes_in=150_000, bytes_out=4_000, number=0)), 2, 2, 32)
    choice = choice_of(scene)
    assert choice.units[1].method == "process"
    assert 0 in choice.moved_stages


def test_large_samples_in_the_middle_of_the_way_are_not_sent_for_a_little_python() -> None:
    bytes_each = 50_000_000
    little = unit("little", 1 * MS, 1 * MS, 1 * MS, bytes_in=bytes_each, bytes_out=bytes_each, number=0)
    scene = Scene((wait(bytes_out=bytes_each), little), 4, 4, 1, batch_bytes=bytes_each)
    assert methods(scene)[1] == "thread"


def test_bytes_that_are_not_known_are_taken_from_the_collated_batch() -> None:
    little = unit("little", 1 * MS, 1 * MS, 1 * MS, number=0)
    scene = Scene((wait(), little), 4, 4, 1, has_others=True)
    assert methods(replace(scene, batch_bytes=50_000_000))[1] == "thread"
    assert methods(replace(scene, batch_bytes=1_000))[1] == "process"


def test_cheap_samples_are_not_worth_sending() -> None:
    cheap = unit("cheap", 5e-6, 5e-6, 5e-6)
    (chosen,) = choice_of(Scene((cheap,), 2, 2, batch_size=32)).units
    assert (chosen.method, chosen.max_threads) == ("thread", 1)
    assert "costs more" in chosen.reason


def test_what_was_not_seen_stays() -> None:
    unseen = unit("unseen", 5 * MS, 5 * MS, None)
    (chosen,) = choice_of(Scene((unseen,), 2, 2, batch_size=32)).units
    assert (chosen.method, chosen.max_threads) == ("thread", None)
    assert "too little" in chosen.reason


def test_a_short_stage_that_was_not_seen_does_not_keep_its_unit() -> None:
    own = Unit((Seen("fetch", 0.1 * MS, 0.1 * MS, None), Seen("tokenize", 5 * MS, 5 * MS, 5 * MS, 30)))
    assert methods(Scene((own,), 2, 2, batch_size=32)) == ["process"]


def test_what_the_user_said_is_kept() -> None:
    choice = choice_of(Scene((tokenize(asked="thread"), decode(asked="process")), 4, 4, batch_size=32))
    assert [unit.method for unit in choice.units] == ["thread", "process"]
    assert {(unit.reason, unit.max_threads) for unit in choice.units} == {("as you said", None)}


def test_processes_that_cannot_be_used_leave_one_thread_and_say_why() -> None:
    (chosen,) = choice_of(Scene((tokenize(),), 4, 4, why_not="dataset.fn is a lambda")).units
    assert (chosen.method, chosen.max_threads) == ("thread", 1)
    assert "dataset.fn is a lambda" in chosen.reason


def test_a_dataset_that_threads_use_one_at_a_time_gains_from_processes() -> None:
    scene = Scene((decode(),), 4, 4, batch_size=32)
    assert methods(scene) == ["thread"]
    assert methods(replace(scene, is_serial=True)) == ["process"]


def test_whole_batches_are_made_in_processes_only_if_nothing_runs_elsewhere() -> None:
    scene = Scene((tokenize(),), 4, 4, batch_size=32, collate=Seen("collate", 1e-5, 1e-5, None))
    assert choice_of(scene).collate == "process"
    assert choice_of(replace(scene, has_others=True)).collate == "thread"


def test_processes_start_at_once_where_the_epoch_is_long() -> None:
    choice = choice_of(Scene((tokenize(),), 2, 2, batch_size=32))
    assert choice.pays(num_left=1_000_000, num_made=0)
    assert not choice.pays(num_left=10, num_made=10)


def test_without_a_length_they_start_when_as_much_was_lost_as_they_cost() -> None:
    """Whoever rents until the rents come to the price, and then buys, never pays more than twice the best."""
    choice = choice_of(Scene((tokenize(),), 2, 2, batch_size=32))
    due = int(choice.start_seconds / choice.gain_seconds) + 1
    assert not choice.pays(None, due - 2)
    assert choice.pays(None, due)


def test_threads_never_pay_to_leave() -> None:
    assert not choice_of(Scene((decode(),), 2, 2)).pays(10**9, 10**9)


def test_more_processes_cost_more_to_start() -> None:
    costs = Costs(nursery_seconds=1.0, process_seconds=0.5)
    assert choice_of(Scene((tokenize(),), 4, 4, costs=costs)).start_seconds == 3.0


def test_rates_of_a_unit_alone_show_what_threads_would_give_without_a_limit() -> None:
    scene = Scene((decode(), tokenize()), 4, 4)
    threads, processes = unit_rates(scene, scene.units[0])
    assert threads == pytest.approx(4 / (6 * MS))
    assert processes == pytest.approx(threads, rel=0.12)
    threads, processes = unit_rates(scene, scene.units[1])
    assert threads < 1 / (4.9 * MS) < processes


def test_nothing_measured_is_nothing_moved() -> None:
    assert choice_of(Scene((), 2, 2)).rate == float("inf")
    assert methods(Scene((unit("empty", 0.0, 0.0, 0.0),), 2, 2)) == ["thread"]
