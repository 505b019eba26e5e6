"""Life and death by signals: Ctrl-C at any moment is one KeyboardInterrupt, and the end."""

import random
import signal
import time

import pytest

pytest_plugins = "outside"

NUM_INTERRUPTS = 60  # each takes 0.3 s
STUCK_SECONDS = 4.5  # a thread that does not end is waited for 5 s

LOOPING = """
import warnings
warnings.simplefilter("ignore")  # about more threads than cores

class Work(Numbers):
    def __getitem__(self, index):
        time.sleep(0.0005)  # fetch
        return torch.rand(32, 32).mm(torch.rand(32, 32)) + index  # decode

def collate(samples):
    return torch.stack(samples)

loader = StageLoader(
    Work(200), batch_size=8, num_workers=3, shuffle=True, collate_fn=collate, persistent_workers={persistent}
)
print("ready", flush=True)
while True:
    for batch in loader:
        batch.sum()
"""


def interrupt(script, seconds: float) -> None:
    script.wait_until_it_said("ready")
    time.sleep(seconds)  # the random moment
    script.send(signal.SIGINT)


def judge(script) -> None:
    """It must end as an interrupted script ends, and wait for no thread: that would be told."""
    ended = script.wait(max_seconds=20)
    assert ended.status == -signal.SIGINT, ended.err
    last_lines = [line for line in ended.err.splitlines() if line.startswith("KeyboardInterrupt")]
    assert last_lines == ["KeyboardInterrupt"], ended.err
    for words in ("Fatal Python error", "Exception ignored", "torchstage: thread"):
        assert words not in ended.err
    assert not ended.left_processes


@pytest.mark.stress
def test_an_interrupt_at_a_random_moment_is_one_traceback_and_the_end(outside):
    moments = random.Random(0)
    for _ in range(NUM_INTERRUPTS // 2):
        scripts = [outside.start(LOOPING.format(persistent=persistent)) for persistent in (False, True)]
        for script in scripts:
            interrupt(script, moments.uniform(0, 0.15))
        for script in scripts:
            judge(script)


@pytest.mark.parametrize("place", ["__next__", "set-up"])
def test_an_interrupt_while_the_consumer_waits(place, outside):
    script = outside.start(f"""
        def wait(*arguments):
            if {place!r} == "set-up" or arguments[-1] == 5:
                print("ready", flush=True)
                time.sleep(0.4)
            return 0

        Numbers.__getitem__ = wait
        init = wait if {place!r} == "set-up" else None
        for batch in StageLoader(Numbers(), batch_size=4, num_workers=2, worker_init_fn=init):
            pass
    """)
    interrupt(script, 0.02)
    judge(script)


@pytest.mark.timing
def test_a_second_interrupt_does_not_wait_for_a_stuck_thread(outside):
    script = outside.start("""
        class Stuck(Numbers):
            def __getitem__(self, index):
                print("ready", flush=True)
                time.sleep(60)

        for batch in StageLoader(Stuck(), batch_size=4, num_workers=1):
            pass
    """)
    interrupt(script, 0.0)
    deadline = time.monotonic() + 10
    while "KeyboardInterrupt" not in script._err.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)  # now it waits for the thread, most likely; nothing tells
    script.send(signal.SIGINT)
    begin = time.monotonic()
    ended = script.wait(max_seconds=20)
    assert time.monotonic() - begin < STUCK_SECONDS
    assert ended.status == -signal.SIGINT
    assert "Fatal Python error" not in ended.err


def test_after_an_interrupt_that_was_caught_the_epoch_goes_on(outside):
    """As in a notebook: the cell was interrupted, the iterator is still there. At most the batch at hand is lost."""
    script = outside.start("""
        iterator = iter(StageLoader(Numbers(400, seconds=0.002), batch_size=4, num_workers=2))
        print("ready", flush=True)
        seen = []
        while True:
            try:
                for batch in iterator:
                    seen.append(batch[0].item())
                break
            except KeyboardInterrupt:
                continue
        print("lost", 100 - len(seen), "ordered", seen == sorted(set(seen)), flush=True)
    """)
    interrupt(script, 0.1)
    ended = script.wait()
    assert (ended.status, ended.err) == (0, "")
    assert ended.out in ("ready\nlost 0 ordered True\n", "ready\nlost 1 ordered True\n")


def test_a_termination_signal_ends_the_process(outside):
    script = outside.start(LOOPING.format(persistent=True))
    script.wait_until_it_said("ready")
    script.send(signal.SIGTERM)
    ended = script.wait()
    assert (ended.status, ended.err) == (-signal.SIGTERM, "")
