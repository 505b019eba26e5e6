"""The file of a trace: compressed, merged, refused."""

import gzip
import json

import pytest

from torchstage import observe
from torchstage.observe.chrome import NO_THREADS

from .traced import Seen, batches_of, loader_of


def fail(batches):
    1 / 0  # noqa: B018


def test_the_context_manager_saves_at_its_end(tmp_path):
    with loader_of() as loader, observe.trace(loader, tmp_path / "trace.json", num_batches=2) as trace:
        batches_of(loader)
    seen = json.loads((tmp_path / "trace.json").read_text())
    assert trace.num_handed_out == seen["torchstage"]["batches"] == 2


def test_it_saves_also_what_was_made_before_an_error(tmp_path):
    with loader_of() as loader:  # noqa: SIM117  # what raises is the block
        with pytest.raises(ZeroDivisionError), observe.trace(loader, tmp_path / "trace.json"):
            fail([next(iter(loader))])
    assert '"step"' in (tmp_path / "trace.json").read_text()


def test_a_path_that_ends_with_gz_is_compressed(tmp_path):
    with loader_of() as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    trace.save(tmp_path / "trace.json")
    trace.save(str(tmp_path / "trace.json.gz"))
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == (tmp_path / "trace.json").read_bytes()


def test_it_can_be_saved_more_than_once_and_stays_the_same(tmp_path):
    with loader_of() as loader:
        trace = observe.Trace(loader, num_batches=2)
        batches_of(loader)
        first = trace.save(tmp_path / "first.json").read_bytes()
        batches_of(loader)
        assert trace.save(tmp_path / "second.json").read_bytes() == first


@pytest.mark.parametrize("base_ns", [1_790_857_026_000_000_000, None])
def test_a_merged_trace_is_shifted_to_the_other_ones_base(base_ns, tmp_path):
    """Old torch says no base: its times count from 1970."""
    profile = {
        "traceEvents": [{"ph": "X", "name": "op", "ts": 5.0, "dur": 1.0, "pid": 1, "tid": 1}],
        "schemaVersion": 1,
    }
    if base_ns is not None:
        profile["baseTimeNanoseconds"] = base_ns
    with gzip.open(tmp_path / "profile.json.gz", "wt") as file:
        json.dump(profile, file)
    with loader_of() as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    alone = Seen(trace, tmp_path)
    both = Seen(trace, tmp_path, "both.json", merge_with=tmp_path / "profile.json.gz")
    assert both.events[0] == profile["traceEvents"][0]
    assert both.whole["schemaVersion"] == 1
    assert both.whole.get("baseTimeNanoseconds") == base_ns
    for mine, merged in zip(alone.slices("decode"), both.slices("decode"), strict=True):
        since_1970_ns = merged["ts"] * 1000 + (base_ns or 0)
        assert since_1970_ns == pytest.approx(mine["ts"] * 1000 + alone.whole["baseTimeNanoseconds"], abs=1000)
        assert merged["pid"] == mine["pid"] + NO_THREADS


@pytest.mark.parametrize(
    ("text", "said"), [("no json", "is no JSON"), ("[]", "no 'traceEvents'"), ("{}", "no 'traceEv")]
)
def test_what_is_no_trace_is_refused(text, said, tmp_path):
    (tmp_path / "wrong.json").write_text(text)
    with loader_of() as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    with pytest.raises(ValueError, match=said):
        trace.save(tmp_path / "trace.json", merge_with=tmp_path / "wrong.json")
    assert not (tmp_path / "trace.json").exists()
