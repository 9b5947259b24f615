"""The logs of the papers' systems become tables; malformed lines are counted and kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.ingest import ingest
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.logs import LOG_START_US, opener_of
from flyball.pipeline.trace_reader import Malformed, Part

SAMPLES = Path(__file__).parent / "logs"
WITHOUT_BLANKS = "26352,241,240,481,1043112345,912345678,873456789\n"
WITH_BLANKS = "26352, 241, 240, 481, 1043112345, 912345678, 873456789\n"


def parts(path: Path, log_format: LogFormat, text: str) -> list[Part]:
    path.write_text(text, encoding="utf-8")
    return list(opener_of(log_format)(path).parts())


@pytest.mark.parametrize("text", [WITHOUT_BLANKS, WITH_BLANKS])
def test_a_line_of_a_server_is_an_interval(tmp_path: Path, text: str) -> None:
    [part] = parts(tmp_path / "interval.log", LogFormat.THORBANG_SERVER, text)
    assert part.table == "intervals"
    assert part.bad.num_rows == 0
    assert part.good.to_pylist() == [
        {
            "node": "interval",
            "at_us": LOG_START_US + 26_352_000,
            "pushes": 241,
            "pops": 240,
            "answers": 481,
            "total_ns": 1_043_112_345,
            "worker_ns": 912_345_678,
            "persistence_ns": 873_456_789,
        }
    ]


def test_the_oldest_logs_have_the_time_of_day_and_a_tab(tmp_path: Path) -> None:
    [part] = parts(tmp_path / "old.log", LogFormat.THORBANG_SERVER, "1383750000123\t1,2,3,4,5,6\n")
    [row] = part.good.to_pylist()
    assert (row["at_us"], row["pushes"]) == (1_383_750_000_123_000, 1)


@pytest.mark.parametrize(
    ("log_format", "line", "response_ns"),
    [
        (LogFormat.THORBANG_CLIENT, "1500,2.5", 2_500_000),
        (LogFormat.THORBANG_CLIENT, "1500, 3", 3_000_000),
        (LogFormat.THORBANG_CLIENT_NS, "1500,2500000", 2_500_000),
    ],
)
def test_a_line_of_a_client_is_a_call_that_ended_then(
    tmp_path: Path, log_format: LogFormat, line: str, response_ns: int
) -> None:
    [part] = parts(tmp_path / "pop.log", log_format, line)
    [row] = part.good.to_pylist()
    assert part.table == "calls"
    assert (row["kind"], row["protocol"], row["response_ns"]) == ("take", "thorbang", response_ns)
    assert row["intended_us"] == LOG_START_US + 1_500_000 - response_ns // 1000


@pytest.mark.parametrize(
    ("name", "log_format", "rows"),
    [
        ("telesto-client", LogFormat.TELESTO, {"calls": 116}),
        # Two workers were handed an incomplete packet: they had waited, but there was no request.
        ("telesto-middleware", LogFormat.TELESTO, {"requests": 118, "downtimes": 120}),
        ("thorbang-server", LogFormat.THORBANG_SERVER, {"intervals": 60}),
        ("thorbang-counts", LogFormat.THORBANG_SERVER, {"intervals": 18}),
        ("thorbang-push", LogFormat.THORBANG_CLIENT_NS, {"calls": 100}),
    ],
)
def test_every_line_that_the_originals_write_is_read(
    name: str, log_format: LogFormat, rows: Mapping[str, int]
) -> None:
    found = list(opener_of(log_format)(SAMPLES / f"{name}.log").parts())
    assert {part.table: part.good.num_rows for part in found} == rows
    assert not any(part.bad.num_rows for part in found)


def test_a_line_of_a_telesto_client_is_a_call(tmp_path: Path) -> None:
    text = "1384459200125\t100112552\t51\t4523951\t52\n"
    [part] = parts(tmp_path / "client7.log", LogFormat.TELESTO, text)
    [row] = part.good.to_pylist()
    assert part.table == "calls"
    assert (row["kind"], row["result"], row["message_count"], row["worker"]) == ("take", "ok", 1, "client7")
    assert (row["think_ns"], row["response_ns"]) == (100_112_552, 4_523_951)
    assert row["intended_us"] == 1_384_459_200_125_000 - 4_523


@pytest.mark.parametrize(
    ("sent", "received", "kind", "result", "message_count"),
    [(49, 3, "put", "ok", 1), (51, 5, "take", "empty", 0), (49, 5, "put", "refused", 0), (1, 2, "ping", "ok", 0)],
)
def test_packet_ids_of_a_telesto_client_say_what_was_asked_and_answered(
    tmp_path: Path, sent: int, received: int, kind: str, result: str, message_count: int
) -> None:
    [part] = parts(tmp_path / "client1.log", LogFormat.TELESTO, f"1384459200000\tnull\t{sent}\t900\t{received}\n")
    [row] = part.good.to_pylist()
    assert (row["kind"], row["result"], row["message_count"], row["think_ns"]) == (kind, result, message_count, 0)


def test_a_line_of_a_telesto_middleware_is_a_request_and_a_downtime(tmp_path: Path) -> None:
    text = "1384459200010\t26095628\t36943\t5464669\t48184\n"
    found = {part.table: part.good.to_pylist() for part in parts(tmp_path / "mw.log", LogFormat.TELESTO, text)}
    [request], [downtime] = found["requests"], found["downtimes"]
    assert (request["parse_ns"], request["store_ns"], request["emit_ns"]) == (36_943, 5_464_669, 48_184)
    # The line is written when the worker has answered and waits again.
    assert request["received_us"] == 1_384_459_200_010_000 - (36_943 + 5_464_669 + 48_184) // 1000
    assert (request["kind"], request["node"]) == ("other", "mw")
    assert downtime["downtime_ns"] == 26_095_628


def test_counts_of_early_thorbang_servers_have_no_times(tmp_path: Path) -> None:
    [part] = parts(tmp_path / "old.log", LogFormat.THORBANG_SERVER, "12676,844,2627\n")
    [row] = part.good.to_pylist()
    assert (row["pushes"], row["pops"], row["answers"], row["total_ns"]) == (844, 2627, 0, 0)


def test_lines_of_other_forms_are_kept_with_their_number_and_reason(tmp_path: Path) -> None:
    text = WITHOUT_BLANKS + "WARNING: bad request\n\n1,2,3,4,5,6,seven\n"
    good, wrong = parts(tmp_path / "mixed.log", LogFormat.THORBANG_SERVER, text)
    assert good.good.num_rows == 1
    assert wrong.bad.to_pylist() == [
        {"line": 2, "text": "WARNING: bad request", "reason": "is not a line of three or seven numbers"},
        {"line": 4, "text": "1,2,3,4,5,6,seven", "reason": "has a field that is not a whole number"},
    ]


def test_numbers_that_cannot_be_are_refused_by_the_rules_of_their_table(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "push.log"
    log.parent.mkdir()
    log.write_text("10,1\n20,-1\n", encoding="utf-8")
    found = ingest(spark, log.parent, tmp_path / "store", LogFormat.THORBANG_CLIENT)
    assert found.rows == {"calls": 1}
    assert found.quarantine == [(str(log), "response_ns is negative", 1)]


def test_bytes_that_are_no_text_are_malformed(tmp_path: Path) -> None:
    path = tmp_path / "binary.log"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Malformed, match="is not text"):
        list(opener_of(LogFormat.TELESTO)(path).parts())


def test_logs_are_ingested_like_traces(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "run=r1"
    folder.mkdir(parents=True)
    (folder / "server.log").write_text(WITHOUT_BLANKS + "nonsense\n" + WITH_BLANKS, encoding="utf-8")
    for _ in range(2):
        found = ingest(spark, tmp_path / "logs", tmp_path / "store", LogFormat.THORBANG_SERVER)
        assert [(row.run, row.pushes) for row in found.intervals.collect()] == [("r1", 482)]
        assert found.quarantine == [(str(folder / "server.log"), "is not a line of three or seven numbers", 1)]
    [kept] = pq.read_table(tmp_path / "store" / "quarantine" / "lines", partitioning=None).to_pylist()
    assert (kept["line"], kept["text"]) == (2, "nonsense")


def test_a_folder_without_logs_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(PipelineError, match="no logs in"):
        ingest(spark, tmp_path / "logs", tmp_path / "store", LogFormat.TELESTO)
