"""`flyball status`: the state of a node."""

from __future__ import annotations

from typing import Any

from flyball.cli.output import Output
from flyball.cli.session import DONE, AsJson, Url, run
from flyball.client.api import DEFAULT_URL, Api


def show_status(api: Api, out: Output) -> int:
    report = api.get("flyball", "status")
    if out.is_json:
        out.json(report)
        return DONE
    store, memory = report["store"], report["memory"]
    out.table(
        ("", ""),
        [
            ("version", report["version"]),
            ("up for", f"{report['uptime_s']:.0f} s"),
            ("connections", str(report["connections"])),
            ("clients", str(report["clients"])),
            ("store", f"{store['kind']}, {store['commits']} commits, {store['pending_count']} changes pending"),
            ("memory", f"{mebibytes(memory['resident_messages_bytes'])} of messages"),
        ],
    )
    queues: list[dict[str, Any]] = report["queues"]
    if queues:
        out.show("", None)
        out.table(
            ("queue", "ready", "leased", "in memory", "consumers"),
            [(q["name"], q["ready"], q["leased"], q["in_memory"], q["consumers"]) for q in queues],
        )
    return DONE


def mebibytes(count_bytes: int) -> str:
    return f"{count_bytes / 2**20:.1f} MiB"


def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the state of a node and its queues.

    Example: flyball status
    """
    run(url, as_json, show_status)
