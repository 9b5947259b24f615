"""The whole: a site with its database, visitors before it, and what both leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab.auction.serve import serve
from flyball.lab.auction.settings import SiteSettings
from flyball.lab.plan import plan
from flyball.lab.runner import make_run
from tests.lab.descriptions import described

TINY_SITE = """
title = "Tiny site"
[target]
kind = "auction"
settings = { policy = "dps", users = 200, items = 100, old_items = 50, pool_size = 4, reference = 2000 }
[workload]
kind = "auction"
clients = 5
think_time_s = 0.02
[run]
repetitions = 1
warm_up_s = 0.2
length_s = 1.2
cool_down_s = 0.1
"""


def table(run: Path, name: str) -> pa.Table:
    return pq.ParquetDataset(sorted((run / "traces").glob(f"{name}-*.parquet"))).read()


def test_a_run_leaves_calls_admissions_and_the_samples_of_the_loop(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for part in ("traces", "logs"):
        (folder / part).mkdir(parents=True)
    manifest: dict[str, Any] = uvloop.run(
        make_run(plan(described(tmp_path, TINY_SITE)).runs[0], folder, lambda live: None)
    )
    assert manifest["target"]["settings"]["policy"] == "dps"
    assert manifest["checks"]["failed"] == 0
    calls, admissions, samples = (table(folder, name) for name in ("calls", "admissions", "samples"))
    assert set(calls["result"].to_pylist()) == {"ok"}
    assert set(calls["queue"].to_pylist()) <= set(admissions["key"].to_pylist())
    assert set(samples["loop"].to_pylist()) == {"admission"}
    assert set(samples["setpoint"].to_pylist()) == {2000.0}
    assert sum(admissions["busy_ns"].to_pylist()) > 0


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        await serve(tmp_path, "site", SiteSettings(), "192.0.2.1", 80, lambda *place: None, lambda *done: None)

    with pytest.raises(LabError, match=r"cannot listen on 192\.0\.2\.1:80: .*; give another --port"):
        uvloop.run(main())
