"""Inline reader: an iterable dataset in, its batches out, made by torch's own iterator in the caller's thread.

Guarantees: all is as torch does it for ``num_workers=0``; a resumed one leaves the process's random generators as they
were, but for what the dataset itself sets when it is told its state.
"""

import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch.utils.data.dataloader as torch_dataloader

from torchstage.bad import TooManyBadSamples
from torchstage.draws import PROCESS, States, elsewhere, restore
from torchstage.engine.ledger import Steps
from torchstage.errors import warn_user
from torchstage.inline_epoch import THE_DATASET, InlineEpoch, Inside
from torchstage.loader_iterator import NOTHING_LEFT, num_ranks
from torchstage.marks import Mark, has_state
from torchstage.sieve import NothingLeft, Sieve, leniency_of
from torchstage.then import AfterReading, ThenCollate

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

# torch's own, which it leaves untyped.
_Single: Any = vars(torch_dataloader)["_SingleProcessDataLoaderIter"]
_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher

INTERRUPTED = (
    "StageLoader: this iterator was interrupted on its way to where the loaded state is. Call iter(loader) for a new "
    "one, for which the state counts."
)


class Told:
    """What an inline iterator does beside making batches: it begins where its epoch does, and tells where it is."""

    _dataset_fetcher: Any
    _epoch: InlineEpoch
    _steps: Steps | None = None  # what its consumer meets; the loader gives it one

    def _follow(self, epoch: InlineEpoch, home: "StageLoader[Any]") -> None:
        self._epoch = epoch
        self._max_bad = home.max_bad_samples
        self._keeps_steps = num_ranks(None) > 1
        self._leniency = leniency_of(home.on_error, keeps_steps=self._keeps_steps)
        self._may_have_mistaken = False  # the dataset, the end of the last epoch for the beginning of this one
        epoch.look = weakref.WeakMethod(self._look)

    def _begin_at(self, make: Callable[[], Any]) -> Any:
        """The fetcher of the epoch."""
        epoch = self._epoch
        if epoch.is_over:  # there is no batch to come: the dataset is told where it is when it is read again
            return make()
        mark = None if epoch.start is None else epoch.start.mark
        epoch.opening = epoch.reader.opening(None, THE_DATASET)
        fetcher, self._may_have_mistaken = epoch.reader.open(make, mark, THE_DATASET)
        epoch.has_state = epoch.reader.has_state(fetcher)
        return fetcher

    def _sieved(self, fetcher: Any) -> Sieve:
        """Stands for torch's fetcher. Stages that torch is given as a part of ``collate_fn`` go before that."""
        then, collate_fn = None, fetcher.collate_fn
        if isinstance(collate_fn, ThenCollate):
            then, fetcher.collate_fn = AfterReading(collate_fn.then, is_timed=False), collate_fn.collate_fn
        return Sieve(fetcher, self._leniency, then)

    def _good(self, make: Callable[[], Any]) -> Any:
        """The next batch of which something is left. What is missing is counted, and reported at the end."""
        while True:
            try:
                batch = self._told(make)
            except NothingLeft:
                self._note_bad(is_left_out=True)
            except StopIteration:
                self._note_end()
                raise
            except Exception:
                with suppress(TooManyBadSamples):  # the error itself comes in the place of the batch
                    self._note_bad()
                raise
            else:
                num_made = len(self._dataset_fetcher.numbers)
                self._note_bad(num_made)
                self._epoch.bad.num_good += num_made
                return batch

    def _note_bad(self, num_coming: int = 0, *, is_left_out: bool = False) -> None:
        """Count samples that failed on the way to the batch. Raises TooManyBadSamples."""
        fetcher, known = self._dataset_fetcher, self._epoch.bad
        if fetcher is None:
            return
        known.is_cut_off |= fetcher.is_cut_off
        if fetcher.bad:
            bad, fetcher.bad = fetcher.bad, []
            known.count(bad, self._steps, self._max_bad, None, num_coming)
        if is_left_out and self._keeps_steps:
            raise TooManyBadSamples(NOTHING_LEFT + known.in_words(), tuple(known.named))

    def _note_end(self) -> None:
        epoch = self._epoch
        if not epoch.is_finished or epoch.is_reported:
            return
        self._note_bad()
        epoch.is_reported = True
        epoch.bad.check_end()
        if (report := epoch.bad.report()) is not None:
            warn_user(report)

    def _told(self, make: Callable[[], Any]) -> Any:
        """What the dataset gives next, after what is to be given once more was."""
        epoch = self._epoch
        epoch.begin()
        is_ready = False
        try:
            if epoch.is_over:
                raise StopIteration
            if self._dataset_fetcher is None:
                self._open()
            self._replay(make)
            is_ready = True
            batch = self._after_a_mistake(make)
        except StopIteration:
            if not epoch.is_torn:  # a generator that was interrupted seems to be at its end
                epoch.is_finished = epoch.reader.is_between = True
            raise
        except Exception:  # it comes in the place of the batch
            epoch.num_batches += is_ready
            raise
        except BaseException:  # Ctrl-C: no batch came
            epoch.is_torn = self._dataset_fetcher is not None
            raise
        epoch.num_batches += 1
        epoch.is_torn = False
        return batch

    def _replay(self, make: Callable[[], Any]) -> None:
        """Make the batches once more that were handed out before."""
        replay = self._epoch.replay
        if not replay.num_left():
            return
        if self._epoch.is_torn:
            raise RuntimeError(INTERRUPTED)
        with self._as_before():
            while replay.num_left():
                try:
                    make()
                except StopIteration:
                    raise replay.too_few("the dataset") from None
                except Exception:  # it was handed out, too
                    pass
                replay.made()
                replay.attend()

    def _after_a_mistake(self, make: Callable[[], Any]) -> Any:
        may_have_mistaken, self._may_have_mistaken = self._may_have_mistaken, False
        try:
            return make()
        except StopIteration:
            if not may_have_mistaken:
                raise
        known = cast(Any, self)
        arguments = known._auto_collation, known._collate_fn, known._drop_last
        self._dataset_fetcher = self._epoch.reader.open_anew(
            lambda: self._sieved(_create_fetcher(known._dataset_kind, known._dataset, *arguments)), THE_DATASET
        )
        return make()

    def _open(self) -> None:
        """Make the fetcher, where it was not made right away."""

    def _as_before(self) -> AbstractContextManager[Any]:
        """Around what was made before the state was saved: it draws what it drew then."""
        return nullcontext()

    def _draws(self) -> Any:
        """The states of the reader's own random generators."""
        return None

    def _look(self) -> Inside:
        """Where it is now."""
        epoch, fetcher = self._epoch, self._dataset_fetcher
        if fetcher is None:  # nobody has asked for a batch
            return Inside(epoch.between(), True)
        if epoch.is_torn:
            return epoch.before()
        iterator, opening = fetcher.dataset_iter, epoch.opening
        if not epoch.num_batches and not has_state(iterator) and opening is not None and opening.error is None:
            return Inside(opening, epoch.has_state)
        has_ended = bool(fetcher.ended) or getattr(iterator, "gi_frame", self) is None  # a generator after an error
        if epoch.is_over:
            return Inside(epoch.between(), epoch.has_state, True)
        if not epoch.has_state:
            return Inside(Mark(0), False, has_ended, 0 if has_ended else epoch.num_batches)
        if has_ended:
            return Inside(epoch.reader.mark(None, 0, None, THE_DATASET), True, True)
        return Inside(epoch.reader.mark(fetcher, epoch.num_batches, self._draws(), THE_DATASET), True)

    def __del__(self) -> None:
        epoch = getattr(self, "_epoch", None)  # None: it failed before it had one
        if epoch is not None and epoch.is_started and not epoch.is_finished and not sys.is_finalizing():
            epoch.left = self._look()


class InlineReader(Told, _Single):
    """``num_workers=0`` without a seed: draws come from the process's generators."""

    def __init__(self, loader: "StageLoader[Any]", home: "StageLoader[Any]") -> None:
        """``loader``: what torch's iterator is made of. ``home``: whose iterator it is."""
        self._dataset_fetcher = None
        self._before: States = {}
        epoch: InlineEpoch = home.new_reader_epoch(lambda resume, latest: InlineEpoch(home, resume, latest))
        self._follow(epoch, home)
        self._make_iterator(loader, cast(Any, home).generator)
        self._num_yielded = epoch.num_batches

    def _make_iterator(self, loader: "StageLoader[Any]", generator: Any) -> None:
        epoch = self._epoch
        known = {} if epoch.start is None else epoch.start.draws_at_start or {}
        at_start = known if isinstance(known, dict) else {}

        def make() -> Any:
            with self._drawing(at_start, generator):
                epoch.remember(generator)
                _Single.__init__(self, loader)
            self._dataset_fetcher = self._sieved(self._dataset_fetcher)
            return self._dataset_fetcher

        self._begin_at(make)
        now = {} if epoch.resume is None else epoch.resume.now
        if generator is not None and "loader" in now:
            restore(generator, now["loader"])

    @contextmanager
    def _drawing(self, at_start: States, generator: Any) -> Generator[None]:
        if not at_start:
            yield
            return
        if generator is not None and "loader" in at_start:
            restore(generator, at_start["loader"])
        with elsewhere(at_start, PROCESS) as self._before:
            yield

    def _as_before(self) -> AbstractContextManager[Any]:
        return elsewhere(self._before, PROCESS)

    def _next_data(self) -> Any:
        return self._good(partial(_Single._next_data, self))
