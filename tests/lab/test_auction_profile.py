"""Results that experiments take from an earlier one: costs, classes and the reference."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flyball.admission.profile import profile_from
from flyball.control.loop import Sample
from flyball.errors import LabError
from flyball.lab.auction_profile import profiled
from flyball.lab.workloads import EarlierRun
from flyball.trace.admissions import AdmissionWriter
from flyball.trace.samples import SampleWriter
from tests.pipeline.traces import write_experiment, write_run


def earlier(folder: Path, policy: str, **settings: Any) -> EarlierRun:
    """Return a run whose measured time is the hour around now; its traces are still to be written."""
    now_us = time.time_ns() // 1000
    measured = {"from_us": now_us - 1_800_000_000, "until_us": now_us + 1_800_000_000}
    manifest: dict[str, Any] = {"measured": measured, "target": {"settings": {"policy": policy, **settings}}}
    run = folder / f"run={policy}"
    write_experiment(folder)
    write_run(folder, policy, **manifest)
    return EarlierRun(manifest, run / "traces")


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


def test_costs_become_a_profile_with_small_and_large_and_a_reference(tmp_path: Path) -> None:
    """The pipeline counts what was served without control, in the measured time."""
    watched, controlled = earlier(tmp_path, "none"), earlier(tmp_path, "dps")
    cheap_and_dear(watched)
    record_costs(watched, ("GET /dear", "failed", 9999.0), ("GET /never", "refused", 0.0))
    record_costs(watched, ("GET /early", "served", 5.0), at_s=time.monotonic() - 7200)
    record_costs(controlled, ("GET /queued", "served", 400.0))
    record_references(controlled, 500, 1000, 2000, 4000, 1500, 1600, 1700, 1550)
    prepared = profiled([watched, controlled])
    assert prepared["classes"] == {"GET /cheap": "small", "GET /dear": "large"}
    profile = profile_from(prepared["profile"])
    assert profile.unit == "ms"
    assert profile.keys["GET /dear"].mean == pytest.approx(59.5)
    assert [found.mean for found in profile.classes] == pytest.approx([1.195, 59.5])
    assert prepared["reference"] == pytest.approx(1575)


def test_costs_are_counted_in_the_unit_of_the_site(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def make(folder: Path, unit: str, class_count: int) -> dict[str, Any]:
        asked.append((unit, class_count))
        key = {"requests": 1, "mean": 2.0, "sd": 0.0, "class": 0}
        classes = [{"class": 0, "mean": 2.0, "below": None}]
        return {"version": 1, "kind": "profile", "unit": unit, "classes": classes, "keys": {"GET /": key}}

    prepared = profiled([earlier(tmp_path, "none", unit="connections")], make)
    assert asked == [("connections", 2)]
    assert (prepared["classes"], prepared["reference"]) == ({"GET /": "small"}, None)


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"flyball pipeline profile .* failed: no traces in"):
        profiled([earlier(tmp_path, "none")])
    with pytest.raises(LabError, match="has no run without control"):
        profiled([earlier(tmp_path, "dps")])
