"""Renders the state of a node as one terminal screen. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import JustifyMethod, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flyball.cli.output import shown
from flyball.cli.view.feed import CONNECTING, Sample, Seen
from flyball.cli.view.sparklines import mebibytes, milliseconds, short, sparks

RATES = {
    "publish": "published",
    "confirm": "confirmed",
    "deliver": "delivered",
    "ack": "acknowledged",
    "commits": "commits",
    "get": "basic.get",
    "redeliver": "redelivered",
}
GAUGES = {
    "ready": "ready",
    "unacked": "unacked",
    "connections": "connections",
    "channels": "channels",
    "consumers": "consumers",
    "queues": "queues",
    "pending_changes": "to store",
}
BYTES = {"memory_bytes": "memory", "resident_bytes": "messages"}
PHASES = ("wait", "parse", "engine", "store", "emit", "p50", "p99")
KEYS = "q quits   s sorts the queues   p pauses"
# With fewer lines, less important parts are omitted.
LOW = 30
MOST_RATES = (5, len(RATES))
# Maximum loops on a low terminal, and on others.
MOST_LOOPS = (1, 6)
BORDER_LINES = 2
GAUGES_COLUMNS = 45
# Width of a rate, without its sparkline.
RATE_COLUMNS = 27
FEWEST_SPARKS = 8
# With fewer columns, sparklines of loops are short.
NARROW = 100
# Scale of a loop's sparkline, as a multiple of its setpoint, so that both sides of the setpoint are visible.
HEADROOM = 1.5
BORDER = "grey50"


def screen(seen: Seen, width: int, height: int, *, is_paused: bool = False) -> RenderableType:
    """Render everything in the size of the terminal."""
    is_high = height >= LOW
    rates = MOST_RATES[is_high]
    loops = sorted(seen.last.get("loops", []), key=lambda loop: loop["state"] != "running")[: MOST_LOOPS[is_high]]
    parts: list[tuple[RenderableType, int]] = [(_head(seen, is_paused), 1)]
    alarms = [shown(str(alarm)) for alarm in seen.last.get("alarms", [])]
    if alarms:
        parts.append((Text("ALARM: " + "; ".join(alarms), style="bold white on red", no_wrap=True), 1))
    parts.append((_upper(seen, width, rates), rates + BORDER_LINES))
    parts.append((_phases(seen.last), 3 + BORDER_LINES))
    if loops:
        parts.append((_loops(seen, loops, width), len(loops) + 1 + BORDER_LINES))
    left = height - sum(size for _, size in parts) - 1
    layouts = [Layout(part, size=size) for part, size in parts]
    layouts.append(Layout(_queues(seen, max(left - 1 - BORDER_LINES, 1)), minimum_size=1))
    layouts.append(Layout(Text(KEYS, style="dim"), size=1))
    layout = Layout()
    layout.split_column(*layouts)
    return layout


def _head(seen: Seen, is_paused: bool) -> Text:
    sample = seen.last
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(" flyball top ", style="bold reverse")
    head.append(f"  {sample.get('node', '')}  ", style="bold")
    head.append(f"{seen.address}  ")
    if sample:
        head.append(time.strftime("%H:%M:%S", time.localtime(sample["at"])) + "  ")
    if is_paused:
        head.append(" paused ", style="reverse yellow")
        head.append("  ")
    if seen.problem == CONNECTING:
        head.append(CONNECTING)
    elif seen.problem is not None:
        head.append(f" unreachable: {seen.problem}; retrying  ", style="bold white on red")
    elif not is_paused:
        head.append("live", style="green")
    # Users without the right do not receive alarms.
    if sample.get("alarms") == []:
        head.append("  no alarms", style="dim")
    return head


def _upper(seen: Seen, width: int, most_rates: int) -> RenderableType:
    row = Layout()
    row.split_row(Layout(_rates(seen.samples, width, most_rates)), Layout(_gauges(seen.last), size=GAUGES_COLUMNS))
    return row


def _rates(samples: Iterable[Sample], width: int, most: int) -> Panel:
    samples = list(samples)
    table = _table(has_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="cyan")
    room = max(width - GAUGES_COLUMNS - RATE_COLUMNS, FEWEST_SPARKS)
    for name, label in list(RATES.items())[:most]:
        values = [sample.get("rates", {}).get(name) for sample in samples]
        table.add_row(label, short(values[-1] if values else None), sparks(values, room))
    return _panel(table, "a second")


def _gauges(sample: Sample) -> Panel:
    gauges = sample.get("gauges", {})
    table = _table(has_header=False)
    sides: tuple[JustifyMethod, ...] = ("left", "right", "left", "right")
    for justify in sides:
        table.add_column(justify=justify, no_wrap=True)
    cells = [(label, short(gauges.get(name))) for name, label in GAUGES.items()]
    cells += [(label, mebibytes(gauges.get(name))) for name, label in BYTES.items()]
    cpu = gauges.get("cpu_ratio")
    cells.append(("CPU", "–" if cpu is None else f"{cpu:.0%}"))
    half = -(-len(cells) // 2)
    for left, right in zip(cells[:half], cells[half:], strict=True):
        table.add_row(*left, *right)
    return _panel(table, "now")


def _phases(sample: Sample) -> Panel:
    table = _table()
    table.add_column()
    for phase in PHASES:
        table.add_column(phase, justify="right")
    found: Mapping[str, Mapping[str, float | None]] = sample.get("latency_ms", {})
    for name in ("publish", "get"):
        phases = found.get(name) or {}
        table.add_row(name, *(milliseconds(phases.get(phase)) for phase in PHASES))
    return _panel(table, "milliseconds by phase")


def _loops(seen: Seen, loops: Sequence[Mapping[str, Any]], width: int) -> Panel:
    table = _table()
    table.add_column("loop", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("setpoint", "measured", "action"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    table.add_column("measured", style="cyan")
    table.expand = True
    room = 16 if width < NARROW else 40
    for loop in loops:
        values = [_measured(sample, loop["name"]) for sample in seen.samples]
        highest = None if loop["setpoint"] is None else HEADROOM * loop["setpoint"]
        state = "shadow" if loop["is_shadow"] else str(loop["state"])
        style = {"running": "green", "shadow": "yellow", "gone": "dim"}.get(state, "")
        table.add_row(
            Text(shown(str(loop["name"]))),
            *(short(loop[name]) for name in ("setpoint", "measurement", "action")),
            Text(state, style=style),
            sparks(values, room, highest),
        )
    return _panel(table, "loops")


def _measured(sample: Sample, name: str) -> float | None:
    return next((one["measurement"] for one in sample.get("loops", []) if one["name"] == name), None)


def _queues(seen: Seen, lines: int) -> Panel:
    table = _table()
    table.expand = True
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("ready", "unacked", "consumers", "in/s", "out/s", "ack/s"):
        table.add_column(heading, justify="right")
    for queue in seen.queues[:lines]:
        name = queue["name"] if queue["vhost"] == "/" else f"{queue['vhost']}/{queue['name']}"
        counts = (short(queue[name]) for name in ("ready", "unacked", "consumers"))
        rates = (short(queue["rates"][name]) for name in ("publish", "deliver", "ack"))
        table.add_row(Text(shown(name)), *counts, *rates)
    return _panel(table, f"queues by {seen.sort.value}, {len(seen.queues[:lines])} of {seen.queue_count:,}")


def _table(*, has_header: bool = True) -> Table:
    return Table(box=None, pad_edge=False, header_style="dim", show_header=has_header)


def _panel(content: RenderableType, title: str) -> Panel:
    return Panel(content, title=title, title_align="left", border_style=BORDER, padding=(0, 1))
