"""Activity of nodes and their busiest queues: CPU, memory, clients, rates, backlog and times of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from flyball.pipeline.report.content import Passage, Section, Table
from flyball.pipeline.report.formatting import NOTHING, amount, is_number, whole

MIB = 2**20

_INTRO = (
    "Recorded by the nodes once a second. CPU is in cores; that of the store is of the embedded PostgreSQL. A wait is"
    " the time from publishing to delivery, a service time that from delivery to acknowledgement; of both a few"
    " messages of each second were timed. The tables nodes_over_time and queues_over_time have every point."
)

_NODE_HEAD = (
    *("Run", "Node", "CPU, mean", "CPU, highest", "CPU of the store", "Memory, highest [MiB]"),
    *("Connections", "Published [1/s]", "Delivered [1/s]", "Acked [1/s]", "Ready, highest"),
)
_QUEUE_HEAD = (
    *("Run", "Queue", "Published [1/s]", "Delivered [1/s]", "Acked [1/s]", "Ready, mean", "Ready, highest"),
    *("Wait p50 [ms]", "Wait p95 [ms]", "Service p50 [ms]", "Service p95 [ms]"),
)


def activity_section(tables: Mapping[str, pd.DataFrame]) -> list[Section]:
    """Return the section, if nodes recorded their activity."""
    nodes, queues = tables.get("nodes_over_time"), tables.get("queues_over_time")
    blocks: list[str | Table] = []
    if nodes is not None and len(nodes):
        rows = [_node_row(key[0], key[1], own) for key, own in _groups(nodes, ["run", "node"])]
        blocks.append(_table("Nodes", _NODE_HEAD, rows))
    if queues is not None and len(queues):
        rows = [_queue_row(key[0], key[1], key[2], own) for key, own in _groups(queues, ["run", "vhost", "queue"])]
        blocks.append(_table("Busiest queues", _QUEUE_HEAD, rows))
    passages = [Passage("", [_INTRO, *blocks])]
    return [Section("activity", "Nodes and queues", "section.html", {"passages": passages})] if blocks else []


_TIMES = ("wait_p50_ms", "wait_p95_ms", "service_p50_ms", "service_p95_ms")


def _groups(rows: pd.DataFrame, by: list[str]) -> list[tuple[Any, pd.DataFrame]]:
    return list(rows.groupby(by))


def _table(caption: str, head: Sequence[str], rows: list[list[str]]) -> Table:
    # The column of runs is omitted if there is only one.
    if all(not row[0] for row in rows):
        return Table(caption, list(head[1:]), [row[1:] for row in rows])
    return Table(caption, list(head), rows, numbers_from=2)


def _node_row(run: str, node: str, own: pd.DataFrame) -> list[str]:
    return [
        run,
        node,
        _number(_mean(own, "cpu_ratio")),
        _number(own["cpu_ratio"].max()),
        _number(_mean(own, "store_cpu_ratio")),
        _number(own["memory_bytes"].max() / MIB),
        _number(_mean(own, "connections")),
        *(_number(_mean(own, f"{name}_per_s")) for name in ("published", "delivered", "acked")),
        whole(own["ready"].max()),
    ]


def _queue_row(run: str, vhost: str, name: str, own: pd.DataFrame) -> list[str]:
    return [
        run,
        name if vhost in ("", "/") else f"{vhost}/{name}",
        *(_number(_mean(own, f"{each}_per_s")) for each in ("published", "delivered", "acked")),
        _number(_mean(own, "ready")),
        whole(own["ready"].max()),
        *(
            _number(own[f"{metric}_{point}_ms"].median())
            for metric in ("wait", "service")
            for point in ("p50", "p95")
        ),
    ]


def _mean(own: pd.DataFrame, name: str) -> float:
    """Return the mean weighted by recorded time, since points of an idle node cover more of it."""
    return float((own[name] * own["recorded_s"]).sum() / own["recorded_s"].sum())


def _number(value: float) -> str:
    return amount(value) if is_number(value) else NOTHING
