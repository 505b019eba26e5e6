"""Log: loaders in; now and then a line of what they did, in a logger of the logging module, out.

Guarantees: between two lines, a step costs a look at the clock; a logger that does not want the lines costs no more.
"""

import logging
import time

from torchstage.metrics import as_dict, is_distributed, rank
from torchstage.observe.watched import Loaders, Windows, named
from torchstage.stats import LoaderStats

LOGGER = logging.getLogger("torchstage.observe")
FROM_THE_CALLER = 3  # functions up: the line is said to come from where ``step`` or ``write`` is called


def log_line(stats: LoaderStats, name: str = "") -> str:
    """The record in a line: samples a second, the share of a step that is waiting, the bottleneck and what to do.

    Args:
        stats: what ``loader.stats()`` gave.
        name: what the line begins with; on several ranks the rank stands before it.
    """
    who = ", ".join(filter(None, (f"rank {rank()}" if is_distributed() else "", name)))
    return (
        f"{who}{': ' if who else ''}{stats.samples_per_second:.0f} samples/s, waiting {100 * stats.wait_share:.0f} % "
        f"of a step, bottleneck {stats.bottleneck or 'none'}: {stats.advice}"
    )


class Log:
    """Logs a line for each loader every so many seconds::

        log = Log(every_seconds=30)
        for batch in loader:
            ...
            log.step({"train": loader})

    The record of the logging module has all numbers as its attribute ``torchstage``, see ``observe.as_dict``, for
    formatters that write JSON.

    Args:
        logger: None: the one called "torchstage.observe".
        every_seconds: 0: at each step.
        level: at which it logs; Python shows no INFO until logging is configured.

    Raises ValueError for a number of seconds that is negative or no number.
    """

    def __init__(
        self, logger: logging.Logger | None = None, *, every_seconds: float = 10.0, level: int = logging.INFO
    ) -> None:
        if not every_seconds >= 0:
            raise ValueError(f"observe.Log: every_seconds must be 0 or more, got {every_seconds!r}.")
        self._logger = LOGGER if logger is None else logger
        self._every_seconds = every_seconds
        self._level = level
        self._windows = Windows()
        self._due = time.monotonic() + every_seconds

    def step(self, loaders: Loaders) -> None:
        """Log if it is time to: what each loader did since its last line. Call it as often as you like."""
        if time.monotonic() >= self._due:
            self._write(loaders)

    def write(self, loaders: Loaders) -> None:
        """Log now. A loader that handed out nothing since its last line has none.

        Raises TypeError for what is no StageLoader.
        """
        self._write(loaders)

    def _write(self, loaders: Loaders) -> None:
        found = named(loaders, "observe.Log")
        self._due = time.monotonic() + self._every_seconds
        if not self._logger.isEnabledFor(self._level):
            return
        for name, loader in found.items():
            stats = self._windows.next_of(loader)
            if stats.batches:
                extra = {"torchstage": {"loader": name, **as_dict(stats)}}
                self._logger.log(self._level, "%s", log_line(stats, name), extra=extra, stacklevel=FROM_THE_CALLER)
