"""Errors between processes: they are the job's, whatever they are, and the processes go on."""

import threading

import pytest
from processes_programs import Running, call, double, touch
from test_failures import OtherArguments, WithLock

from torchstage.executors.failures import ElsewhereTraceback
from torchstage.executors.processes import NotPicklable, Processes


class Unfit:
    """It can be sent, and not made again."""

    def __reduce__(self):
        return refuse, ()


def refuse():
    raise LookupError("not here")


def lambda_inside():
    return {"fine": 1, "fn": [lambda: 0]}


def unfit_inside():
    return [Unfit()]


def fail(kind, *arguments, **more):
    raise kind(*arguments, **more)


def deep():
    return deep()


def typo():
    raise OtherArguments("a.py", 3, reason="typo")


@pytest.fixture
def processes(hire):
    processes = hire(call, num_processes=1)
    yield processes
    assert processes.submit((abs, -3)).result() == 3  # the same process is well


@pytest.mark.parametrize(
    "job",
    [
        (fail, ValueError, "bad sample"),
        (fail, StopIteration, 3),
        (fail, KeyboardInterrupt),
        (fail, SystemExit, 4),
        (fail, GeneratorExit),
        (fail, MemoryError),
        (fail, WithLock, "held"),
        (fail, ExceptionGroup, "several", [ValueError("a")]),
    ],
    ids=lambda job: job[1].__name__,
)
def test_an_error_is_the_futures_of_the_same_type(processes, job):
    error = processes.submit(job).exception()
    assert type(error) is job[1]
    assert isinstance(error.__cause__, ElsewhereTraceback)
    assert "in fail" in str(error.__cause__)


def test_an_error_of_too_deep_a_recursion_comes_back(processes):
    assert type(processes.submit((deep,)).exception()) is RecursionError


def test_an_error_whose_init_takes_other_arguments_comes_back(processes):
    error = processes.submit((typo,)).exception()
    assert (type(error), error.reason) == (OtherArguments, "typo")


def test_a_result_that_cannot_be_pickled_is_the_jobs_error_and_named(processes):
    error = processes.submit((lambda_inside,)).exception()
    assert type(error) is NotPicklable
    assert error.path == "result['fn'][0]"
    assert "a lambda at" in str(error)


def test_a_result_that_cannot_be_made_again_in_the_parent_is_the_jobs_error(processes):
    error = processes.submit((unfit_inside,)).exception()
    assert (type(error), str(error)) == (LookupError, "'not here'") or str(error) == "not here"
    assert "where the parent opens" in error.__notes__[0]


def test_a_job_that_cannot_be_pickled_is_refused_where_it_is_submitted(processes):
    with pytest.raises(Exception, match=r"pickle"):
        processes.submit(threading.Lock())


def test_a_job_that_cannot_be_made_again_is_its_own_error(processes):
    assert type(processes.submit((touch, Unfit())).exception()) is LookupError


def test_a_program_that_cannot_be_pickled_is_named_before_anything_starts(nursery):
    processes = Processes(1)
    with pytest.raises(NotPicklable, match=r"dataset\.transforms\[1\] is a lambda at .*test_processes_errors"):
        processes.send(Running(double, Data([len, lambda: 0])), {"dataset": Data([len, lambda: 0])})
    assert processes._staff._thread is None
    processes.shutdown()


class Data:
    def __init__(self, transforms):
        self.transforms = transforms


def test_a_program_that_cannot_be_made_again_is_the_error_of_its_jobs(hire):
    processes = hire(double, Unfit())
    error = processes.submit(1).exception()
    assert type(error) is LookupError
    processes.send(Running(double), {})
    assert processes.submit(1).result() == 2
