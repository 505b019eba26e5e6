"""Life and death of processes: a script ends as scripts end, whatever its loaders are doing just then."""

import subprocess
import sys

import pytest

pytest_plugins = "outside"

EXITS = {
    "an idle iterator in a global": """
        iterator = iter(StageLoader(Numbers(8), batch_size=4, num_workers=2))
        next(iterator)
    """,
    "a busy iterator in a global": """
        iterator = iter(StageLoader(Numbers(seconds=0.01), batch_size=4, num_workers=2))
        next(iterator)
    """,
    "an iterator that was broken out of": """
        for batch in StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2):
            break
    """,
    "an iterator in a cycle": """
        class Trainer:
            def __init__(self):
                self.myself = self
                self.iterator = iter(StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2))
        next(Trainer().iterator)
    """,
    "a loader of persistent threads": """
        loader = StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2, persistent_workers=True)
        for batch in loader:
            break
    """,
    "persistent threads after an epoch": """
        loader = StageLoader(Numbers(20), batch_size=4, num_workers=2, persistent_workers=True)
        list(loader)
    """,
    "several iterators": """
        loader = StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=3)
        iterators = [iter(loader) for _ in range(5)]
        batches = [next(iterator) for iterator in iterators]
    """,
    "threads inside torch": """
        class Heavy(Numbers):
            def __getitem__(self, index):
                return torch.rand(200, 200).mm(torch.rand(200, 200)).sum()
        iterator = iter(StageLoader(Heavy(), batch_size=4, num_workers=3))
        next(iterator)
    """,
    "more threads than cores, some of them parked": """
        class Computing(Numbers):
            def __getitem__(self, index):
                return sum(range(20_000))
        iterator = iter(StageLoader(Computing(), batch_size=8, num_workers=16))
        for _ in range(50):
            next(iterator)
    """,
    "a consumer in a thread": """
        def consume():
            for number, batch in enumerate(StageLoader(Numbers(), batch_size=4, num_workers=2)):
                if number == 100:
                    break
        threading.Thread(target=consume).start()
    """,
    "an error that nobody came to see": """
        class Broken(Numbers):
            def __getitem__(self, index):
                if index >= 4:
                    broken.set()
                    raise ValueError(index)
                return index
        broken = threading.Event()
        iterator = iter(StageLoader(Broken(), batch_size=4, num_workers=2))
        next(iterator)
        broken.wait()
    """,
    "a loader used in an exit handler": """
        import atexit
        atexit.register(lambda: list(StageLoader(Numbers(20), batch_size=4, num_workers=2)))
    """,
    "a closed loader": """
        with StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2) as loader:
            iterator = iter(loader)
            next(iterator)
    """,
}


@pytest.mark.parametrize("story", EXITS)
def test_a_script_ends_in_silence_in_the_middle_of_an_epoch_with(story, outside):
    source = EXITS[story] + "\n        gc.disable()\n        print('ended', flush=True)\n"
    ended = outside.run("import warnings; warnings.simplefilter('ignore')\n" + _dedented(source))
    ended.assert_quiet()
    assert ended.out == "ended\n"


def _dedented(source: str) -> str:
    return "\n".join(line.removeprefix("        ") for line in source.splitlines())


def test_a_consumer_in_a_daemon_thread_does_not_keep_the_script_from_ending(outside):
    """Its threads end under its feet: it may be told so, on its way out."""
    ended = outside.run("""
        begun = threading.Event()
        def consume():
            for batch in StageLoader(Numbers(10**6, seconds=0.001), batch_size=4, num_workers=2):
                begun.set()
        threading.Thread(target=consume, daemon=True).start()
        begun.wait()
    """)
    assert ended.status == 0
    ended.assert_in_time()
    assert "Fatal Python error" not in ended.err
    assert "torchstage: thread" not in ended.err


def test_a_fresh_interpreter_ends_as_well(tmp_path):
    """The others are forks of a process that has imported torch; this one is a user's."""
    script = tmp_path / "script.py"
    script.write_text(
        "from torchstage import StageLoader\n"
        "iterator = iter(StageLoader(range(1000), batch_size=4, num_workers=2))\n"
        "print(next(iterator).tolist())\n"
    )
    ended = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0, 1, 2, 3]\n", "")


LOOP = """
loader = StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2, persistent_workers={persistent})
for number, batch in enumerate(loader):
    if number == 3:
        {end}
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_sys_exit_in_the_loop_keeps_its_status(persistent, outside):
    ended = outside.run(LOOP.format(persistent=persistent, end="sys.exit(3)"))
    assert (ended.status, ended.err) == (3, "")
    ended.assert_in_time()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_in_the_loop_is_all_that_is_told(persistent, outside):
    ended = outside.run(LOOP.format(persistent=persistent, end="raise ArithmeticError('mine')"))
    assert ended.status == 1
    assert ended.err.count("Traceback") == 1
    assert ended.err.endswith("ArithmeticError: mine\n")
    ended.assert_in_time()


def test_an_error_of_the_dataset_ends_the_script_with_its_place(outside):
    ended = outside.run("""
        class Broken(Numbers):
            def __getitem__(self, index):
                if index == 13:
                    raise ValueError("broken picture")
                return index
        for batch in StageLoader(Broken(), batch_size=4, num_workers=2):
            pass
    """)
    assert ended.status == 1
    assert ended.err.count("Traceback") == 1
    assert 'raise ValueError("broken picture")' in ended.err
    assert ended.err.endswith(
        "ValueError: broken picture\ntorchstage: raised in stage 'fetch', dataset index 13, batch 3\n"
    )
    ended.assert_in_time()


def test_a_script_does_not_wait_for_samples_that_nobody_will_see(outside):
    """40 samples of 0.3 s are let in. The two that are being made are waited for, the others are not begun."""
    ended = outside.run("""
        class Told(Numbers):
            def __getitem__(self, index):
                print(index, flush=True)
                return super().__getitem__(index)

        iterator = iter(StageLoader(Told(seconds=0.3), batch_size=4, num_workers=2))
        next(iterator)
    """)
    ended.assert_quiet()
    assert 4 <= len(ended.out.split()) < 20  # six; more where the machine is busy


def test_a_script_ends_in_the_middle_of_a_loader_inside_a_loader(outside):
    ended = outside.run("""
        class Outer(Numbers):
            def __getitem__(self, index):
                if index >= 4:
                    inside.set()
                return next(iter(StageLoader(Numbers(seconds=0.1 * (index >= 4)), batch_size=4, num_workers=1)))
        inside = threading.Event()
        iterator = iter(StageLoader(Outer(), batch_size=4, num_workers=2))
        next(iterator)
        inside.wait()
    """)
    ended.assert_quiet()


@pytest.mark.timing
def test_a_thread_stuck_in_user_code_is_named_and_left_behind(outside):
    ended = outside.run("""
        class Stuck(Numbers):
            def __getitem__(self, index):
                if index == 5:
                    stuck.set()
                    time.sleep(60)
                return index
        stuck = threading.Event()
        iterator = iter(StageLoader(Stuck(), batch_size=4, num_workers=2))
        next(iterator)
        stuck.wait()
    """)
    assert ended.status == 0
    assert ended.seconds >= 5
    ended.assert_in_time()
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("torchstage: thread torchstage-fetch-")
    assert "still in stage 'fetch', dataset index 5 (batch 1)" in ended.err
    assert not ended.left_processes
