"""Results that experiments take from an earlier one: costs, classes and the reference."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyball.admission.profile import profile_from
from flyball.admission.use import Unit
from flyball.control.loop import Sample
from flyball.errors import LabError
from flyball.lab.auction_profile import fitted, profiled
from flyball.lab.workloads import EarlierRun
from flyball.trace.admissions import AdmissionWriter
from flyball.trace.samples import SampleWriter


def earlier(folder: Path, policy: str, **settings: Any) -> EarlierRun:
    """Return a run whose measured time is the hour around now; its traces are still to be written."""
    now_us = time.time_ns() // 1000
    measured = {"from_us": now_us - 1_800_000_000, "until_us": now_us + 1_800_000_000}
    manifest = {"measured": measured, "target": {"settings": {"policy": policy, **settings}}}
    return EarlierRun(manifest, folder / policy)


def record_costs(run: EarlierRun, *costs: tuple[str, str, float], at_s: float | None = None) -> None:
    writer = AdmissionWriter(run.traces, "node-1")
    writer.start()
    for key, outcome, busy_ms in costs:
        writer.record(key, 0, outcome, at_s or time.monotonic(), 0.0, 0.1, 2, busy_ms / 1000, 0.0)
    writer.stop()


def record_references(run: EarlierRun, *setpoints: float) -> None:
    """Record samples that are spread evenly over the measured hour."""
    writer = SampleWriter(run.traces, "node-1")
    writer.start()
    for number, setpoint in enumerate(setpoints):
        at_s = time.monotonic() + 3600 * ((number + 0.5) / len(setpoints) - 0.5)
        writer.record(Sample("admission", at_s, 0.25, setpoint, 0.0, 0.0, number))
    writer.stop()


def cheap_and_dear(run: EarlierRun) -> None:
    record_costs(run, *[("GET /cheap", "served", 1.0 + 0.01 * n) for n in range(40)])
    record_costs(run, *[("GET /dear", "served", 50.0 + n) for n in range(20)])


def test_costs_become_a_profile_with_small_and_large(tmp_path: Path) -> None:
    run = earlier(tmp_path, "none")
    cheap_and_dear(run)
    record_costs(run, ("GET /dear", "failed", 9999.0), ("GET /never", "refused", 0.0))
    prepared = profiled([run])
    assert prepared["classes"] == {"GET /cheap": "small", "GET /dear": "large"}
    profile = profile_from(prepared["profile"])
    assert profile.unit == "ms"
    assert profile.keys["GET /dear"].mean == pytest.approx(59.5)
    assert [found.mean for found in profile.classes] == pytest.approx([1.195, 59.5])
    assert prepared["reference"] is None


def test_costs_are_counted_in_the_unit_of_the_site(tmp_path: Path) -> None:
    run = earlier(tmp_path, "none", unit="connections")
    cheap_and_dear(run)
    profile = profile_from(profiled([run])["profile"])
    assert (profile.unit, profile.keys["GET /dear"].mean) == ("connections", 2.0)


def test_requests_outside_of_the_measured_time_do_not_count(tmp_path: Path) -> None:
    run = earlier(tmp_path, "none")
    cheap_and_dear(run)
    record_costs(run, ("GET /early", "served", 5.0), at_s=time.monotonic() - 7200)
    assert "GET /early" not in profiled([run])["classes"]


def test_the_reference_is_what_the_search_has_settled_at(tmp_path: Path) -> None:
    watched, controlled = earlier(tmp_path, "none"), earlier(tmp_path, "dps")
    cheap_and_dear(watched)
    record_costs(controlled, ("GET /queued", "served", 400.0))
    record_references(controlled, 500, 1000, 2000, 4000, 1500, 1600, 1700, 1550)
    prepared = profiled([watched, controlled])
    assert prepared["reference"] == pytest.approx(1575)
    assert "GET /queued" not in prepared["classes"], "under control, and under overload, costs are others"


def test_nothing_recorded_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no costs of requests"):
        profiled([earlier(tmp_path, "none")])


def test_all_the_same_is_one_class() -> None:
    profile = fitted({"GET /a": np.full(50, 1.0), "GET /b": np.full(50, 1.0)}, Unit.BUSY_MS)
    assert [found.number for found in profile.classes] == [0]
    assert {found.class_number for found in profile.keys.values()} == {0}


def test_costs_are_divided_where_their_squared_distances_are_least() -> None:
    chance = np.random.default_rng(1)
    middles = {"GET /a": 3.0, "GET /b": 5.0, "GET /c": 40.0, "GET /d": 200.0}
    costs = {key: chance.lognormal(np.log(middle), 0.4, 300) for key, middle in middles.items()}
    profile = fitted(costs, Unit.BUSY_MS)
    assert [profile.keys[key].class_number for key in middles] == [0, 0, 1, 1]
    assert profile.classes[0].below == pytest.approx(20, rel=0.5)


def test_what_costs_nothing_is_small() -> None:
    costs = {"GET /": np.zeros(5000), "GET /cheap": np.full(50, 3.0), "GET /dear": np.full(50, 30.0)}
    profile = fitted(costs, Unit.BUSY_MS)
    assert [profile.keys[key].class_number for key in costs] == [0, 0, 1]
    assert profile_from(profile.to_json()) == profile
