"""Failures: an exception comes out of another process as what it was, or says in words what it was."""

import pickle
import signal
import threading

import pytest

from torchstage.engine.outcome import SAMPLE, STAGE
from torchstage.executors.failures import ElsewhereTraceback, ProcessDied, packed, unpacked, why


class OtherArguments(Exception):  # noqa: N818
    """Pickle makes it again with the wrong arguments."""

    def __init__(self, path, line, *, reason):
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


class OfASystem(OSError):  # noqa: N818
    def __init__(self, url):
        super().__init__(2, "not there", "file.bin")
        self.url = url


class WithLock(ValueError):  # noqa: N818
    def __init__(self, message):
        super().__init__(message)
        self.lock, self.number = threading.Lock(), 3


class Silent(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no words")


def sent(error):
    try:
        raise error
    except BaseException as caught:
        return unpacked(pickle.loads(pickle.dumps(packed(caught))))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 3),
        KeyError("key"),
        StopIteration(4),
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
        RecursionError("deep"),
        FileNotFoundError(2, "No such file", "x.bin"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ModuleNotFoundError("No module named 'x'", name="x"),
        ProcessDied("died", 3, 44, "exit code 1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_of_the_same_type_and_says_the_same(error):
    again = sent(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    for name in ("errno", "filename", "name", "code", "value", "start"):
        assert getattr(again, name, None) == getattr(error, name, None)
    assert isinstance(again.__cause__, ElsewhereTraceback)
    assert "in sent" in str(again.__cause__)


def test_notes_and_attributes_come_along():
    error = ValueError("a")
    error.add_note("a note")
    error.index = 7
    again = sent(error)
    assert (again.__notes__, again.index) == (["a note"], 7)


def test_an_error_whose_init_takes_other_arguments_is_made_without_it():
    again = sent(OtherArguments("a.py", 3, reason="typo"))
    assert type(again) is OtherArguments
    assert (str(again), again.path, again.line, again.reason) == ("a.py:3: typo", "a.py", 3, "typo")
    again = sent(OfASystem("http://x"))
    assert (type(again), again.errno, again.filename, again.url) == (OfASystem, 2, "file.bin", "http://x")
    assert str(again) == "[Errno 2] not there: 'file.bin'"


def test_attributes_that_cannot_be_sent_are_left_out():
    again = sent(WithLock("held"))
    assert (type(again), str(again), again.number, hasattr(again, "lock")) == (WithLock, "held", 3, False)
    again = sent(ValueError("held", threading.Lock()))
    assert (type(again), again.args[0]) == (ValueError, "held")
    assert "lock" in again.args[1]


def test_a_group_has_members_of_the_same_types():
    again = sent(ExceptionGroup("several", [WithLock("held"), OtherArguments("a", 1, reason="b"), KeyError("k")]))
    assert type(again) is ExceptionGroup
    assert again.message == "several"
    assert [type(member) for member in again.exceptions] == [WithLock, OtherArguments, KeyError]


def test_a_type_that_cannot_be_found_again_becomes_words():
    class Local(Exception):  # noqa: N818
        pass

    again = sent(Local("what"))
    assert type(again) is RuntimeError
    assert "Local: what (raised in a process of the loader, and its type cannot be pickled)" in str(again)


class Fleeting(Exception):  # noqa: N818
    """Its class is there where it is raised, and not where it arrives."""


def test_what_becomes_words_still_says_where_it_was(monkeypatch):
    class Local(Exception):  # noqa: N818
        pass

    for kind in (Local, Fleeting):
        error = kind("what")
        error.add_note("a note")
        setattr(error, STAGE, "fetch")
        setattr(error, SAMPLE, 3)
        packet = pickle.dumps(packed(error))
        monkeypatch.delitem(globals(), kind.__name__, raising=False)
        again = unpacked(pickle.loads(packet))
        assert type(again) is RuntimeError
        assert vars(again) == {STAGE: "fetch", SAMPLE: 3, "__notes__": ["a note"]}


def test_an_error_that_cannot_say_anything_is_sent_all_the_same():
    assert type(sent(Silent())) is Silent


def test_causes_are_told_in_the_text():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as error:
        again = unpacked(packed(error))
    assert "KeyError: 'first'" in str(again.__cause__)


def test_each_who_raises_it_has_an_error_of_his_own():
    sent_once = packed(ValueError("a"))
    assert unpacked(sent_once) is not unpacked(sent_once)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exit code 0"),
        (-signal.SIGKILL, "signal 9 (SIGKILL): often the system is out of memory"),
        (-signal.SIGUSR1, "signal 10 (SIGUSR1)"),
        (-63, "signal 63"),
        (None, "the process that makes them was ended"),
    ],
)
def test_an_exit_code_is_said_in_words(exit_code, words):
    assert why(exit_code) == words
