"""Gains from an earlier experiment: the plant that its samples show, designs for it, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flyball.control.identification import identify
from flyball.control.laws import Multiplicative, law_to_json
from flyball.control.loop import Sample
from flyball.control.model_file import model_to_json
from flyball.errors import LabError
from flyball.lab.pipeline_models import identified
from flyball.lab.tuning import LOOP, tuned
from flyball.lab.workloads import EarlierRun
from flyball.trace.samples import SampleWriter
from tests.pipeline.traces import write_experiment, write_run

SAMPLE_TIME_S = 1.0
DESIGNED = {"kind": "designed", "as": "lambda_pi"}


def a_run(folder: Path, seed: int = 1, count: int = 60, factors: Mapping[str, str] | None = None) -> EarlierRun:
    """Write samples of the plant y(k+1) = 0.26 y(k) + 59.73 u(k) at random actions, with a little noise."""
    chance = random.Random(seed)
    traces = folder / f"run=loop.r{seed}" / "traces"
    writer = SampleWriter(traces, "worker-2")
    writer.start()
    measurement = 0.0
    for sequence in range(1, count + 1):
        action = float(chance.randint(1, 10))
        writer.record(Sample("adaptive", float(sequence), SAMPLE_TIME_S, 400.0, measurement, action, sequence))
        measurement = 0.26 * measurement + 59.73 * action + chance.gauss(0, 5)
    writer.stop()
    manifest = {"measured": {"from_us": 0, "until_us": 1 << 62}, "factors": factors or {}}
    return EarlierRun(manifest, traces)


def in_numpy(folder: Path) -> dict[str, Any]:
    """Do what `flyball pipeline identify` does, with the pairs of one run, in this process."""
    [traces] = folder.glob("run=*/traces")
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(traces.glob("samples-*.parquet"))])
    plant = identify(
        rows["measurement"].to_numpy(), rows["action"].to_numpy(), sample_time_s=SAMPLE_TIME_S, loop=LOOP
    )
    return model_to_json([plant])


def designs(law: dict[str, Any], *runs: EarlierRun, allow_uncertified: bool = False) -> dict[str, Any]:
    return tuned(law, SAMPLE_TIME_S, runs, allow_uncertified=allow_uncertified, identify=in_numpy)


def test_a_law_is_designed_for_the_plant_that_the_samples_show(tmp_path: Path) -> None:
    found = designs(DESIGNED, a_run(tmp_path))
    assert (found["plant"]["a"], found["plant"]["b"]) == pytest.approx((0.26, 59.73), rel=0.05)
    # Lambda tuning with a pole of 0.8: kp = 0.2 a / b, ki = 0.2 (1 - a) / b.
    assert found["law_used"] == {
        "kind": "pi",
        "kp": pytest.approx(0.00087, rel=0.1),
        "ki": pytest.approx(0.00248, rel=0.1),
    }
    assert found["certificate"]["is_sound"]
    assert found["certificate"]["gain_margin"] == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize("kind", ["p", "i", "pi", "pid", "lambda_pi"])
def test_every_design_is_sound(kind: str, tmp_path: Path) -> None:
    found = designs({"kind": "designed", "as": kind}, a_run(tmp_path))
    assert found["certificate"]["reason"] is None


def test_a_plant_of_another_cell_is_none(tmp_path: Path) -> None:
    run = a_run(tmp_path, factors={"target.kind": "rabbitmq"})
    with pytest.raises(LabError, match="have recorded no samples of a loop"):
        designs(DESIGNED, run)


def test_the_pipeline_identifies_the_plant_that_numpy_finds(tmp_path: Path) -> None:
    """As a process, on results as the lab leaves them, with a run of the controlled loop among them."""
    run = a_run(tmp_path)
    for name, signal in (("loop.r1", "random"), ("loop.r2", "closed")):
        write_run(tmp_path, name, measured=run.manifest["measured"], workload={"signal": signal}, factors={})
    write_experiment(tmp_path)
    ours = tuned(DESIGNED, SAMPLE_TIME_S, [run], allow_uncertified=False)
    numpys = designs(DESIGNED, run)
    for name in ("a", "b", "pairs"):
        assert ours["plant"][name] == pytest.approx(numpys["plant"][name], rel=1e-6)
    assert ours["law_used"]["kind"] == numpys["law_used"]["kind"]
    for name in ("kp", "ki"):
        assert ours["law_used"][name] == pytest.approx(numpys["law_used"][name], rel=1e-6)


def test_what_the_pipeline_says_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"flyball pipeline identify .* failed: no traces in"):
        identified(tmp_path)


def test_too_few_samples_are_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"workload\.law lambda_pi: .* too few"):
        designs(DESIGNED, a_run(tmp_path, count=10))


def test_another_sample_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"sampled every 1 s, not 10 s: run both with --quick or both without"):
        tuned(DESIGNED, 10.0, [a_run(tmp_path)], allow_uncertified=False, identify=in_numpy)


def test_unsound_gains_run_only_if_that_is_wanted_and_keep_their_verdict(tmp_path: Path) -> None:
    law = {"kind": "p", "kp": 0.05, "feedforward": 0.0}
    run = a_run(tmp_path)
    with pytest.raises(LabError, match=r"workload\.law p: it is unstable .*allow_uncertified = true"):
        designs(law, run)
    found = designs(law, run, allow_uncertified=True)
    assert found["law_used"] == law
    assert not found["certificate"]["is_sound"]


def test_a_law_without_a_model_is_certified_without_one() -> None:
    found = designs({"kind": "multiplicative"})
    assert found["plant"] is None
    assert found["certificate"]["is_sound"]
    assert found["law_used"] == law_to_json(Multiplicative())


def test_a_design_without_a_plant_says_what_to_do() -> None:
    with pytest.raises(LabError, match=r'name the experiment that identifies it, needs = "\.\.\."'):
        designs(DESIGNED)
