"""Life and death after a fork: threads stay behind in the parent; the child knows, and can start its own."""

import pytest

pytest_plugins = "outside"

FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer: the script forks with threads, not we

def in_child(story, seconds=10):
    \"\"\"Run a function in a forked child that ends as interpreters end. Returns its exit status.\"\"\"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        story()
        print("child ends", flush=True)
        sys.exit()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "killed, because it hung"

def flat(batches):
    return [value for batch in batches for value in batch.tolist()]

"""


def test_a_forked_child_is_told_and_ends_while_the_parent_goes_on(outside):
    ended = outside.run(
        FORK
        + """
iterator = iter(StageLoader(Numbers(200, seconds=0.002), batch_size=4, num_workers=2))
first = next(iterator).tolist()

def story():
    for _ in range(2):
        try:
            next(iterator)
        except RuntimeError as error:
            print(str(error).partition(",")[2], flush=True)

status = in_child(story)
assert status == 0, status
assert first + flat(iterator) == list(range(200))
print("parent ends", flush=True)
"""
    )
    ended.assert_quiet()
    told = " or belongs to the process that this one was forked from. Call iter(loader) for a new one.\n"
    assert ended.out == 2 * told + "child ends\nparent ends\n"


STORIES = """
loader = StageLoader(Numbers(200, seconds=0.001), batch_size=4, num_workers=2, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)

def leaves_everything_as_it_is():
    pass

def drops_the_iterator():
    global iterator
    iterator = None

def closes_the_loader():
    loader.close()

def collects_garbage():
    global iterator, loader
    iterator = loader = None
    gc.collect()

def uses_a_loader_of_its_own():
    assert flat(StageLoader(Numbers(40), num_workers=2)) == list(range(40))

def uses_the_same_loader_again():
    assert flat(loader) == list(range(200))

def uses_the_same_dataset_inline():
    assert flat(StageLoader(loader.dataset, batch_size=4)) == list(range(200))

def uses_worker_processes():
    assert flat(DataLoader(Numbers(8), num_workers=1)) == list(range(8))

for story in ({stories}):
    status = in_child(story)
    assert status == 0, (story, status)
assert len(flat(iterator)) == 196
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_whatever_a_forked_child_does_it_does_not_hang_and_the_parent_goes_on(persistent, outside):
    stories = [line[4:].partition("(")[0] for line in STORIES.splitlines() if line.startswith("def ")]
    ended = outside.run(FORK + STORIES.format(persistent=persistent, stories=", ".join(stories)))
    ended.assert_quiet()


def test_a_process_of_multiprocessing_uses_a_loader_while_the_parents_threads_run(outside):
    ended = outside.run(
        FORK
        + """
loader = StageLoader(Numbers(200, seconds=0.001), batch_size=4, num_workers=2)
context = multiprocessing.get_context("fork")

def work(connection):
    connection.send((flat(loader), multiprocessing.active_children()))

iterator = iter(loader)
for _ in range(3):
    next(iterator)
    mine, its = context.Pipe()
    process = context.Process(target=work, args=(its,))
    process.start()
    assert mine.recv() == (list(range(200)), [])
    process.join()
    assert process.exitcode == 0
assert len(flat(iterator)) == 188
"""
    )
    ended.assert_quiet()


def test_a_child_may_use_a_dataset_that_was_in_use_when_it_was_forked(outside):
    """A thread of the parent had the guard's lock just then. In the child nobody would give it back."""
    ended = outside.run(
        FORK
        + """
class WithFile(Numbers):
    def __init__(self):
        super().__init__(8)
        self.file = open(os.devnull)
        self.is_inside, self.let_go = threading.Event(), threading.Event()
    def __getitem__(self, index):
        if index == 5 and not self.let_go.is_set():
            self.is_inside.set()
            self.let_go.wait()
        return index

dataset = WithFile()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    iterator = iter(StageLoader(dataset, batch_size=4, num_workers=2))
    next(iterator)
dataset.is_inside.wait()

def story():
    dataset.let_go.set()
    warnings.simplefilter("ignore")
    assert flat(StageLoader(dataset, batch_size=4)) == list(range(8))

status = in_child(story, seconds=3)
dataset.let_go.set()
assert status == 0, status
"""
    )
    ended.assert_quiet()


def test_threads_of_the_parent_live_on_after_many_forks(outside):
    ended = outside.run(
        FORK
        + """
iterator = iter(StageLoader(Numbers(400), batch_size=4, num_workers=2))
seen = []
for number, batch in enumerate(iterator):
    seen += batch.tolist()
    if number % 10 == 0:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
assert seen == list(range(400))
"""
    )
    ended.assert_quiet()
