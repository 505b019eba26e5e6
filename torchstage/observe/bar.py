"""Bar: a loader in; a tqdm bar over its batches that tells how long training waits for them out.

Guarantees: it is tqdm's own bar and iteration: batches, their order, ``len`` and the loader's state are untouched; the
loader's iterator ends with the loop, by ``break`` or an error too; a step costs what tqdm costs.
"""

import functools
import time
import warnings
from importlib import import_module
from typing import Any

from torchstage.observe.watched import Watched, named

FRESH_SECONDS = 1.0  # the numbers are renewed no more often: asking for them takes a millisecond or two


def progress(loader: Watched, **tqdm_arguments: Any) -> Any:
    """A tqdm bar over the loader, whose postfix is the share of a step that waits for data, and the bottleneck::

        for batch in progress(loader, desc="train"):
            ...

    ``wait=37%, bottleneck=decode`` is of what was done since the bar was made. It is a bar of tqdm's, for the terminal
    or the notebook: ``bar.set_postfix(loss=...)``, ``bar.write`` and the rest are there, and what you set as postfix
    stands before it.
    ``total`` is ``len(loader)`` where there is one. Of a loader that goes on inside an epoch, say ``initial``.

    Args:
        loader: one StageLoader.
        tqdm_arguments: what ``tqdm.tqdm`` takes, by name.

    Raises ImportError without tqdm; TypeError for what is no StageLoader; KeyError for what tqdm does not know.
    """
    found = named(loader, "observe.progress")
    if list(found) != [""]:
        raise TypeError("observe.progress: one bar is of one StageLoader, got a mapping. Make a bar for each.")
    return _bar_class(_tqdm())(found[""], **tqdm_arguments)


def _tqdm() -> type[Any]:
    """The bar of a terminal or a notebook. Not ``tqdm.auto``'s, which calls ``iter`` as soon as it is made: a loader
    would begin an epoch that nobody takes."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*autonotebook")
            return import_module("tqdm.autonotebook").tqdm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tqdm":
            raise
        raise ImportError("observe.progress needs tqdm: pip install tqdm.") from error


@functools.cache
def _bar_class(tqdm: type[Any]) -> type[Any]:
    """A bar of this kind that asks its loader whenever it is drawn."""

    class StageBar(tqdm):
        def __init__(self, loader: Watched, **arguments: Any) -> None:
            self._begin = loader.stats()
            self._asked_at = float("-inf")
            self._waiting = ""
            bar: Any = super()
            bar.__init__(loader, **arguments)

        @property
        def format_dict(self) -> Any:
            """What tqdm makes the bar's text of."""
            bar: Any = super()
            found: Any = bar.format_dict
            postfix: Any = found["postfix"]
            if postfix is None or isinstance(postfix, str):  # with a bar_format of one's own it may be anything
                found["postfix"] = ", ".join(filter(None, (postfix, self._told())))
            return found

        def close(self) -> None:
            """Draw it once more, as it is at the end."""
            self._asked_at = float("-inf")
            bar: Any = super()
            bar.close()

        def _told(self) -> str:
            now = time.monotonic()
            if now - self._asked_at >= FRESH_SECONDS:
                stats = self.iterable.stats(self._begin)
                if stats.batches:
                    self._waiting = f"wait={100 * stats.wait_share:.0f}%"
                    self._waiting += f", bottleneck={stats.bottleneck}" if stats.bottleneck else ""
                self._asked_at = now
            return self._waiting

    return StageBar
