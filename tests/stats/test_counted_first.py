"""A sample is counted before its time is: whoever looks in between sees no hole in a series."""

import pytest

from torchstage import StageLoader
from torchstage.engine.ledger import Site
from torchstage.lineup import Lined


@pytest.mark.parametrize(("label", "expected"), [("torchstage-fetch", 0.0), ("torch", None)])
def test_busy_seconds_are_known_unless_torchs_own_workers_make_the_samples(label, expected):
    loader = StageLoader(range(4), num_workers=1)
    loader.ledger.lineup = (Lined("fetch", False, Site("thread", 1, label)),)
    loader.ledger.tally(label).work(("fetch",)).num_samples += 1
    (stage,) = loader.stats().stages
    assert (stage.samples, stage.busy_seconds) == (1, expected)
