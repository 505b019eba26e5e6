"""Prometheus: loaders by name in; what they have done, whenever a scrape asks for it, out.

Guarantees: between scrapes nothing is done, and a scrape holds up no loader; a counter never goes backwards while its
loader lives; loaders are not kept: the series of one that is gone end.
"""

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torchstage.metrics import rank, unique
from torchstage.observe.watched import Loaders, Watched, named
from torchstage.stats import LoaderStats, StageStats
from torchstage.waits import waits_of


@dataclass(frozen=True, slots=True)
class Family:
    """Of which field a metric is, its name after ``torchstage_``, whether it is a counter, and its help text."""

    field: str
    name: str
    is_counter: bool
    text: str


OF_LOADER = (
    Family("elapsed_seconds", "elapsed_seconds", True, "Wall time inside epochs."),
    Family("wait_seconds", "wait_seconds", True, "Time that training waited for batches, without each epoch's first."),
    Family("setup_seconds", "setup_seconds", True, "Time for making threads and copies ready, all epochs together."),
    Family("sampler_held_seconds", "sampler_held_seconds", True, "Time that nothing more could be begun: no room."),
    Family("batches", "batches", True, "Batches handed out."),
    Family("samples", "samples", True, "Samples handed out."),
    Family("first_batch_seconds", "first_batch_seconds", False, "Wait for the latest epoch's first batch."),
    Family("batches_in_flight", "batches_in_flight", False, "Batches begun and not yet handed out."),
    Family("bytes_in_flight", "in_flight_bytes", False, "Bytes of these, where prefetch_bytes has them measured."),
)
OF_STAGE = (
    Family("samples", "stage_samples", True, "Samples that came to the stage."),
    Family("errors", "stage_errors", True, "Samples that the stage raised an error for."),
    Family("busy_seconds", "stage_busy_seconds", True, "Time that the stage worked, all threads together."),
    Family("cpu_seconds", "stage_cpu_seconds", True, "CPU time of that, estimated by samples."),
    Family("queued", "stage_queued_samples", False, "Samples that wait for the stage."),
    Family("threads", "stage_threads", False, "Threads that the stage may run in, or samples at once."),
)
WAITS = "batch_wait_seconds"
WAITS_TEXT = "Waits of training for a batch, without each epoch's first."


class _Seen:
    """A loader, and how far its counters are."""

    def __init__(self, loader: Watched) -> None:
        self.loader = weakref.ref(loader)
        self._highest: dict[tuple[str, str], float] = {}

    def counted(self, family: str, stage: str, value: float) -> float:
        """The counter's value, no lower than before. Times that are shared out among stages by what was measured may
        be shared out a little differently the next time; a wait that goes on may count for a moment twice."""
        highest = self._highest[family, stage] = max(value, self._highest.get((family, stage), 0.0))
        return highest


class PrometheusCollector:
    """A collector for prometheus_client::

        from prometheus_client import REGISTRY, start_http_server

        REGISTRY.register(PrometheusCollector({"train": loader}))
        start_http_server(9100)

    Metrics are ``torchstage_samples_total{loader="train",rank="0"}``,
    ``torchstage_stage_busy_seconds_total{loader="train",rank="0",stage="decode"}`` and so on: ``docs/observe.md`` lists
    them. One collector has all loaders of a process; ``watch`` adds one or takes another in its place.
    ``REGISTRY.unregister(collector)`` ends it.

    Args:
        loaders: a StageLoader, whose label ``loader`` is empty, or a mapping of labels to StageLoaders.
        rank: None: that of torch.distributed or torchrun, else 0, as it is when a scrape comes.

    Raises ImportError without prometheus_client; TypeError for what is no StageLoader.
    """

    def __init__(self, loaders: Loaders | None = None, *, rank: int | None = None) -> None:
        self._families = _prometheus_client()
        self._rank = rank
        self._seen: dict[str, _Seen] = {}
        self._turn = threading.Lock()  # scrapes come in threads of their own
        for name, loader in named({} if loaders is None else loaders, "observe.PrometheusCollector").items():
            self.watch(name, loader)

    def watch(self, name: str, loader: Watched) -> None:
        """Tell of this loader by this name from now on. If another one had it, its counters begin anew, as Prometheus
        expects of a process that was started anew."""
        found = named({name: loader}, "observe.PrometheusCollector.watch")
        with self._turn:
            self._seen |= {key: _Seen(one) for key, one in found.items()}

    def describe(self) -> list[Any]:
        """The metrics without values: the registry asks, to find two that have the same name."""
        return list(self._empty().values())

    def collect(self) -> list[Any]:
        """The metrics as they are now."""
        families = self._empty()
        with self._turn:
            self._seen = {name: seen for name, seen in self._seen.items() if seen.loader() is not None}
            here = str(rank() if self._rank is None else self._rank)
            for name, seen in self._seen.items():
                loader = seen.loader()
                if loader is not None:
                    _add(families, loader.stats(), seen, [name, here])
        return list(families.values())

    def _empty(self) -> dict[str, Any]:
        counter, gauge = self._families.CounterMetricFamily, self._families.GaugeMetricFamily
        found: dict[str, Any] = {}
        for families, labels in ((OF_LOADER, ["loader", "rank"]), (OF_STAGE, ["loader", "rank", "stage"])):
            for one in families:
                kind = counter if one.is_counter else gauge
                found[one.name] = kind(f"torchstage_{one.name}", one.text, labels=labels)
        histogram = self._families.HistogramMetricFamily
        found[WAITS] = histogram(f"torchstage_{WAITS}", WAITS_TEXT, labels=["loader", "rank"])
        return found


def _add(families: Mapping[str, Any], stats: LoaderStats, seen: _Seen, labels: list[str]) -> None:
    _add_values(families, OF_LOADER, stats, seen, labels, "")
    for stage, name in zip(stats.stages, unique([stage.name for stage in stats.stages]), strict=True):
        _add_values(families, OF_STAGE, stage, seen, [*labels, name], name)
    buckets = [("+Inf" if seconds == float("inf") else str(seconds), number) for seconds, number in waits_of(stats)]
    families[WAITS].add_metric(labels, buckets, seen.counted(WAITS, "", stats.wait_seconds))


def _add_values(
    families: Mapping[str, Any],
    of: tuple[Family, ...],
    record: LoaderStats | StageStats,
    seen: _Seen,
    labels: list[str],
    stage: str,
) -> None:
    for one in of:
        value = getattr(record, one.field)
        if value is not None:
            families[one.name].add_metric(labels, seen.counted(one.name, stage, value) if one.is_counter else value)


def _prometheus_client() -> Any:
    try:
        return import_module("prometheus_client.core")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise ImportError(
            "observe.PrometheusCollector needs prometheus_client: pip install 'torchstage[prometheus]'."
        ) from error
