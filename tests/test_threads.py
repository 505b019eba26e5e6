"""Threads: what user code sees of the loader thread that it runs in, and that nobody else sees any of it."""

import contextlib
import contextvars
import gc
import random
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info  # before torchstage, as users do
from torch.utils.data._utils.worker import WorkerInfo
from watching import loader_threads, seconds_until, seconds_until_no_loader_thread

from torchstage import StageLoader

pytest_plugins = "outside"

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # 4 threads on few cores
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # torch's own workers
]

PATIENCE_SECONDS = 20.0


class Seen(Dataset):
    """Each sample is what a function returns when it is called where samples are made."""

    def __init__(self, look, length=64):
        self.look = look
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.look()


def seen(look, num_workers=4, **arguments) -> list:
    """What the function returned in the loader's threads, sample by sample."""
    loader = StageLoader(Seen(look), num_workers=num_workers, batch_size=8, collate_fn=list, **arguments)
    return [value for batch in loader for value in batch]


# Worker info -----------------------------------------------------------------------------------------------


def test_a_loader_thread_has_torchs_own_worker_info():
    dataset = Seen(get_worker_info)
    generator = torch.Generator().manual_seed(7)
    loader = StageLoader(dataset, num_workers=4, batch_size=8, collate_fn=list, generator=generator)
    iterator = iter(loader)
    base_seed = iterator._base_seed
    infos = [info for batch in iterator for info in batch]
    assert {type(info) for info in infos} == {WorkerInfo}
    assert {info.id for info in infos} <= set(range(4))
    for info in infos:
        assert info.num_workers == 4
        assert info.seed == base_seed + info.id
        assert info.dataset is dataset
        assert getattr(info, "worker_method", "thread") == "thread"


def test_a_threads_info_stays_the_same():
    by_thread: dict[str, set[int]] = {}
    for name, number in seen(lambda: (threading.current_thread().name, get_worker_info().id)):
        by_thread.setdefault(name, set()).add(number)
    assert all(numbers == {int(name.rpartition("-")[2])} for name, numbers in by_thread.items())


def test_other_threads_have_none_before_meanwhile_and_after():
    others = []

    def look():
        thread = threading.Thread(target=lambda: others.append(get_worker_info()))
        thread.start()
        thread.join()
        return get_worker_info() is not None

    assert get_worker_info() is None
    iterator = iter(StageLoader(Seen(look), num_workers=2, collate_fn=list))
    assert next(iterator) == [True]
    assert get_worker_info() is None
    del iterator
    seconds_until_no_loader_thread()
    assert get_worker_info() is None
    assert set(others) == {None}


def test_inline_there_is_no_worker():
    assert set(seen(get_worker_info, num_workers=0)) == {None}


def test_every_reference_to_the_function_answers():
    import torch.utils.data._utils.worker as worker

    def look():
        return {ask().id for ask in (get_worker_info, worker.get_worker_info, torch.utils.data.get_worker_info)}

    assert all(len(numbers) == 1 for numbers in seen(look))


def test_an_idle_thread_does_not_keep_the_dataset_alive():
    dataset = Seen(get_worker_info, 8)
    is_gone = weakref.ref(dataset)
    loader = StageLoader(dataset, num_workers=2, collate_fn=len, persistent_workers=True)
    assert len(list(loader)) == 8
    assert loader_threads()
    del dataset, loader
    seconds_until(lambda: gc.collect() >= 0 and is_gone() is None)
    seconds_until_no_loader_thread()


def test_a_collate_function_of_the_users_sees_its_thread():
    loader = StageLoader(range(8), num_workers=2, collate_fn=lambda samples: get_worker_info().num_workers)
    assert list(loader) == [2] * 8


def test_in_a_worker_process_torch_answers():
    list(StageLoader(range(4), num_workers=2))  # installs the answers
    (info,) = next(iter(DataLoader(Seen(get_worker_info), num_workers=1, collate_fn=list)))
    assert (info.id, info.num_workers) == (0, 1)
    assert getattr(info, "worker_method", None) != "thread"


def test_in_a_worker_process_that_a_loader_thread_started_torch_answers(outside):
    """A dataset whose samples are made by a DataLoader of its own."""
    ended = outside.run("""
        import warnings
        from torch.utils.data import get_worker_info
        warnings.simplefilter("ignore")

        class Inner(Numbers):
            def __getitem__(self, index):
                return get_worker_info().num_workers

        class Outer(Numbers):
            def __getitem__(self, index):
                return next(iter(DataLoader(Inner(8), num_workers=1))).item()

        print(next(iter(StageLoader(Outer(4), num_workers=2))).item())
    """)
    assert (ended.out, ended.err, ended.status) == ("1\n", "", 0)


def test_a_loader_inside_a_loader_thread_has_its_own_info():
    def look():
        inner = StageLoader(Seen(get_worker_info, 1), num_workers=1, collate_fn=list)
        ((info,),) = list(inner)
        return info.num_workers, get_worker_info().num_workers

    assert set(seen(look, num_workers=2)) == {(1, 2)}


def test_the_initial_seed_is_the_threads_own():
    main_seed = torch.initial_seed()
    assert all(seen(lambda: torch.initial_seed() == get_worker_info().seed))
    assert torch.initial_seed() == main_seed


# Batches are made in this process --------------------------------------------------------------------------


def test_default_collate_uses_no_shared_memory():
    """In a worker process it would collate into shared memory, which a batch that stays here does not need."""
    shared_memory = Path("/dev/shm")
    before = set(shared_memory.iterdir()) if shared_memory.exists() else set()

    def collate(samples):
        return default_collate(samples)  # also where a user calls it

    for collate_fn in (None, collate):
        for batch in StageLoader([torch.ones(1000)] * 16, batch_size=4, num_workers=2, collate_fn=collate_fn):
            assert not batch.is_shared()
            assert batch.shape == (4, 1000)
    assert (set(shared_memory.iterdir()) if shared_memory.exists() else set()) <= before


# Cores -----------------------------------------------------------------------------------------------------


def test_torch_uses_one_core_in_a_loader_thread_and_all_elsewhere(outside):
    """In a process of its own: the number of threads is told to torch once, before it is used."""
    ended = outside.run("""
        def in_new_thread():
            numbers = []
            thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            return numbers[0]

        class Looking(Numbers):
            def __getitem__(self, index):
                (torch.ones(200, 200) @ torch.ones(200, 200)).sum()
                return torch.get_num_threads(), in_new_thread()

        torch.set_num_threads(3)
        (torch.ones(200, 200) @ torch.ones(200, 200)).sum()
        assert (torch.get_num_threads(), in_new_thread()) == (3, 3)
        iterator = iter(StageLoader(Looking(32), batch_size=4, num_workers=2, collate_fn=list))
        assert next(iterator) == [(1, 3)] * 4
        assert (torch.get_num_threads(), in_new_thread()) == (3, 3)
        for batch in iterator:
            assert batch == [(1, 3)] * 4, batch
        assert (torch.get_num_threads(), in_new_thread()) == (3, 3)
        print("as it was")
    """)
    ended.assert_quiet()
    assert ended.out == "as it was\n"


# Modes -----------------------------------------------------------------------------------------------------


PRECISION: contextvars.ContextVar[int] = contextvars.ContextVar("precision", default=0)


def modes():
    return (
        PRECISION.get(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


@contextlib.contextmanager
def a_context_variable_set():
    token = PRECISION.set(7)
    yield
    PRECISION.reset(token)


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16),
        a_context_variable_set,
    ],
    ids=["grad", "no grad", "inference", "autocast", "autocast in halves", "context variable"],
)
def test_loader_threads_are_in_the_consumers_modes(mode):
    with mode():
        here = modes()
        assert set(seen(modes)) == {here}
        assert modes() == here
    assert set(seen(modes)) == {modes()}


def test_the_modes_are_those_of_iter():
    loader = StageLoader(Seen(torch.is_grad_enabled), num_workers=2, collate_fn=list)
    with torch.no_grad():
        iterator = iter(loader)
    assert next(iterator) == [False]
    assert torch.is_grad_enabled()


def test_threads_that_stay_enter_the_modes_of_each_epoch():
    loader = StageLoader(Seen(modes, 8), num_workers=2, collate_fn=list, persistent_workers=True)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert {value for (value,) in loader} == {modes()}
    loader.close()


# worker_init_fn --------------------------------------------------------------------------------------------


def states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


def reseed(number):
    """What Lightning and Hugging Face install: it seeds the whole process."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


@pytest.mark.parametrize("init", [lambda number: None, reseed])
def test_worker_init_fn_leaves_the_generators_as_they_were(init):
    generator = torch.Generator()  # the base seed is drawn from here, and nothing from the process's
    before = states()
    loader = StageLoader(range(64), num_workers=4, worker_init_fn=init, generator=generator)
    assert len(list(loader)) == 64
    assert states() == before


def test_worker_init_fn_runs_once_in_each_thread_one_at_a_time_while_the_consumer_waits():
    calls, inside = [], threading.Lock()

    def init(number):
        assert inside.acquire(blocking=False), "two at once"
        info = get_worker_info()
        calls.append((number, info.id, threading.current_thread().name, info.seed))
        inside.release()

    loader = StageLoader(range(64), num_workers=4, worker_init_fn=init)
    iterator = iter(loader)
    assert calls == []
    base_seed = iterator._base_seed
    assert len(list(iterator)) == 64
    assert sorted(calls) == [(n, n, f"torchstage-fetch-{n}", base_seed + n) for n in range(4)]


def test_worker_init_fn_finds_the_generators_seeded_as_in_torchs_workers(outside):
    ended = outside.run("""
        import random, warnings
        import numpy as np
        warnings.simplefilter("ignore")
        draws = multiprocessing.get_context("fork").SimpleQueue()

        def init(number):
            draws.put((number, torch.rand(()).item(), random.random(), np.random.rand(), torch.initial_seed()))

        def drawn_by(loader_class):
            torch.manual_seed(5)
            list(loader_class(Numbers(8), num_workers=2, worker_init_fn=init))
            return sorted(draws.get() for _ in range(2))

        print(drawn_by(StageLoader) == drawn_by(DataLoader))
    """)
    assert (ended.out, ended.err, ended.status) == ("True\n", "", 0)


def test_persistent_threads_are_set_up_once():
    calls = []
    with StageLoader(range(8), num_workers=2, worker_init_fn=calls.append, persistent_workers=True) as loader:
        for _ in range(3):
            list(loader)
    assert sorted(calls) == [0, 1]


def test_nothing_stays_after_close():
    loader = StageLoader(range(64), num_workers=2, worker_init_fn=reseed, persistent_workers=True)
    next(iter(loader))
    loader.close()
    assert loader_threads() == []
    assert get_worker_info() is None
    assert torch.is_grad_enabled()


# Threads as frameworks look at worker processes -------------------------------------------------------------


def test_threads_can_be_looked_at_as_workers_are():
    iterator = iter(StageLoader(range(64), num_workers=2))
    assert [worker.is_alive() for worker in iterator._workers] == [False, False]
    next(iterator)
    first, *_ = iterator._workers
    assert first.is_alive()
    assert (first.name, first.exitcode) == ("torchstage-fetch-0", None)
    iterator._shutdown_workers()
    first.join(PATIENCE_SECONDS)
    assert (first.is_alive(), first.exitcode) == (False, 0)
