"""Advice: what was measured in, the bottleneck and one sentence out."""

from dataclasses import replace

import pytest

from torchstage.advice import Busy, Crowd, Situation, advice_of


def crowd(shares, *, executor="thread", threads=4, cpu=0.0, is_home=True, mean=0.01, num_wanted=0):
    stages = [Busy(name, share, cpu * share, mean) for name, share in shares.items()]
    return Crowd(executor, threads, stages, is_home, num_wanted)


def seen(*crowds, **others):
    usual = Situation(
        crowds=crowds,
        num_steps=100,
        elapsed_seconds=10.0,
        wait_share=0.5,
        held_share=0.0,
        num_beats=50,
        late_share=0.0,
        num_cores=8,
    )
    return replace(usual, **others)


CASES = [
    ("decode", "decode is busy 97 % on 4 threads: raise num_workers.", seen(crowd({"fetch": 0.02, "decode": 0.95}))),
    (
        "decode",
        "decode is the most of 90 % busy time on 4 threads: raise num_workers.",
        seen(crowd({"fetch": 0.4, "decode": 0.5})),
    ),
    ("training", "training is the limit: 2 threads would do.", seen(crowd({"decode": 0.35}), wait_share=0.01)),
    ("training", "training is the limit: 1 thread would do.", seen(crowd({"decode": 0.01}), wait_share=0.0)),
    (
        "training",
        "training is the limit: it waits 1 % of each step for data.",
        seen(crowd({"decode": 0.6}, threads=1), wait_share=0.01),
    ),
    (
        None,
        "balanced: training waits 2 % of each step, and decode keeps 4 threads busy 90 % of the time.",
        seen(crowd({"decode": 0.9}), wait_share=0.02),
    ),
    (
        "tokenize",
        "tokenize holds the GIL, so that threads do not help: give its Stage executor='process'.",
        seen(
            Crowd("thread", 4, [Busy("fetch", 0.5, 0.2, 0.01), Busy("tokenize", 0.49, 9.5, 0.01)], is_home=True),
            late_share=0.95,
        ),
    ),
    (
        "decode",
        "decode is the most of what keeps 7.6 of 8 cores busy: more threads do not help, only less work a sample or "
        "more cores.",
        seen(crowd({"decode": 0.95}, threads=8, cpu=80.0)),
    ),
    (
        "resize",
        "resize is busy 92 % on 2 threads: raise its Stage's concurrency.",
        seen(crowd({"fetch": 0.3}), crowd({"resize": 0.92}, threads=2, is_home=False)),
    ),
    (
        "get",
        "get is busy 100 % on 64 places of its event loop: raise its Stage's concurrency.",
        seen(crowd({"decode": 0.3}), crowd({"get": 1.0}, executor="event loop", threads=64, is_home=False)),
    ),
    (
        "parse",
        "parse is busy 99 % on 3 places of its ProcessPoolExecutor: give its executor more workers, or its Stage more "
        "concurrency.",
        seen(crowd({"fetch": 0.3}), crowd({"parse": 0.99}, executor="ProcessPoolExecutor", threads=3, is_home=False)),
    ),
    (None, "Too little was seen yet: ask again after some more batches.", seen(crowd({"fetch": 0.9}), num_steps=2)),
]


@pytest.mark.parametrize(("name", "sentence", "situation"), CASES, ids=[case[1][:30] for case in CASES])
def test_what_is_the_limit_and_what_to_do(name, sentence, situation):
    assert advice_of(situation) == (name, sentence)


def test_without_a_gil_nobody_holds_it():
    situation = seen(crowd({"tokenize": 0.97}, cpu=10.0), late_share=0.95, has_gil=False)
    assert advice_of(situation)[1].endswith("raise num_workers.")


@pytest.mark.parametrize(("late_share", "cpu"), [(0.3, 10.0), (0.95, 30.0), (0.95, 0.1)])
def test_late_beats_alone_do_not_tell_of_the_gil(late_share, cpu):
    """Where other cores are at work besides, or next to nothing is done, it is not the GIL that holds threads up."""
    situation = seen(crowd({"decode": 0.97}, cpu=cpu), late_share=late_share)
    assert advice_of(situation)[1].endswith("raise num_workers.")


def test_of_few_beats_nothing_is_concluded():
    situation = seen(crowd({"decode": 0.97}, cpu=10.0), late_share=1.0, num_beats=2)
    assert advice_of(situation)[1].endswith("raise num_workers.")


def test_a_dataset_that_holds_the_gil_is_for_worker_processes():
    name, sentence = advice_of(seen(crowd({"fetch": 0.97}, cpu=10.0), late_share=0.95))
    assert name == "fetch"
    assert "worker_method='multiprocessing'" in sentence


def test_what_was_decided_of_a_stage_that_holds_the_gil_is_named():
    situation = seen(crowd({"tokenize": 0.97}, cpu=10.0), late_share=0.95, chosen={"tokenize": "it runs elsewhere."})
    assert advice_of(situation) == (
        "tokenize",
        "tokenize holds the GIL, so that threads do not help: it runs elsewhere.",
    )


def test_samples_that_cost_next_to_nothing_are_for_whole_batches():
    name, sentence = advice_of(seen(crowd({"fetch": 0.9}, mean=3e-6)))
    assert name == "fetch"
    assert sentence.startswith("fetch takes 3.0 us a sample")
    assert "__getitems__" in sentence


def test_what_one_thread_uses_at_a_time_wants_no_more_threads():
    name, sentence = advice_of(seen(crowd({"fetch": 0.97}, threads=1, num_wanted=4)))
    assert name == "fetch"
    assert "isolation" in sentence


def test_waits_with_idle_stages_name_no_stage():
    assert advice_of(seen(crowd({"fetch": 0.1})))[0] is None
    assert "prefetch_factor" in advice_of(seen(crowd({"fetch": 0.1})))[1]
    assert "too little may be in flight" in advice_of(seen(crowd({"fetch": 0.1}), held_share=0.4))[1]


def test_a_start_that_took_most_of_the_time_is_not_taken_for_batches_that_cost_unlike():
    bottleneck, sentence = advice_of(seen(crowd({"fetch": 0.1}, executor="process", threads=2), first_seconds=8.7))
    assert bottleneck is None
    assert sentence.startswith("87 % of the time went until the first batch")
    assert "prefetch_factor" not in sentence


def test_of_worker_processes_only_waits_are_known():
    of_processes = crowd({"fetch": 0.0}, executor="process")
    assert advice_of(seen(of_processes))[0] is None
    assert "raise num_workers" in advice_of(seen(of_processes))[1]
    assert advice_of(seen(of_processes, wait_share=0.0))[0] == "training"
