"""The fixture that watches for leaks is itself watched: it must cry at each kind of leak, and only then.

The small test files below run in a process of their own, under a copy of our conftest.
"""

import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text()

CLEAN_TESTS = """
    import os, subprocess, sys, threading

    def test_everything_is_given_back(tmp_path):
        thread = threading.Thread(target=print, name="torchstage-clean")
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", ""], check=True)
        with open(tmp_path / "file", "w") as file:
            file.write("closed at the end of the block")

    def test_a_thread_that_ends_within_the_grace():
        threading.Timer(0.05, print).start()

    def test_a_daemon_thread_of_somebody_else():
        threading.Thread(target=threading.Event().wait, args=(5,), daemon=True).start()

    class Cycle:
        def __init__(self):
            self.descriptor = os.open(os.devnull, os.O_RDONLY)
            self.myself = self

        def __del__(self):
            os.close(self.descriptor)

    def test_what_only_a_cycle_holds():
        Cycle()
"""

THREAD_LEAKS = """
    import threading
    import pytest

    def leave_a_thread(name, daemon):
        threading.Thread(target=threading.Event().wait, args=(3,), name=name, daemon=daemon).start()

    def test_our_daemon():
        leave_a_thread("torchstage-daemon", daemon=True)

    def test_ours():
        leave_a_thread("torchstage-plain", daemon=False)

    def test_anybodys():
        leave_a_thread("anybody", daemon=False)
"""

PROCESS_AND_FILE_LEAKS = """
    import multiprocessing, os, time

    def test_worker_process():
        multiprocessing.Process(target=time.sleep, args=(3,)).start()

    def test_foreign_process():
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "3")

    def test_file(tmp_path):
        os.open(tmp_path / "forgotten.txt", os.O_CREAT | os.O_WRONLY)

    def test_pipe():
        os.pipe()

    def test_after_them():
        pass
"""

FAILED_TEST = """
    import os

    def test_it_fails(tmp_path):
        descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        assert not descriptor
"""


@pytest.fixture
def run_inside(pytester):
    """Run a test file under a copy of our conftest, with a short grace."""
    assert "GRACE_SECONDS = 5.0" in CONFTEST
    pytester.makeconftest(CONFTEST.replace("GRACE_SECONDS = 5.0", "GRACE_SECONDS = 0.3"))

    def run(body: str) -> pytest.RunResult:
        pytester.makepyfile(body)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider")

    return run


def test_what_is_given_back_is_no_leak(run_inside):
    result = run_inside(CLEAN_TESTS)
    result.assert_outcomes(passed=4)


def test_a_leaked_thread_is_reported_by_its_name(run_inside):
    result = run_inside(THREAD_LEAKS)
    result.assert_outcomes(passed=3, errors=3)
    for test, name in [
        ("test_our_daemon", "torchstage-daemon"),
        ("test_ours", "torchstage-plain"),
        ("test_anybodys", "anybody"),
    ]:
        result.stdout.fnmatch_lines([f"*ERROR at teardown of {test} *", f"*thread '{name}' is alive*"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_leaked_process_or_file_is_blamed_on_the_test_that_left_it(run_inside):
    result = run_inside(PROCESS_AND_FILE_LEAKS)
    result.assert_outcomes(passed=5, errors=4)
    for test, line in [
        ("test_worker_process", "child process *"),
        ("test_foreign_process", "child process * (sleep 3)"),
        ("test_file", "1 more open at *forgotten.txt"),
        ("test_pipe", "2 more open at pipe:*"),
    ]:
        result.stdout.fnmatch_lines(
            [f"*ERROR at teardown of {test} *", "the test left behind:", f"*{line}"], consecutive=True
        )


def test_a_failed_test_is_not_judged_for_leaks(run_inside):
    result = run_inside(FAILED_TEST)
    result.assert_outcomes(failed=1)
