"""All tables of a report, computed once more by DuckDB and numpy from the trace files, without any of our code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from scipy import stats

from flyball.pipeline.analysis import Analysis, analyse
from tests.pipeline.traces import START_US, write_experiment, write_run

RUNS = ("clients.1.r1", "clients.1.r2")
# The measured time is the middle of what was recorded.
FROM_S, LENGTH_S, RECORDED_S = 3, 20, 26
FROM_US = START_US + FROM_S * 1_000_000
UNTIL_US = FROM_US + LENGTH_S * 1_000_000
# Buckets are 1 % wide.
BUCKET = 0.0051
KINDS = ("put", "take", "deliver", "settle", "list")
PHASES = ("wait", "parse", "engine", "store", "emit")
CARRY = "('put', 'take', 'peek', 'list', 'deliver', 'settle', 'purge')"


def requests(random: np.random.Generator, node: str, count: int) -> pa.Table:
    """A node's requests: sampled and unsampled, of rare and common kinds, some without a wait for the store."""
    kinds = random.choice(KINDS, count, p=[0.45, 0.3, 0.14, 0.1, 0.01])
    received_us = START_US + np.sort(random.integers(0, RECORDED_S * 1_000_000, count))
    times: dict[str, Any] = {f"{name}_ns": np.int64(random.lognormal(11, 1.0, count)) for name in PHASES}
    times["store_ns"] = np.where(np.isin(kinds, ["put", "settle"]), times["store_ns"] * 9, 0)
    return pa.table(
        {
            "kind": kinds,
            "protocol": np.full(count, "amqp"),
            "client_id": random.integers(1, 9, count),
            "queue_id": random.integers(1, 150, count),
            "size_bytes": random.integers(0, 999, count),
            "result": random.choice(["ok", "empty", "failed"], count, p=[0.9, 0.08, 0.02]),
            "received_us": received_us,
            **times,
            "message_count": random.integers(0, 4, count),
            "node": np.full(count, node),
            "sequence": np.arange(count),
            "weight": np.where(random.random(count) < 0.3, 64, 1),
        }
    )


def calls(random: np.random.Generator, worker: str, count: int) -> pa.Table:
    intended_us = START_US + np.sort(random.integers(0, RECORDED_S * 1_000_000, count))
    return pa.table(
        {
            "kind": random.choice(["put", "take"], count),
            "protocol": np.full(count, "amqp"),
            "role": np.full(count, "client"),
            "client_id": random.integers(1, 9, count),
            "queue": random.choice(["a", "b"], count),
            "size_bytes": random.integers(0, 999, count),
            "result": random.choice(["ok", "refused"], count, p=[0.95, 0.05]),
            "intended_us": intended_us,
            "late_ns": np.int64(random.exponential(1e5, count)),
            "response_ns": np.int64(random.lognormal(14, 0.8, count)),
            "think_ns": np.int64(random.exponential(1e6, count)),
            "message_count": np.ones(count, np.int64),
            "target": random.choice(["node-1", "node-2"], count),
            "worker": np.full(count, worker),
            "sequence": np.arange(count),
            "weight": np.ones(count, np.int64),
        }
    )


def write(path: Path, table: pa.Table, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"flyball.schema_version": "1", "flyball.table": kind}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def spoiled(table: pa.Table, column: str, value: int | None) -> pa.Table:
    """Give every 40th row that value in a column."""
    values = table[column].to_pylist()
    values[::40] = [value] * len(values[::40])
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, table[column].type))


@dataclass(frozen=True)
class Both:
    analysis: Analysis
    out: Path
    database: duckdb.DuckDBPyConnection

    def rows(self, query: str) -> dict[Any, Any]:
        """Return the rows that DuckDB finds, by those of their columns that are KEYS."""
        found = self.database.execute(query).df()
        keys = [name for name in found.columns if name in KEYS]
        return {
            tuple(row[key] for key in keys): {name: row[name] for name in found.columns if name not in KEYS}
            for row in found.to_dict("records")
        }

    def ours(self, table: str, **where: str) -> dict[Any, Any]:
        found = self.analysis.tables[table]
        for name, value in where.items():
            found = found[found[name] == value]
        keys = [name for name in KEYS if name in found.columns and name not in where]
        return {tuple(row[key] for key in keys): row for row in found.to_dict("records")}

    def measures(self) -> dict[Any, Any]:
        """Return the rows of `measures` by run, source, metric and kind."""
        rows = self.analysis.tables["measures"].to_dict("records")
        return {(row["run"], row["source"], row["metric"], row["kind"]): row for row in rows}


KEYS = ("run", "source", "place", "node", "kind", "queue", "second", "phase", "bar")


@pytest.fixture(scope="module")
def both(spark_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    reference = {"label": "table 8", "metric": "response", "mean": 2.0, "factors": {"workload.clients": 1}}
    experiment = write_experiment(source / "clients", references=[reference], factors={"workload.clients": [1]})
    measured = {"from_us": FROM_US, "until_us": UNTIL_US}
    for repetition, run in enumerate(RUNS, 1):
        random = np.random.default_rng(repetition)
        traces = write_run(experiment, run, measured=measured, repetition=repetition) / "traces"
        for node in ("node-1", "node-2"):
            write(traces / f"trace-{node}-1.parquet", requests(random, node, 6000), "requests")
        late = requests(random, "node-2", 2000).drop_columns(["protocol", "queue_id"])
        write(traces / "trace-node-2-2.parquet", spoiled(late, "wait_ns", -5), "requests")
        for worker in ("w-1", "w-2"):
            write(traces / f"calls-{worker}-1.parquet", calls(random, worker, 4000), "calls")
        write(traces / "calls-w-3-1.parquet", spoiled(calls(random, "w-3", 400), "response_ns", None), "calls")
        (traces / "calls-w-4-1.parquet").write_bytes(b"PAR1 and no more")
    analysis = analyse(spark_process.newSession(), source, out)
    with duckdb.connect() as database:
        files = f"{source}/clients/run=*/traces"
        latency = " + ".join(f"{name}_ns" for name in PHASES)
        database.execute(f"""
            create table events as
            select run, 'nodes' as source, node as place, kind, coalesce(queue_id, 0)::varchar as queue, result,
                received_us + ({latency}) // 1000 as at_us, {latency} as response_ns, 0 as service_ns, 0 as think_ns,
                {", ".join(f"{name}_ns" for name in PHASES)}, message_count, weight
            from read_parquet('{files}/trace-*.parquet', union_by_name = true, hive_partitioning = true)
            where wait_ns >= 0
            union all by name
            select run, 'clients' as source, target as place, kind, queue, result,
                intended_us + (late_ns + response_ns) // 1000 as at_us, late_ns + response_ns as response_ns,
                response_ns as service_ns, think_ns, 0 as wait_ns, 0 as parse_ns, 0 as engine_ns, 0 as store_ns,
                0 as emit_ns, message_count, weight
            from read_parquet('{files}/calls-w-[123]-1.parquet', hive_partitioning = true)
            where response_ns is not null
        """)
        database.execute(f"""
            create table placed as select *, floor((at_us - {FROM_US}) / 1e6)::bigint as second,
                if(result = 'ok' and kind in {CARRY}, message_count * weight, 0) as messages from events
        """)
        database.execute(
            f"create table inside as select * from placed where at_us >= {FROM_US} and at_us < {UNTIL_US}"
        )
        yield Both(analysis, out, database)


def quantiles(values: Any, weights: Any, ratios: tuple[float, ...]) -> list[float]:
    """Return the quantiles of values that each stand for several, between neighbours as `percentile` has it."""
    order = np.argsort(values)
    values, reached = values[order], np.cumsum(weights[order])
    found = []
    for ratio in ratios:
        place = ratio * (reached[-1] - 1)
        low, high = (values[np.searchsorted(reached, edge, "right")] for edge in (np.floor(place), np.ceil(place)))
        found.append(float(low + (high - low) * (place - np.floor(place))))
    return found


def with_all(table: str) -> str:
    return f"(select * from {table} union all select * replace ('all' as kind) from {table})"


def test_series_and_throughput(both: Both) -> None:
    expected = both.rows("""
        select run, source, place, kind, second, sum(weight) as requests, sum(messages) as messages,
            sum(if(store_ns > 0, weight, 0)) as stored, sum(weight * weight) as weight2,
            sum(response_ns * weight) / 1e6 as response_ms,
            sum(response_ns::double ** 2 * weight) / 1e12 as response_ms2,
            sum((wait_ns + parse_ns + emit_ns) * weight) / 1e6 as socket_ms
        from inside group by all""")
    ours = both.ours("series")
    assert ours.keys() == expected.keys()
    for key, row in expected.items():
        found = ours[key]
        assert {name: found[name] for name in row if name != "socket_ms"} == pytest.approx(
            {name: value for name, value in row.items() if name != "socket_ms"}
        )
        assert found["socket_ms"] == pytest.approx(row["socket_ms"] if key[1] == "nodes" else 0.0)


def test_the_busiest_queues_are_apart_and_the_others_together(both: Both) -> None:
    kept = pd.read_parquet(both.out / "tables" / "throughput.parquet")
    expected = both.database.execute("""
        with volumes as (select run, source, queue, sum(weight) as volume from inside group by all),
            busy as (select *, row_number() over (
                partition by run, source order by volume desc, queue) as place_of from volumes)
        select run, source, place, kind, if(place_of <= 100, queue, '(others)') as queue, second,
            sum(weight)::bigint as requests, sum(messages)::bigint as messages
        from inside join busy using (run, source, queue) group by all""").df()
    keys = ["run", "source", "place", "kind", "queue", "second"]
    one, other = (
        frame.sort_values(keys).reset_index(drop=True)[[*keys, "requests", "messages"]] for frame in (kept, expected)
    )
    pd.testing.assert_frame_equal(one, other, check_dtype=False)


def test_histograms(both: Both) -> None:
    expected = both.database.execute(f"""
        select run, source, kind, cast(floor(ln(response_ns + 1) * 10) as bigint) as bar, sum(weight) as requests
        from {with_all("inside")} group by all""").df()
    found = both.analysis.tables["histogram"]
    found = found.assign(bar=np.rint(np.log(found["low_ms"] * 1e6 + 1) * 10).astype(int))
    keys = ["run", "source", "kind", "bar"]
    one, other = (frame.set_index(keys)["requests"].sort_index() for frame in (found, expected))
    pd.testing.assert_series_equal(one, other, check_dtype=False)


def test_phases(both: Both) -> None:
    of = {name: f"{name}_ns" for name in PHASES}
    of |= {"total": "response_ns", "socket": "wait_ns + parse_ns + emit_ns"}
    of |= {"worker": "engine_ns", "persistence": "store_ns"}
    ours = both.ours("phases")
    rows: Any = both.database.execute(f"select * from {with_all('inside')} where source = 'nodes'").df()
    assert {key[-1] for key in ours} == set(of)
    for (run, node, kind), own in rows.groupby(["run", "place", "kind"]):
        for phase, column in of.items():
            times = own.eval(column).to_numpy(float) / 1e6
            row = ours[run, node, kind, phase]
            assert row["requests"] == own["weight"].sum()
            mean = np.average(times, weights=own["weight"])
            assert row["mean_ms"] == pytest.approx(mean)
            variance = (
                np.average((times - mean) ** 2, weights=own["weight"])
                * own["weight"].sum()
                / (own["weight"].sum() - 1)
            )
            assert row["sd_ms"] == pytest.approx(np.sqrt(variance))
            names = ("p5_ms", "p50_ms", "p95_ms", "p99_ms")
            expected = quantiles(times, own["weight"].to_numpy(), (0.05, 0.5, 0.95, 0.99))
            assert [row[name] for name in names] == pytest.approx(expected, rel=BUCKET)


METRICS = {
    "nodes": {
        "response": "response_ns",
        **{name: f"{name}_ns" for name in PHASES},
        "socket": "wait_ns + parse_ns + emit_ns",
        "worker": "engine_ns",
        "persistence": "store_ns",
    },
    "clients": {"response": "response_ns", "service": "service_ns", "think": "think_ns"},
}


def test_measures_of_times(both: Both) -> None:
    rows: Any = both.database.execute(f"select * from {with_all('inside')}").df()
    ours = both.measures()
    for (run, source, kind), own in rows.groupby(["run", "source", "kind"]):
        for metric, column in METRICS[source].items():
            times = own.eval(column).to_numpy(float) / 1e6
            check_times(ours[run, source, metric, kind], times, own["weight"].to_numpy())
        if source == "nodes" and (waited := own[own["store_ns"] > 0])["weight"].sum():
            check_times(ours[run, source, "database", kind], waited["store_ns"] / 1e6, waited["weight"].to_numpy())


def check_times(row: dict[str, Any], times: Any, weights: Any) -> None:
    times = np.asarray(times, float)
    mean = np.average(times, weights=weights)
    total = weights.sum()
    assert (row["n"], row["unit"]) == (total, "ms")
    assert row["mean"] == pytest.approx(mean)
    assert row["sd"] == pytest.approx(np.sqrt(np.average((times - mean) ** 2, weights=weights) * total / (total - 1)))
    p5, *expected = quantiles(times, weights, (0.05, 0.5, 0.9, 0.95, 0.99, 0.999))
    assert [row[name] for name in ("p50", "p90", "p95", "p99", "p999")] == pytest.approx(expected, rel=BUCKET)
    assert (row["low"] + row["mean"], row["high"] + row["mean"]) == pytest.approx((p5, expected[2]), rel=BUCKET)
    assert row["max"] == pytest.approx(times.max())


def test_measures_of_rates(both: Both) -> None:
    ours = both.measures()
    rows: Any = both.database.execute(f"select * from {with_all('inside')}").df()
    for (run, source, kind), own in rows.groupby(["run", "source", "kind"]):
        counted = own.groupby("second")["weight"].sum().reindex(range(LENGTH_S), fill_value=0)
        row = ours[run, source, "throughput", kind]
        assert (row["n"], row["unit"]) == (LENGTH_S, "1/s")
        assert (row["mean"], row["sd"]) == pytest.approx((counted.mean(), counted.std()))
        if kind == "all":
            received = rows[
                (rows["run"] == run) & (rows["source"] == source) & rows["kind"].isin(["take", "deliver"])
            ]
            moved = received["messages"].sum() / LENGTH_S
        else:
            moved = own["messages"].sum() / LENGTH_S
        assert ours[run, source, "messages", kind]["mean"] == pytest.approx(moved)


def test_cells_and_references(both: Both) -> None:
    measures = both.analysis.tables["measures"]
    metric = (measures["metric"] == "response") & (measures["source"] == "clients") & (measures["kind"] == "all")
    means = measures[metric]["mean"].to_numpy()
    [cell] = both.ours("cells", metric="response", source="clients", kind="all").values()
    width = stats.t.ppf(0.95, 1) * means.std(ddof=1) / np.sqrt(2)
    assert (cell["repetitions"], cell["mean"], cell["half_width"]) == pytest.approx((2, means.mean(), width))
    [reference] = both.analysis.tables["references"].to_dict("records")
    assert (reference["ours"], reference["ratio"]) == pytest.approx((means.mean(), means.mean() / 2.0))


def test_laws(both: Both) -> None:
    counted = both.rows("""
        select run, source, kind, sum(weight) as requests, sum(messages) as messages,
            sum(response_ns * weight) / sum(weight) / 1e6 as response_ms, sum(service_ns * weight) / sum(weight) / 1e6
            as service_ms, sum((parse_ns + engine_ns) * weight) / 1e9 as busy_s
        from inside group by all""")
    by_node = both.rows("""
        select run, place, sum((parse_ns + engine_ns) * weight) / 1e9 as busy_s
        from inside where source = 'nodes' group by all""")
    for run in RUNS:
        ours = {row["law"]: row for row in both.analysis.tables["laws"].to_dict("records") if row["run"] == run}
        for source in ("nodes", "clients"):
            own = [row for key, row in counted.items() if key[:2] == (run, source)]
            spent_s = sum(row["requests"] * row["response_ms"] for row in own) / 1e3
            assert ours[f"Little's law ({source})"]["expected"] == pytest.approx(spent_s / LENGTH_S)
            assert ours[f"Little's law ({source})"]["holds"]
            balance = ours[f"flow balance ({source})"]
            received = [
                counted[run, source, kind]["messages"]
                for kind in ("take", "deliver")
                if (run, source, kind) in counted
            ]
            assert balance["expected"] == pytest.approx(counted[run, source, "put"]["messages"] / LENGTH_S)
            assert balance["measured"] == pytest.approx(sum(received) / LENGTH_S)
        for kind in ("put", "take"):
            outside, inside = counted[run, "clients", kind], counted[run, "nodes", kind]
            same, within = ours[f"the same requests ({kind})"], ours[f"nodes within clients ({kind})"]
            assert (same["expected"], same["measured"]) == (outside["requests"], inside["requests"])
            assert (within["expected"], within["measured"]) == pytest.approx(
                (outside["service_ms"], inside["response_ms"])
            )
        for node in ("node-1", "node-2"):
            busy = by_node[run, node]["busy_s"] / LENGTH_S
            assert ours[f"utilisation ({node})"]["measured"] == pytest.approx(busy)


def test_left_out_rows_and_files(both: Both) -> None:
    found = {
        (Path(row["file"]).name, row["reason"]): row["rows"]
        for row in both.analysis.tables["quarantine"].to_dict("records")
    }
    assert found == {
        ("trace-node-2-2.parquet", "wait_ns is negative"): 50,
        ("calls-w-3-1.parquet", "response_ns is missing"): 10,
        ("calls-w-4-1.parquet", "is truncated, or not a Parquet file"): 0,
    }


def test_the_profile(both: Both) -> None:
    expected = both.database.execute("""
        select kind, sum(weight) as requests,
            sum((parse_ns + engine_ns + store_ns + emit_ns) * weight) / sum(weight) / 1e6
        from events where source = 'nodes' and result != 'failed' group by all""").fetchall()
    profile = json.loads((both.out / "profile.json").read_text(encoding="utf-8"))
    assert {key: (facts["requests"], facts["mean"]) for key, facts in profile["keys"].items()} == {
        kind: (requests, pytest.approx(mean)) for kind, requests, mean in expected
    }
