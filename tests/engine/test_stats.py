"""Stats: the meter follows what samples cost now. What is counted beside it: tests/stats."""

import pytest

from torchstage.engine.stats import Meter


def test_the_meter_knows_nothing_before_the_first_visit():
    assert Meter().sample_seconds is None


def test_the_first_visit_is_taken_as_it_is():
    meter = Meter()
    meter.add(num_samples=4, seconds=2.0)
    assert meter.sample_seconds == 0.5


def test_a_single_odd_visit_moves_the_meter_by_its_share():
    meter = Meter()
    meter.add(1, 1.0)
    meter.add(1, 11.0)
    assert meter.sample_seconds == pytest.approx(1.0 + Meter.WEIGHT * 10.0)


def test_the_meter_follows_a_lasting_change():
    meter = Meter()
    meter.add(10, 10.0)
    for _ in range(30):
        meter.add(10, 0.01)
    assert meter.sample_seconds == pytest.approx(0.001, rel=2.0)


def test_all_that_a_sample_costs_is_known_when_both_parts_are():
    meter = Meter()
    meter.add(num_samples=4, seconds=2.0)
    assert meter.work_seconds is None
    meter.add_finish(num_samples=4, seconds=1.0)
    assert meter.work_seconds == 0.75


def test_what_was_measured_can_be_forgotten():
    meter = Meter()
    meter.add(1, 1.0)
    meter.add_finish(1, 1.0)
    meter.forget()
    assert (meter.sample_seconds, meter.finish_seconds, meter.work_seconds) == (None, None, None)
