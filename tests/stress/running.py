"""Running: a program in; each of its steps done with a real loader, and what comes compared with the model.

Guarantees: a step that does not end is reported with the stacks of all threads; after a program nothing is left of it.
"""

import copy
import gc
import json
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tests.conftest import GRACE_SECONDS, look_at_belongings
from tests.stress.around import interrupted_within, watched
from tests.stress.loaders import loader_of
from tests.stress.model import ERRORS, Epoch, Orders, Repeats, outcome_of
from tests.stress.parts import moody_of, plain
from tests.stress.program import Program

CLOSED_WORDS = ("this iterator is closed", "this iterator was closed")


class Wrong(AssertionError):  # noqa: N818  # it is one
    """Something else came than the model says."""


@dataclass
class Saved:
    state: dict[str, Any]
    orders: Orders
    begun: Repeats
    epoch: Epoch | None  # that is gone on with; None: the next one begins
    has_seed: bool  # whether its base seed is drawn: threads that are kept know it


@dataclass
class Handle:
    """An iterator, and what is known of its epoch."""

    iterator: Any
    epoch: Epoch | None = None  # None: nothing was asked for
    resumed: Epoch | None = None  # that it goes on with
    loaded: Saved | None = None  # the state that was loaded and not used up when it was made
    is_closed: bool = False
    may_lose: bool = False  # it was interrupted: what was about to be given may be lost


@dataclass
class Counts:
    """What was done, for the report."""

    programs: int = 0
    steps: int = 0
    batches: int = 0
    deeds: dict[str, int] = field(default_factory=dict)


class Run:
    """One program."""

    def __init__(self, program: Program, counts: Counts, executor: Any) -> None:
        self.program, self.spec, self.counts, self.executor = program, program.spec, counts, executor
        self.version = 0
        self.num_loaders = 0
        self.told = 0
        self.orders = Orders(self.spec)
        self.begun = Repeats()
        self.saved: list[Saved] = []
        self.pending: Epoch | None = None  # of a state that was loaded
        self._new_loader()
        self.deeds: dict[str, Callable[[int], None]] = {
            "take": lambda number: self._take(self.latest, number % 5),
            "take all": lambda number: self._take(self.latest, 1 << 30),
            "begin": lambda number: self._begin(),
            "drop": self._drop,
            "take of an old one": self._take_old,
            "save": self._save,
            "load": self._load,
            "close": self._close,
            "close from another thread": self._close_elsewhere,
            "tell the epoch": self._tell,
            "change": self._change,
            "ask for statistics": self._ask,
            "pickle": self._pickle,
            "interrupt": self._interrupt,
            "try a sample": self._try,
            "measure its length": self._measure,
            "look at the next": lambda number: self._take(self.latest, 1),
        }

    # Loaders ------------------------------------------------------------------------------------------------------

    def _new_loader(self) -> None:
        hows = self.program.hows
        self.how = hows[self.num_loaders % len(hows)]
        self.num_loaders += 1
        self.loader: Any = loader_of(self.spec, self.how, self.version, self.executor)
        self.is_generator_known = True  # it is where the model's is
        self._forget()

    def _forget(self) -> None:
        """A loader that nobody has used."""
        self.latest: Handle | None = None
        self.old: list[Handle] = []
        self.num_batches = self.num_samples = 0
        self.loaded: Saved | None = None  # a state, until something was handed out

    @property
    def _is_inline(self) -> bool:
        return self.how.num_workers == 0

    def _end(self) -> None:
        for handle in [*self.old, self.latest]:
            if handle is not None:
                handle.iterator = None
        self.latest = None
        self.loader.close()

    # Iterators ----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self.spec.order == "shuffled" and self.is_generator_known and not self.orders.follow(self.loader.generator):
            raise Wrong("the loader's generator is not where its orders have left it")

    def _begin(self) -> Handle:
        self._follow()
        is_kept = self.how.persistent and self.loader._iterator is not None
        if self.latest is not None:
            self.old = [] if self.how.persistent else [*self.old[-1:], self.latest]
        resumed = self.pending
        iterator = iter(self.loader)
        if self.loaded is not None and resumed is None and not is_kept:  # nobody has used it up
            self.orders.generator = self.loaded.orders.generator.clone_state()
            self.begun = Repeats(self.loaded.begun)
        if not is_kept and resumed is None and not (self.loaded is not None and self.loaded.has_seed):
            self.orders.draw_base_seed()
        self.latest = Handle(iterator, resumed=resumed, loaded=self.loaded)
        return self.latest

    def _first(self, handle: Handle) -> Epoch:
        """The first batch is asked for."""
        if handle.resumed is not None:
            resumed = handle.resumed
            number = resumed.number
            self.begun[number] = resumed.repeat + 1
            handle.epoch = resumed.again(self.version, is_inline=self._is_inline)
            return handle.epoch
        self._follow()
        number = self.orders.number
        batches = [] if self.spec.is_iterable else self.orders.next(is_inline=self._is_inline)
        if handle.loaded is not None:  # whoever else has used it up since
            self.begun = Repeats(handle.loaded.begun)
        repeat = self.begun.begin(number)
        handle.epoch = Epoch(self.spec, batches, number, repeat, self.version, self._is_inline)
        return handle.epoch

    def _take(self, handle: Handle | None, most: int) -> None:
        if handle is None or handle.iterator is None:
            handle = self._begin()
        for _ in range(most):
            if not self._next(handle):
                break

    def _next(self, handle: Handle) -> bool:
        """Whether there may be more."""
        if handle.iterator is None:
            return False
        epoch = handle.epoch
        if handle.is_closed:
            self._expect_closed(handle)
            return False
        if epoch is None:
            epoch = self._first(handle)
        if epoch.is_spoilt and not epoch.left:
            return False
        self.counts.batches += 1
        is_seen = handle is self.latest
        try:
            batch = next(handle.iterator)
        except StopIteration:
            if epoch.left and not (handle.may_lose and len(epoch.left) == 1):
                raise Wrong(f"the epoch ended, but {self._foreseen(epoch)} should have come") from None
            epoch.is_over = True
            epoch.left = []
        except tuple(ERRORS.values()) as error:
            self._compare(handle, epoch, outcome_of(error, epoch))
        else:
            samples = plain(batch, is_one=not self.spec.is_batched)
            self.num_batches += 1
            self.num_samples += len(samples)
            self._compare(handle, epoch, ("batch", samples))
        if is_seen:
            self.pending = self.loaded = None
            self.is_generator_known = True
        return not epoch.is_over

    def _compare(self, handle: Handle, epoch: Epoch, outcome: Any) -> None:
        in_order = self.spec.in_order or self._is_inline
        before = list(epoch.left)
        if not epoch.admits(outcome, in_order=in_order):
            if handle.may_lose and epoch.left:
                epoch.left = before[1:]
                handle.may_lose = False
                if epoch.admits(outcome, in_order=in_order):
                    return
            raise Wrong(f"came {outcome}; should have come: {self._foreseen(epoch)}")
        handle.may_lose = False

    def _foreseen(self, epoch: Epoch) -> Any:
        left = [epoch.outcomes[at] for at in epoch.left]
        return left[:3] if self.spec.in_order else left

    def _expect_closed(self, handle: Handle) -> None:
        if handle.iterator is None:
            return
        try:
            next(handle.iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if any(words in str(error) for words in CLOSED_WORDS):
                return
            raise
        if not self._is_inline and not self.spec.is_iterable:
            raise Wrong("a closed iterator gave a batch")

    def _drop(self, number: int) -> None:
        if self.latest is not None:
            if self.how.persistent:
                self.old = []
            self.latest.iterator = None
        if number % 2:
            gc.collect()

    def _take_old(self, number: int) -> None:
        self.old = [handle for handle in self.old if handle.iterator is not None]
        if self.old and not (self.spec.is_iterable and self._is_inline):
            self._take(self.old[number % len(self.old)], number % 4)

    # States -------------------------------------------------------------------------------------------------------

    def _save(self, number: int) -> None:
        state = self.loader.state_dict()
        self._follow()
        if number % 2:
            state = json.loads(json.dumps(state))
        epoch = None if self.latest is None else self.latest.epoch
        if self.pending is not None:
            epoch = self.pending
        elif self.latest is None or epoch is None:
            if self.latest is not None:  # begun, and not asked for anything: the order that it would have had
                return
            epoch = None
        if epoch is not None and (epoch.is_spoilt or (self.latest is not None and self.latest.may_lose)):
            return
        if epoch is not None:
            epoch = copy.copy(epoch)
            epoch.left = list(epoch.left)
            if not epoch.left and self._is_finished(epoch, state):
                epoch = None
        orders = copy.copy(self.orders)
        orders.generator = self.orders.generator.clone_state()
        has_seed = self.how.persistent and self.loader._iterator is not None
        if self.loaded is not None:
            has_seed = self.loaded.has_seed
        self.saved.append(Saved(state, orders, Repeats(self.begun), epoch, has_seed))

    def _is_finished(self, epoch: Epoch, state: dict[str, Any]) -> bool:
        """Whether a state tells that nothing is left. Where samples at an epoch's end may be left out, it need not know
        before the caller was told."""
        says = bool(state["is_boundary"])
        if not says and not self.spec.is_iterable and (epoch.is_over or self._all_come(epoch)):
            raise Wrong(f"the state of a finished epoch says that it goes on: {state}")
        return says

    def _all_come(self, epoch: Epoch) -> bool:
        return not epoch.num_bad and not epoch.num_filtered

    def _load(self, number: int) -> None:
        if not self.saved:
            return
        saved = self.saved[number % len(self.saved)]
        if number % 3:
            self.loader.close()
        self._end() if number % 5 == 0 else None
        self.latest, self.old = None, []
        self._new_loader()
        self.loader.load_state_dict(saved.state)
        self.orders = copy.copy(saved.orders)
        self.orders.generator = saved.orders.generator.clone_state()
        self.begun = Repeats(saved.begun)
        self.pending, self.loaded = saved.epoch, saved
        self.is_generator_known = False

    # All else -----------------------------------------------------------------------------------------------------

    def _close(self, number: int) -> None:
        self.loader.close()
        self._note_closed()

    def _note_closed(self) -> None:
        for handle in [*self.old, self.latest]:
            if handle is not None:
                handle.is_closed = True
        self.old = []
        if self.latest is not None:
            self._expect_closed(self.latest)
            self.latest.iterator = None

    def _close_elsewhere(self, number: int) -> None:
        """While the next batch is waited for, perhaps."""
        handle = self.latest
        if handle is None or handle.iterator is None or handle.epoch is None or self._is_inline or handle.is_closed:
            return
        loader = self.loader

        def close() -> None:
            time.sleep(number % 4 * 0.0005)
            loader.close()

        thread = threading.Thread(target=close, name="torchstage-test-closes")
        thread.start()
        try:
            while self._next(handle):
                pass
        except RuntimeError as error:
            if not any(words in str(error) for words in CLOSED_WORDS):
                raise
        finally:
            thread.join()
        self._note_closed()

    def _tell(self, number: int) -> None:
        """The next epoch is told, and begun."""
        if self.pending is not None or self.spec.order not in ("distributed", "elastic"):
            return
        self.told = self.orders.number = max(self.told, self.orders.number) + 1 + number % 2
        self.loader.sampler.set_epoch(self.told)
        if self.latest is not None and self.latest.epoch is None:
            self.latest.iterator = None
        self._next(self._begin())

    def _change(self, number: int) -> None:
        is_sent_once = self.how.persistent and (
            self.how.method != "thread" or any(where == "process" for _, where, _ in self.spec.stages)
        )
        has_copies = self.how.isolation == "per_thread" or self.spec.is_iterable
        if self.spec.kind == "tensors" or is_sent_once or (self.how.persistent and has_copies):
            return
        for handle in [*self.old, self.latest]:
            if handle is not None:
                handle.iterator = None
        self.old = []
        if self.latest is not None and self.latest.resumed is not None and self.pending is None:
            self.latest.resumed = None
        self.version += 1
        moody_of(self.loader.dataset).version = self.version

    def _ask(self, number: int) -> None:
        stats = self.loader.stats()
        is_lossy = any(handle is not None and handle.may_lose for handle in [*self.old, self.latest])
        if (stats.batches, stats.samples) != (self.num_batches, self.num_samples) and not is_lossy:
            raise Wrong(
                f"counted {stats.batches} batches of {stats.samples} samples; "
                f"came {self.num_batches} of {self.num_samples}"
            )
        str(stats)
        self.loader.explain()

    def _pickle(self, number: int) -> None:
        if any(where == "own" for _, where, _ in self.spec.stages) or self.loader._iterator is not None:
            return  # as DataLoader, it is not pickled while it keeps an iterator
        text = pickle.dumps(self.loader)
        self._end()
        loaded = self.loaded
        self.loader = pickle.loads(text)
        self._forget()
        self.loaded = loaded  # a copy goes on from there, too

    def _interrupt(self, number: int) -> None:
        handle = self.latest
        if handle is None or handle.iterator is None or handle.is_closed or handle.epoch is None or self._is_inline:
            return
        if handle.epoch.is_spoilt or handle.epoch.is_over:
            return
        with interrupted_within(random.Random(number)):
            try:
                self._next(handle)
            except KeyboardInterrupt:
                handle.may_lose = True
            except RuntimeError as error:
                if not any(words in str(error) for words in CLOSED_WORDS):
                    raise
        if not handle.may_lose:
            return
        try:
            self._next(handle)
        except RuntimeError as error:
            if not any(words in str(error) for words in CLOSED_WORDS):
                raise
            handle.is_closed = True
            handle.iterator = None
            handle.may_lose = False

    def _try(self, number: int) -> None:
        spec = self.spec
        if spec.is_iterable or spec.has_draws:
            return
        index = number % len(spec.moods)
        epoch = Epoch(spec, [[index]], 0, 0, self.version, is_inline=True)
        if epoch._mood(index) == 0:
            value = tuple(map(int, self.loader.sample(index).value))
            if value != epoch._sample(index):
                raise Wrong(f"sample {index} is {value}, not {epoch._sample(index)}")

    def _measure(self, number: int) -> None:
        if self.spec.is_iterable:
            return
        orders = copy.copy(self.orders)
        orders.generator = self.orders.generator.clone_state()
        orders.spec = replace(self.spec, on_error="raise")  # the sampler's, whatever becomes of its samples
        if len(self.loader) != len(orders.next(is_inline=True)):
            raise Wrong(f"its length is {len(self.loader)}")

    def all(self) -> None:
        try:
            for deed, number in self.program.steps:
                self.counts.steps += 1
                self.counts.deeds[deed] = self.counts.deeds.get(deed, 0) + 1
                with watched(f"{deed} {number}"):
                    self.deeds[deed](number)
            with watched("the end"):
                self._ask(0)
        finally:
            with watched("the last close"):
                self._end()


# Around a program ------------------------------------------------------------------------------------------------


def run(program: Program, counts: Counts | None = None) -> None:
    """Do all of it. Raises Wrong, Hung, or what nobody foresaw."""
    counts = Counts() if counts is None else counts
    before = look_at_belongings()
    interval = sys.getswitchinterval()
    if program.interval is not None:
        sys.setswitchinterval(program.interval)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        executor = None
        if any(where == "own" for _, where, _ in program.spec.stages):
            executor = ThreadPoolExecutor(2)
        try:
            Run(program, counts, executor).all()
        finally:
            sys.setswitchinterval(interval)
            if executor is not None:
                executor.shutdown()
    counts.programs += 1
    for one in told:
        if issubclass(one.category, RuntimeWarning | ResourceWarning):
            raise Wrong(f"warned: {one.message}")
    with watched("what is left"):
        deadline = time.monotonic() + GRACE_SECONDS
        while leaks := look_at_belongings().gained_since(before):
            if time.monotonic() > deadline:
                raise Wrong("left behind: " + "; ".join(leaks))
            gc.collect()
            time.sleep(0.01)
