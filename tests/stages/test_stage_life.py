"""Life of a loader with stages: ended at any point, by anything, it leaves nothing behind; and it can be copied, sent,
and made again."""

import copy
import gc
import inspect
import pickle
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from tests.parity.compare import assert_same, story
from tests.stages.placing import FUNCTIONS, Awaited, Composed, Numbers, pair, triple
from tests.watching import loader_threads, seconds_until_no_loader_thread
from torchstage import Stage, StagedDataset, StageLoader

pytest_plugins = "outside"

LENGTH = 40
WORDS = ["t", "2 a", "a 2 x", "x t a", "a a 2"]


@pytest.mark.parametrize("num_taken", [0, 1, 3, 9, 10])
@pytest.mark.parametrize("end", ["drop", "close", "with", "consumer fails", "iter again", "shut down"])
@pytest.mark.parametrize("words", WORDS)
def test_an_epoch_that_ends_anywhere_leaves_nothing(words, end, num_taken, somewhere):
    loader = StageLoader(Numbers(LENGTH), 4, num_workers=2, stages=somewhere.stages(FUNCTIONS, words))
    iterator = iter(loader)
    assert not loader_threads()
    for _ in range(num_taken):
        next(iterator)
    if end == "close":
        loader.close()
    elif end == "with":
        with loader:
            pass
    elif end == "consumer fails":
        with pytest.raises(ZeroDivisionError):
            fail_inside(loader)
    elif end == "iter again":
        iterator = iter(loader)
        assert len(list(iterator)) == 10
    elif end == "shut down":
        iterator._shutdown_workers()
    if end in ("drop", "iter again"):
        del iterator, loader
        gc.collect()
    seconds_until_no_loader_thread()


def fail_inside(loader: StageLoader[Any]) -> None:
    with loader:
        for _ in loader:
            raise ZeroDivisionError


@pytest.mark.parametrize("num_taken", [1, 4])
def test_an_iterator_that_was_closed_says_so(num_taken, somewhere):
    loader = StageLoader(Numbers(LENGTH), 4, num_workers=2, stages=somewhere.stages(FUNCTIONS, "2 a"))
    iterator = iter(loader)
    for _ in range(num_taken):
        next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert len(list(loader)) == 10
    loader.close()


LOOPING = """
import asyncio, warnings
from concurrent.futures import ThreadPoolExecutor
from torchstage import Stage
warnings.simplefilter("ignore")  # about more threads than cores

async def wait(value):
    await asyncio.sleep(0.001)
    return value

def work(value):
    return torch.rand(32, 32).mm(torch.rand(32, 32)) + value

executor = ThreadPoolExecutor(2)
stages = [Stage(wait), Stage(work, concurrency=2), Stage(abs, executor=executor), Stage(work)]
loader = StageLoader(Numbers(200), batch_size=8, num_workers=2, stages=stages, persistent_workers={persistent})
print("ready", flush=True)
while True:
    for batch in loader:
        batch.sum()
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_ctrl_c_at_some_moment_is_one_traceback_and_the_end(persistent, outside):
    moments = random.Random(persistent)
    scripts = [outside.start(LOOPING.format(persistent=persistent)) for _ in range(4)]
    for script in scripts:
        script.wait_until_it_said("ready")
        time.sleep(moments.uniform(0, 0.2))  # the random moment
        script.send(signal.SIGINT)
    for script in scripts:
        ended = script.wait(max_seconds=20)
        assert ended.status == -signal.SIGINT, ended.err
        assert ended.err.splitlines()[-1] == "KeyboardInterrupt", ended.err
        for words in ("Fatal Python error", "torchstage: thread", "was destroyed", "never awaited"):
            assert words not in ended.err


def test_a_forked_child_makes_its_own_epochs(outside):
    ended = outside.run("""
        import asyncio, os
        from torchstage import Stage

        async def wait(value):
            await asyncio.sleep(0)
            return value

        loader = StageLoader(Numbers(20), 4, num_workers=2, stages=[Stage(wait), Stage(abs, concurrency=2)])
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except RuntimeError as error:
                assert "forked" in str(error)
                iterator = None
                assert len(list(loader)) == 5
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(list(iterator)) == 4
        loader.close()
    """)
    assert ended.status == 0, ended.err


# Copies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_loader_with_stages_can_be_copied_and_sent(is_running, again):
    stages = [Stage(triple), Stage(FUNCTIONS[1], concurrency=2), Stage(Awaited(pair))]
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "device": "cpu", "prefetch_bytes": 1000}
    with StageLoader(Numbers(LENGTH), stages=stages, **arguments) as loader:
        iterator = iter(loader)
        expected = [next(iterator)] if is_running else []
        with again(loader) as other:
            assert [stage.label for stage in other.stages] == ["triple", "label", "pair"]
            assert (other.device, other.prefetch_bytes) == ("cpu", 1000)
            batches = list(other)
        assert_same([*expected, *iterator], batches)


def test_a_loader_made_again_from_its_attributes_as_frameworks_do_is_the_same():
    arguments: dict[str, Any] = {
        "stages": (Stage(triple), Stage(FUNCTIONS[1], concurrency=2)),
        "device": "cpu",
        "prefetch_bytes": 1000,
        "num_workers": 2,
        "batch_size": 4,
    }
    loader = StageLoader(Numbers(LENGTH), **arguments)
    names = set(inspect.signature(StageLoader).parameters) - {"shuffle", "batch_sampler", "multiprocessing_context"}
    again = StageLoader(**{name: getattr(loader, name) for name in names})
    assert {name: getattr(again, name) for name in arguments} == arguments
    assert_same(list(again), list(loader))


# On the way to a device, one sample, lanes ------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("words", ["t t t", "2 a x"])
@pytest.mark.parametrize("batch_size", [4, None])
def test_on_the_device_cpu_the_batches_are_the_same(batch_size, words, num_workers, somewhere):
    arguments = {"batch_size": batch_size, "num_workers": num_workers}
    stages = somewhere.stages(FUNCTIONS, words)
    with (
        StageLoader(Numbers(LENGTH), stages=stages, **arguments) as plain,
        StageLoader(Numbers(LENGTH), stages=stages, device=torch.device("cpu"), **arguments) as loader,
    ):
        assert_same(list(loader), list(plain))


@pytest.mark.parametrize("device", ["nonsense", 3.5, "cuda:99"])
def test_a_bad_device_is_a_clear_error(device):
    with pytest.raises((RuntimeError, TypeError, ValueError)) as told:
        next(iter(StageLoader(Numbers(LENGTH), device=device)))
    assert "device" in str(told.value).lower()


class Stream(IterableDataset):
    """Numbers, shared out among the lanes."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(0, 100, 10) if info is None else range(10 * info.id, 100, 10 * info.num_workers))


def added(value: int) -> int:
    return value + 1


async def added_later(value: int) -> int:
    return value + 1


@pytest.mark.parametrize("lanes", [None, 1])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_stages_after_an_iterable_dataset(num_workers, device, batch_size, lanes, somewhere):
    stages = [Stage(added), Stage(added_later), Stage(added, executor=somewhere.executors["x"])]
    arguments: dict[str, Any] = {"num_workers": num_workers, "batch_size": batch_size, "lanes": lanes}
    with (
        StageLoader(Stream(), **arguments) as plain,
        StageLoader(Stream(), stages=stages, device=device, **arguments) as loader,
    ):
        assert_same(list(loader), [batch + 3 for batch in plain])


def bad_at_30(value: int) -> int:
    if value == 30:
        raise KeyError(value)
    return value


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_a_stage_after_an_iterable_dataset(num_workers):
    with StageLoader(Stream(), 2, num_workers=num_workers, stages=[Stage(bad_at_30)]) as loader:
        events = story(loader)
    assert [type(event) for event in events].count(KeyError) == 1
    assert type(events[1]) is KeyError


def test_stages_in_torch_s_worker_processes():
    stages = [Stage(added), Stage(added_later)]
    for dataset in (Numbers(10), Stream()):
        with StageLoader(
            dataset, 5, num_workers=1, multiprocessing_context="forkserver", stages=stages, device="cpu"
        ) as loader:
            assert torch.cat(list(loader)).tolist() == [value + 2 for value in range(0, 100, 10)]


class Bulk(StagedDataset):
    def __len__(self) -> int:
        return LENGTH

    async def fetch_many(self, indices: Any) -> list[float]:
        return [10.0 * index for index in indices]

    def decode(self, value: float) -> torch.Tensor:
        return value + torch.rand(2)


def noisy(value: Any) -> Any:
    return value + torch.rand(())


@pytest.mark.parametrize("dataset", [Numbers(LENGTH), Bulk(), Composed(Numbers(LENGTH), [noisy])])
@pytest.mark.parametrize("words", ["", "t", "2 a", "a x"])
def test_a_sample_is_what_the_loader_yields_for_its_index(words, dataset, somewhere):
    stages = somewhere.stages([noisy, noisy], words)
    with StageLoader(dataset, 1, num_workers=2, stages=stages, seed=3, collate_fn=list) as loader:
        trace = loader.sample(7)
        samples = [sample for (sample,) in loader]
        again = loader.sample(7)
    assert_same(trace.value, samples[7])
    assert_same(again.value, trace.value)
    assert [step.name for step in trace.stages][-2:][-len(stages) :] == ["noisy", "noisy-2"][
        : len(stages)
    ] or not stages
    lines = str(trace).splitlines()
    assert lines[0].split() == ["stage", "ms", "result"]
    assert len(lines) == 1 + len(trace.stages)
    assert lines[1].startswith("fetch")


def test_a_sample_of_an_iterable_dataset_is_refused_and_an_error_names_its_stage():
    with pytest.raises(TypeError, match="an iterable dataset has no sample of an index"):
        StageLoader(Stream()).sample(0)
    with StageLoader(Numbers(LENGTH), stages=[Stage(bad_at_30), Stage(Awaited(bad_at_30))]) as loader:
        with pytest.raises(KeyError) as told:
            loader.sample(3)
        assert loader.sample(4).value == 40
    assert told.value.__notes__ == ["torchstage: raised in stage 'bad_at_30', dataset index 3"]
