"""Prometheus: real scrapes over HTTP, read with the client's own parsers."""

import dataclasses
import gc
import itertools
import re
import sys
import threading
import urllib.request
import weakref
from contextlib import contextmanager

import pytest
from torch.utils.data import DataLoader

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from torchstage import Stage, observe

from .feeding import Numbers, decode, loader_of, take_all

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def registry():
    return CollectorRegistry()


@contextmanager
def served(registry):
    """The address of an endpoint."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scraped(address, accept="text/plain"):
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    return {family.name: family for family in (openmetrics if accept is OPENMETRICS else plain)(text)}


def values_of(families):
    """By name and labels; each is there once."""
    samples = [sample for family in families.values() for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    assert len(values) == len(samples)
    return values


def collected(collector):
    return values_of({family.name: family for family in collector.collect()})


def value_of(values, name, **labels):
    return values[(f"torchstage_{name}", *sorted({"loader": "train", "rank": "0", **labels}.items()))]


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_a_scrape_tells_what_the_loader_did(registry, accept):
    loader = loader_of()
    registry.register(observe.PrometheusCollector({"train": loader}))
    take_all(loader)
    with served(registry) as address:
        values = values_of(scraped(address, accept))
    stats = loader.stats()
    assert value_of(values, "samples_total") == 40
    assert value_of(values, "batches_total") == 10
    assert value_of(values, "wait_seconds_total") == pytest.approx(stats.wait_seconds)
    assert value_of(values, "elapsed_seconds_total") == pytest.approx(stats.elapsed_seconds)
    assert value_of(values, "stage_samples_total", stage="decode") == 40
    assert value_of(values, "stage_busy_seconds_total", stage="decode") == pytest.approx(stats.stages[1].busy_seconds)
    assert value_of(values, "stage_threads", stage="decode") == 2
    assert value_of(values, "batch_wait_seconds_count") == 9
    assert value_of(values, "batch_wait_seconds_bucket", le="64.0") == 9
    assert value_of(values, "batch_wait_seconds_bucket", le="0.0001220703125") < 9


def test_names_types_and_texts_keep_to_the_conventions(registry):
    loader = loader_of()
    registry.register(observe.PrometheusCollector({"train": loader}))
    take_all(loader)
    families = list(plain(generate_latest(registry).decode()))
    assert len(families) > 10
    for family in families:
        assert re.fullmatch(r"torchstage(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        assert not re.search(r"milli|micro|_ms|_us|percent|_total$|_count$|_sum$", family.name)
        assert {sample.name.endswith("_total") for sample in family.samples} <= {family.type == "counter"}


def test_the_share_that_is_waiting_comes_from_two_counters(registry):
    """As docs/observe.md writes it for PromQL."""
    loader = loader_of(200)
    collector = observe.PrometheusCollector({"train": loader})
    before = collected(collector)
    take_all(loader)
    after = collected(collector)
    waited, elapsed = (
        value_of(after, name) - value_of(before, name) for name in ("wait_seconds_total", "elapsed_seconds_total")
    )
    first = loader.stats().first_batch_seconds
    assert waited / (elapsed - first) == pytest.approx(loader.stats().wait_share, abs=0.05)


def test_scrapes_while_it_loads_and_after_it_was_closed(registry):
    """Eight scrapers at once, and no counter of any of them ever goes backwards."""
    loader = loader_of(200)
    registry.register(observe.PrometheusCollector({"train": loader}))
    is_over, series = threading.Event(), [[] for _ in range(8)]

    def scrape(seen):
        while not is_over.is_set():
            seen.append(values_of(scraped(address)))
        seen.append(values_of(scraped(address)))

    with served(registry) as address:
        scrapers = [threading.Thread(target=scrape, args=(seen,)) for seen in series]
        for scraper in scrapers:
            scraper.start()
        for _ in range(3):
            take_all(loader)
        is_over.set()
        for scraper in scrapers:
            scraper.join()
    for seen in series:
        for before, after in itertools.pairwise(seen):
            gone_back = [
                key for key in before if re.search("_total|_bucket|_count|_sum", key[0]) and after[key] < before[key]
            ]
            assert gone_back == []
        assert value_of(seen[-1], "samples_total") == 600
        assert value_of(seen[-1], "batches_in_flight") == 0


class Restless:
    """A loader whose shared-out times wobble."""

    def __init__(self, loader):
        self.loader, self.factor = loader, 1.0

    def stats(self, since=None):
        record = self.loader.stats()
        stages = tuple(dataclasses.replace(one, busy_seconds=one.busy_seconds * self.factor) for one in record.stages)
        found = dataclasses.replace(record, stages=stages, wait_seconds=record.wait_seconds * self.factor)
        object.__setattr__(found, "_kept", record._kept)
        return found


def test_a_counter_waits_where_it_would_go_backwards():
    loader = loader_of()
    take_all(loader)
    restless = Restless(loader)
    collector = observe.PrometheusCollector({"train": restless})
    seen = []
    for restless.factor in (1.0, 0.9, 1.1):
        values = collected(collector)
        seen.append(
            (
                value_of(values, "wait_seconds_total"),
                value_of(values, "batch_wait_seconds_sum"),
                value_of(values, "stage_busy_seconds_total", stage="decode"),
            )
        )
    assert seen[0] == seen[1]
    assert seen[2] == pytest.approx([1.1 * value for value in seen[0]])


def test_several_loaders_have_a_label_each():
    train, val = loader_of(), loader_of(8)
    collector = observe.PrometheusCollector({"train": train, "val": val})
    take_all(train)
    take_all(val)
    values = collected(collector)
    assert value_of(values, "samples_total") == 40
    assert value_of(values, "samples_total", loader="val") == 8
    assert value_of(collected(observe.PrometheusCollector(val)), "samples_total", loader="") == 8


def test_the_rank_is_a_label(monkeypatch):
    loader = loader_of()
    monkeypatch.setenv("RANK", "5")
    assert value_of(collected(observe.PrometheusCollector({"train": loader})), "samples_total", rank="5") == 0
    assert value_of(collected(observe.PrometheusCollector({"train": loader}, rank=2)), "samples_total", rank="2") == 0


def test_stages_of_one_name_are_told_apart():
    def collate(value):
        return value

    loader = loader_of(8, Stage(collate))
    take_all(loader)
    values = collected(observe.PrometheusCollector({"train": loader}))
    assert value_of(values, "stage_samples_total", stage="collate") == 8
    assert value_of(values, "stage_samples_total", stage="collate_2") == 8


def test_names_with_quotes_and_line_ends_come_through(registry):
    odd = 'a "b"\n\\c'
    loader = loader_of(8, Stage(decode, name=odd))
    take_all(loader)
    registry.register(observe.PrometheusCollector({odd: loader}))
    values = values_of({family.name: family for family in plain(generate_latest(registry).decode())})
    assert value_of(values, "stage_samples_total", loader=odd, stage=odd) == 8


def test_bytes_in_flight_are_there_where_they_are_measured():
    plain_loader, measured = loader_of(), loader_of(prefetch_bytes=1 << 20)
    collector = observe.PrometheusCollector({"train": plain_loader, "measured": measured})
    with plain_loader, measured:
        iterators = iter(plain_loader), iter(measured)
        for iterator in iterators:
            next(iterator)
        values = collected(collector)
        labels = [dict(key[1:])["loader"] for key in values if key[0] == "torchstage_in_flight_bytes"]
        del iterators, iterator
    assert labels == ["measured"]


def test_the_series_of_a_loader_that_is_gone_end_and_no_loader_is_kept():
    train, val = loader_of(), loader_of()
    collector = observe.PrometheusCollector({"train": train, "val": val})
    take_all(val)
    assert {dict(key[1:])["loader"] for key in collected(collector)} == {"train", "val"}
    there = weakref.ref(val)
    del val
    gc.collect()
    assert there() is None
    assert {dict(key[1:])["loader"] for key in collected(collector)} == {"train"}


def test_another_loader_takes_the_place_of_one_of_its_name():
    first, second = loader_of(), loader_of(8)
    collector = observe.PrometheusCollector()
    assert collected(collector) == {}
    for loader, num_samples in ((first, 40), (second, 8)):
        take_all(loader)
        collector.watch("train", loader)
        assert value_of(collected(collector), "samples_total") == num_samples


def test_a_registry_refuses_a_second_collector_until_the_first_is_taken_out(registry):
    collector, second = (observe.PrometheusCollector({name: loader_of()}) for name in ("train", "val"))
    registry.register(collector)
    with pytest.raises(ValueError, match="torchstage_"):
        registry.register(second)
    registry.unregister(collector)
    assert generate_latest(registry) == b""
    registry.register(second)


def test_what_is_no_stage_loader_is_refused():
    with pytest.raises(TypeError, match=r"observe\.PrometheusCollector needs a StageLoader.* 'val' is a DataLoader"):
        observe.PrometheusCollector({"val": DataLoader(Numbers())})
    with pytest.raises(TypeError, match=r"PrometheusCollector\.watch needs a StageLoader"):
        observe.PrometheusCollector().watch("val", [1])


def test_without_prometheus_client_it_says_what_to_install(monkeypatch):
    for name in ("prometheus_client", "prometheus_client.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'torchstage\[prometheus\]'"):
        observe.PrometheusCollector()
