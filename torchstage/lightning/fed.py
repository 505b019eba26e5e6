"""Fed: a loader of a DataModule's; what it is told about where it goes on in, the same loader's batches from there out.

Lightning may make another loader of the one that a hook returned, from its arguments, before it asks for the first
batch. So the link to the DataModule, the ``Feed``, is an argument of the loader, and a state waits there until a batch
is asked for.

Guarantees: whatever Lightning does between the hook and the first batch, the state reaches the loader that is used;
nothing is read before it has.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

from torchstage.lightning.progress import Progress
from torchstage.loader import StageLoader
from torchstage.state import state_of

NOTED = "__pl_saved_kwargs"  # where Lightning keeps the arguments that it makes another loader with
NUM_EPOCHS = "num_epochs_before"  # of a state, of a beginning: how many epochs there were before
EXHAUSTED = "is_exhausted"  # of a state: no batch is left until the loader is iterated once more


class Feed:
    """What a DataModule knows of one loader: how far training is, and what the loader has to go on with."""

    def __init__(
        self, progress: Progress, state: dict[str, Any] | None = None, num_epochs: tuple[int, int] = (0, 0)
    ) -> None:
        self.progress = progress
        self.num_epochs = num_epochs  # that the loader before this one has begun, as ``Fed.num_epochs``
        self.pending = state  # until a batch is asked for; empty: the beginning
        self.before: dict[str, Any] | None = None  # the state before the latest batch, where Lightning reads ahead
        self.is_exhausted = False  # no batch is left until the loader is iterated once more
        self.was_given = False  # Lightning's own copy of a state has come
        self.has_begun = False  # a batch was asked for, ever
        self.is_inside = False  # the latest iterator has handed out batches, or all that there were
        self.latest: tuple[int, tuple[int, int]] | None = (
            None  # how far the latest, if it has not ended, found all this
        )
        self.is_first = False  # the latest iterator is the loader's first, and began with no state
        self.on_begin: Callable[[], None] = lambda: None
        self.loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._having: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def load_into(self, loader: Any) -> bool:
        """Give the loader the state that waits, unless it has it. It waits on, for a loader that may replace this."""
        if self.pending is None or (loader in self._having and self._having[loader] is self.pending):
            return False
        loader.load_plain(self.pending)
        self._having[loader] = self.pending
        return True

    def num_epochs_of(self, loader: Any) -> tuple[int, int]:
        """Where Lightning has read ahead, and now begins again, that was no epoch."""
        has_trainer = self.progress.trainer is not None  # else nobody counts what was trained with
        if has_trainer and self.latest is not None and self.is_only_ahead:
            return self.latest[1]
        return loader.num_epochs

    def start(self) -> None:
        """Training starts. What was read ahead may have been read before Lightning had its counts from a checkpoint."""
        if self.latest is not None:
            self.latest = self.progress.num_trained, self.latest[1]

    @property
    def is_only_ahead(self) -> bool:
        """Whether nothing of the latest iterator was trained with."""
        return self.latest is not None and self.latest[0] == self.progress.num_trained

    def begin(self) -> None:
        """A batch is asked for."""
        self.is_first = not self.has_begun and self.pending is None
        self.pending = None
        self.has_begun = True
        self.is_inside = self.is_exhausted
        self.is_exhausted = False
        self.on_begin()

    def __getstate__(self) -> dict[str, Any]:  # of a copy's loaders nobody knows
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Progress(None))

    def close(self) -> None:
        for loader in list(self.loaders):
            loader.close()


class Fed:
    """Over a StageLoader class: has a ``feed``."""

    feed: Feed | None

    def __init__(self, dataset: Any, *arguments: Any, feed: Feed | None = None, **others: Any) -> None:
        self.feed = feed
        loader: Any = super()
        loader.__init__(dataset, *arguments, **others)
        if feed is not None:
            self.num_epochs = feed.num_epochs
            feed.loaders.add(self)
            # Within a hook Lightning notes what loaders are made with, of the classes that there were before the hook.
            # Was this class made in the hook, then it has noted what the class below was given: without the feed.
            vars(self).get(NOTED, {}).setdefault("feed", feed)

    def __iter__(self) -> Iterator[Any]:
        loader: Any = super()
        return loader.__iter__() if self.feed is None else FedIterator(self, self.feed, loader.__iter__)

    @property
    def num_epochs(self) -> tuple[int, int]:
        """How many epochs were begun that no sampler has a number for, and how many of readers: draws of a loader with
        a ``seed`` depend on that, so a loader that is made in place of another one counts on."""
        loader: Any = self
        return loader.num_begun[0], loader.num_lane_epochs

    @num_epochs.setter
    def num_epochs(self, value: tuple[int, int]) -> None:
        loader: Any = self
        loader.num_begun[0], loader._num_lane_epochs = value

    def plain_state(self) -> dict[str, Any]:
        """What the loader itself says."""
        loader: Any = super()
        return loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Where training is, which is not where the loader is when Lightning has read a batch ahead, or ends an epoch
        before the loader does. Empty: at the beginning."""
        if self.feed is None:
            return self.plain_state()
        return state_in_training(self, self.feed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As StageLoader's. Lightning's own copy of a state is left aside while one of the DataModule's waits."""
        feed = self.feed
        if feed is not None:
            feed.was_given = True
        if feed is None or feed.pending is None:
            self.load_plain(state_dict)

    def load_plain(self, state_dict: dict[str, Any]) -> None:
        loader: Any = super()
        state = dict(state_dict)
        is_exhausted = state.pop(EXHAUSTED, False)
        if NUM_EPOCHS in state:
            self.num_epochs = tuple(state.pop(NUM_EPOCHS))
        if self.feed is not None:
            self.feed.is_exhausted = is_exhausted
            self.feed.before = None
        if state:
            loader.load_state_dict(state)
        if "num_epochs" in state:  # of readers: else it is known when the epoch has begun, which is too late here
            vars(self)["_num_lane_epochs"] = state["num_epochs"] - (state.get("base_seed") is not None)


class FedIterator:
    """A loader's iterator, which is made when the first batch is asked for: by then a state has come, if one comes.
    Lightning calls ``iter`` more than once for some epochs; what is drawn for an epoch is drawn once all the same."""

    def __init__(self, loader: Any, feed: Feed, begin: Callable[[], Iterator[Any]]) -> None:
        self._loader = loader
        self._feed = feed
        self._begin = begin
        self._batches: Iterator[Any] | None = None
        feed.is_inside = False
        feed.load_into(loader)  # now, because Lightning tells the sampler its epoch after iter()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        feed = self._feed
        if self._batches is None:
            self._batches = self._first()
        if feed.progress.reads_ahead:
            feed.before = self._loader.plain_state()
        try:
            batch = next(self._batches)
        except StopIteration:
            feed.before = feed.latest = None
            raise
        feed.is_inside = True
        return batch

    def _first(self) -> Iterator[Any]:
        feed = self._feed
        if feed.load_into(self._loader):  # it came after iter()
            feed.progress.tell_epoch(self._loader)
        else:
            self._loader.num_epochs = feed.num_epochs_of(self._loader)
        feed.latest = feed.progress.num_trained, self._loader.num_epochs
        # Where all was handed out, the state stays with the loader, for the iterator after this one.
        batches = iter(()) if feed.is_exhausted else self._begin()
        feed.begin()
        return batches


def state_in_training(loader: Any, feed: Feed) -> dict[str, Any]:
    """The loader's state after the batches that were trained with."""
    if feed.pending is not None:  # nothing was asked for yet
        return dict(feed.pending)
    progress = feed.progress
    if feed.is_first and feed.is_only_ahead and feed.latest is not None:
        return {NUM_EPOCHS: list(feed.latest[1])}
    state = dict(feed.before) if progress.num_ahead and feed.before is not None else loader.plain_state()
    is_boundary = bool(state.get("is_boundary"))
    if progress.is_epoch_over:
        return _next_epoch(loader, state, progress.reloads_next)
    if is_boundary and feed.is_inside and not feed.is_only_ahead:  # the others of a CombinedLoader go on
        return {**state, "is_finished": False, EXHAUSTED: True}
    return state


def _next_epoch(loader: Any, state: dict[str, Any], is_made_anew: bool) -> dict[str, Any]:
    """Lightning ends the epoch here, and the next one begins at 0, though the loader may have more."""
    if not is_made_anew and state.get("is_boundary"):
        return state
    if not is_made_anew and state.get("kind") == "map":
        return state_of(loader, None)
    return {NUM_EPOCHS: list(loader.num_epochs)}


@functools.cache
def fed_class(loader_class: type[StageLoader[Any]]) -> type[Any]:
    """The loader class with a ``feed``. Its signature has every argument, since Lightning reads it."""
    signature = inspect.signature(loader_class.__init__)
    *parameters, last = signature.parameters.values()
    feed = inspect.Parameter("feed", inspect.Parameter.KEYWORD_ONLY, default=None)
    is_variadic = last.kind is inspect.Parameter.VAR_KEYWORD
    parameters = [*parameters, feed, last] if is_variadic else [*parameters, last, feed]

    def make(self: Any, dataset: Any, *arguments: Any, feed: Feed | None = None, **others: Any) -> None:
        Fed.__init__(self, dataset, *arguments, feed=feed, **others)

    cast(Any, make).__signature__ = signature.replace(parameters=parameters)
    members = {"__init__": make, "__doc__": loader_class.__doc__, "__module__": loader_class.__module__}
    return type(loader_class.__name__, (Fed, loader_class), members)
