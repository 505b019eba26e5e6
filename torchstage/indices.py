"""Indices: a loader's samplers and a place in their order in, indices from that place on out.

Advanced in the consumer's thread; nothing is asked of a sampler before the first ``next``.

Guarantees: a sampler that is not resumed is asked what torch asks it, when torch does; to get to a place costs no call
to the dataset; an order that is not the one that was left is an error.
"""

import copy
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sized
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from torchstage.draws import States, capture, elsewhere, put_back
from torchstage.epoch import Epoch, Resume, Snapshot
from torchstage.position import Range
from torchstage.sampling import Sampling

BATCHES_PER_SNAPSHOT = 32  # of a sampler with a state: what is replayed at most


class Indices:
    """An iterator of what the loader's samplers yield in an epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._pull: Callable[[], Any] | None = None  # None: not begun
        self._peeked: list[tuple[Any, BaseException | None]] = []
        self._undelivered: Undelivered | None = None
        self._stateful: list[tuple[str, Any]] = []  # what has a state: the sampler, its iterator
        self._num_to_snapshot = 1
        self.on_skipped: Callable[[Any], object] | None = None  # told the indices (or batches) that are not yielded
        self._places: Iterator[Any] | None = None
        if self._sampling.batch_size is None and (epoch.resume is None or epoch.resume.is_boundary):
            with epoch.stream.drawing():  # torch asks it for an iterator now; one inside its own BatchSampler later
                epoch.begun = self._states()
                number = self._sampling.epoch
                self._places = self._fresh()
                if self._sampling.epoch != number:  # it counts its epochs itself
                    epoch.number = number
            epoch.note_sampler_s_draws()

    @property
    def _sampling(self) -> Sampling:
        return self._epoch.sampling

    def __iter__(self) -> "Indices":
        return self

    def __next__(self) -> Any:
        position = self._epoch.position
        try:
            indices = self._pulled() if not self._peeked else self._take_peeked()
        except StopIteration:
            raise
        except KeyboardInterrupt:  # the user's, not the sampler's
            raise
        except BaseException:
            position.fail_to_admit()
            raise
        position.admit(self._num_places(indices), self._last_of(indices), self._num_samples(indices))
        if self._stateful:
            self._num_to_snapshot -= 1
            if not self._num_to_snapshot:
                self._num_to_snapshot = BATCHES_PER_SNAPSHOT
                self._epoch.keep(self._snapshot(position.end))
        return indices

    def peek(self, beyond: int = 0) -> bool:
        """Whether there is more, ``beyond`` so many: asks the sampler for it, if need be."""
        while len(self._peeked) <= beyond:
            try:
                self._peeked.append((self._pulled(), None))
            except StopIteration:
                return False
            except Exception as error:
                self._peeked.append((None, error))
                break
        return True

    def _take_peeked(self) -> Any:
        indices, error = self._peeked.pop(0)
        if error is None:
            return indices
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _pulled(self) -> Any:
        """The next indices. A sampler that failed often has no more, which is not the end of the epoch."""
        epoch = self._epoch
        try:
            indices = self._begin() if self._pull is None else self._pull()
        except StopIteration:
            epoch.is_exhausted = True
            raise
        except BaseException:
            epoch.is_broken = True
            raise
        epoch.is_broken = False
        return indices

    def _num_places(self, indices: Any) -> int:
        if self._undelivered is not None:
            return self._undelivered.num_passed()
        return 1 if self._sampling.batch_size is None else len(indices)

    def _num_samples(self, indices: Any) -> int:
        sampling = self._sampling
        is_batch = sampling.batch_size is not None or sampling.has_own_batches
        return len(indices) if is_batch and isinstance(indices, Sized) else 1

    def _last_of(self, indices: Any) -> Any:
        return self._sampling.name_of(indices if self._sampling.batch_size is None else indices[-1])

    # The first ---------------------------------------------------------------------------------------------------

    def _begin(self) -> Any:
        """Open the sampler, at the place where the epoch begins or goes on, and yield what is there."""
        epoch, sampling = self._epoch, self._sampling
        epoch.begin()
        if epoch.is_void:
            raise StopIteration
        resume = epoch.resume
        if resume is None or resume.is_boundary:
            if sampling.is_elastic:
                epoch.find_start()
            with epoch.stream.drawing():
                epoch.pulled = self._states()
                if self._places is None:
                    epoch.begun = epoch.pulled
                    self._places = self._fresh()
                first = self._first(self._places)
                self._note_drawn(epoch.begun)
            if not sampling.is_known and (states := epoch.stream.apart) and (pull := self._pull) is not None:
                self._pull = _Apart(pull, states, tuple(states), epoch).pull
            return first
        return self._go_on(resume)

    def _go_on(self, resume: Resume) -> Any:
        epoch, sampling = self._epoch, self._sampling
        left, passed, now = dict[str, str](), dict[str, str](), resume.now
        try:
            with elsewhere(resume.begun, sampling.kinds) as left:
                sampling.restore(resume.begun)
                epoch.begun, epoch.pulled = resume.begun, resume.pulled or resume.begun
                places = self._at(resume.low, resume.above)
                passed = {} if sampling.is_known else capture(sampling.kinds)
                first = self._first(places)
                self._note_drawn(resume.begun)
        except StopIteration:
            if passed and left != passed:
                now = left
            raise
        finally:
            if not sampling.draws_as_it_goes:
                sampling.restore(resume.now)  # also what others drew from them
            epoch.stream.follow({kind: now[kind] for kind in sampling.kinds if kind in now})
        before, pull = epoch.pulled, self._pull
        if pull is not None and not sampling.is_known and any(left[kind] != before.get(kind) for kind in left):
            self._pull = _Apart(pull, left, sampling.kinds, epoch, has_drawn=left != passed).pull
        return first

    def _note_drawn(self, before: States) -> None:
        """Of a sampler that nothing is known of: a state that is asked for at each step should not tell what it never
        touches. torch's own generator gives the next base seed."""
        if not self._sampling.is_known:
            after = capture(self._sampling.kinds)
            self._epoch.drawn = tuple(kind for kind in after if kind == "torch" or after[kind] != before.get(kind))

    def _states(self) -> States:
        return {**self._sampling.own_states(), **capture(self._sampling.kinds)}

    def _first(self, places: Iterator[Any]) -> Any:
        sampling = self._sampling
        batches = places
        if sampling.batch_size is not None:
            batches = iter(BatchSampler(_Once(places), sampling.batch_size, sampling.drop_last))
        self._pull = batches.__next__
        return next(batches)

    def _fresh(self) -> Iterator[Any]:
        """The sampler from its beginning. One that has a state was perhaps left at the end of an epoch."""
        sampling, resume = self._sampling, self._epoch.resume
        if resume is not None and resume.sampler is not None:
            return self._loaded(resume.sampler)
        if _has_state(sampling.sampler) and not sampling.is_elastic:
            self._epoch.keep(Snapshot(0, _copied(sampling.sampler), None))
        return self._opened()

    def _opened(self, keeps: Collection[str] = ()) -> Iterator[Any]:
        """``keeps``: generators of its own that its state has put where they are."""
        sampler = self._sampling.sampler
        iterator = iter(sampler)
        resume = self._epoch.resume
        if resume is not None and resume.pulled:
            self._sampling.restore({name: text for name, text in resume.pulled.items() if name not in keeps})
            put_back({kind: resume.pulled[kind] for kind in self._sampling.kinds if kind in resume.pulled})
        if self._sampling.is_elastic:  # a number says where it is
            return iterator
        self._stateful = [
            (name, one) for name, one in (("sampler", sampler), ("iterator", iterator)) if _has_state(one)
        ]
        return iterator

    def _loaded(self, snapshot: Snapshot) -> Iterator[Any]:
        sampler = self._sampling.sampler
        self._epoch.keep(snapshot)
        before = self._sampling.own_states()
        if snapshot.sampler is not None:
            sampler.load_state_dict(copy.deepcopy(snapshot.sampler))
        after = self._sampling.own_states()
        iterator: Any = self._opened([name for name in after if after[name] != before.get(name)])
        if snapshot.iterator is not None:
            iterator.load_state_dict(copy.deepcopy(snapshot.iterator))
        if snapshot.at == 0:
            return _not_empty(iterator, weakref.WeakMethod(self._opened))
        return iterator

    # From a place on -----------------------------------------------------------------------------------------------

    def _at(self, low: int, above: list[Range]) -> Iterator[Any]:
        sampling, resume = self._sampling, self._epoch.resume
        assert resume is not None
        if sampling.is_elastic:
            sampling.sampler.start_at(resume.position)
            self._epoch.find_start()
            iterator, low = self._opened(), 0
        elif (snapshot := self._snapshot_to_load()) is not None:
            iterator = self._loaded(snapshot)
            self._skip(iterator, low - snapshot.at, low)
        elif type(sampling.sampler) is SequentialSampler and self.on_skipped is None:
            iterator = iter(range(low, len(sampling.sampler)))
        else:
            iterator = self._opened()
            self._skip(iterator, low, low)
        if not above:
            return iterator
        tell = self.on_skipped
        if tell is not None and sampling.batch_size is not None:  # it is told batches
            tell = _as_batches(tell)
        self._undelivered = Undelivered(iterator, low, above, tell)
        return self._undelivered

    def _snapshot_to_load(self) -> Snapshot | None:
        """The latest; where somebody counts the indices, which may be repeated, that of the epoch's start."""
        resume = self._epoch.resume
        assert resume is not None
        start = resume.sampler_at_start
        if start is not None:
            self._epoch.keep(start)
        if self.on_skipped is None or resume.sampler is None or resume.sampler.at == 0:
            return resume.sampler
        return start

    def _skip(self, iterator: Iterator[Any], num_places: int, low: int) -> None:
        """Pass over what was handed out before, and make sure that it is what was handed out."""
        if num_places <= 0:
            return
        chunk = self._sampling.batch_size or 1
        last: list[Any] = []
        left = num_places
        if self.on_skipped is None:
            deque(islice(iterator, left - 1), maxlen=0)
            last = list(islice(iterator, 1))
        else:
            while left and (last := list(islice(iterator, min(chunk, left)))):
                left -= len(last)
                self.on_skipped(last if self._sampling.batch_size is not None else last[0])
        if not last:
            raise ValueError(
                f"StageLoader: the state is at place {low} of the sampler's order, but the {self._name} yields fewer. "
                "Resume with the dataset and the sampler that the state was saved with."
            )
        self._epoch.check_last(self._sampling.name_of(last[-1]), self._name)

    @property
    def _name(self) -> str:
        return type(self._sampling.sampler).__name__

    def _snapshot(self, at: int) -> Snapshot:
        states = {name: _copied(one) for name, one in self._stateful}
        return Snapshot(at, states.get("sampler"), states.get("iterator"))


class Undelivered:
    """An iterator without the places that were handed out out of their order."""

    def __init__(
        self, iterator: Iterator[Any], low: int, above: list[Range], on_skipped: Callable[[Any], object] | None
    ) -> None:
        self._iterator = iterator
        self._at = self._counted = low
        self._above = deque(above)
        self._on_skipped = on_skipped

    def __iter__(self) -> "Undelivered":
        return self

    def __next__(self) -> Any:
        while self._above and self._at >= self._above[0][0]:
            _, end = self._above.popleft()
            while self._at < end:
                skipped = next(self._iterator)
                self._at += 1
                if self._on_skipped is not None:
                    self._on_skipped(skipped)
        index = next(self._iterator)
        self._at += 1
        return index

    def num_passed(self) -> int:
        """How many places were passed since this was last asked."""
        num_passed, self._counted = self._at - self._counted, self._at
        return num_passed


class _Apart:
    """Pulls from a sampler that draws from the process's generators as it goes: a resumed one goes on with the draws
    that it would have made, in whatever states the process's generators are now."""

    def __init__(
        self, pull: Callable[[], Any], states: States, kinds: tuple[str, ...], epoch: Epoch, *, has_drawn: bool = False
    ) -> None:
        self._pull, self._states, self._kinds, self._epoch = pull, states, kinds, epoch
        self._has_drawn = has_drawn

    def pull(self) -> Any:
        left = self._states
        try:
            with elsewhere(self._states, self._kinds) as left:
                return self._pull()
        except StopIteration:
            if self._has_drawn or left != self._states:
                self._epoch.stream.follow(left)
            raise
        finally:
            self._has_drawn = self._has_drawn or left != self._states
            self._states = left


class _Once:
    """What torch's BatchSampler takes for a sampler."""

    def __init__(self, places: Iterator[Any]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[Any]:
        return self._places


def _not_empty(iterator: Iterator[Any], again: Callable[[], Callable[[], Iterator[Any]] | None]) -> Iterator[Any]:
    """A sampler whose state is from the end of an epoch may yield nothing once: then it is asked anew."""
    is_empty = True
    for index in iterator:
        is_empty = False
        yield index
    if is_empty and (opened := again()) is not None:
        yield from opened()


def _as_batches(tell: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda index: tell([index])


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _copied(stateful: Any) -> Any:
    return copy.deepcopy(stateful.state_dict())
