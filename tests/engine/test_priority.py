"""Priority: loader threads stand back behind the training loop, and nobody else does."""

import os
import sys
import threading

import pytest
from fakes import do_nothing, pool_of

from torchstage import StageLoader
from torchstage.engine.priority import niceness

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has priorities of threads")


def priority() -> tuple[int, int]:
    thread = threading.get_native_id()
    return os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)


class Priorities:
    """The sample is the priority of the thread that makes it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return priority()


@on_linux
def test_loader_threads_are_batch_jobs_and_the_callers_thread_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("TORCHSTAGE_NICE", raising=False)
    before = priority()
    seen = {sample for batch in StageLoader(Priorities(), 4, num_workers=2, collate_fn=list) for sample in batch}
    assert seen == {(before[0], os.SCHED_BATCH)}
    assert priority() == before
    assert {sample for batch in StageLoader(Priorities(), 4, collate_fn=list) for sample in batch} == {before}


@on_linux
def test_the_environment_may_ask_for_a_lower_priority(monkeypatch):
    before = priority()
    for text in ("0", "3"):
        monkeypatch.setenv("TORCHSTAGE_NICE", text)
        batches = [*StageLoader(Priorities(), 4, num_workers=2, collate_fn=list)]
        assert {sample for batch in batches for sample in batch} == {(min(19, before[0] + int(text)), os.SCHED_BATCH)}


@on_linux
def test_a_policy_that_was_chosen_for_the_process_is_kept(monkeypatch):
    changed = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *arguments: changed.append(arguments))
    with pool_of(1, start=False) as pool:
        pool.start(1, do_nothing)
    assert changed == []


@pytest.mark.parametrize("text", ["", "-5", "20", "low"])
def test_another_word_is_an_error_before_the_first_batch(monkeypatch, text):
    monkeypatch.setenv("TORCHSTAGE_NICE", text)
    with pytest.raises(ValueError, match=r"TORCHSTAGE_NICE must be a number from 0 to 19, got '.*'"):
        niceness()
    with pytest.raises(ValueError, match="TORCHSTAGE_NICE"):
        next(iter(StageLoader(range(4), num_workers=2)))


@on_linux
def test_where_the_system_refuses_threads_run_as_all_others(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setenv("TORCHSTAGE_NICE", "10")
    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pool_of(1, start=False) as pool:
        pool.start(1, do_nothing)
    assert [*StageLoader(range(2), num_workers=1)] == [0, 1]
