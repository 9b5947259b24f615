"""Formatting of numbers, intervals, metrics and factors for a reader.

Intervals are in the papers' notation: `10.0 ± 5.0` by Student, `10.0 ± [-3.0, 5.0]` by quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# Shown in place of a missing number.
NOTHING = "–"

# The kind for requests of all kinds.
ALL = "all"

# The parts of a request's time in a node, in chronological order.
PHASES = ("wait", "parse", "engine", "store", "emit")

# The same time in the three parts of the ThorBangMQ report.
COMPONENTS = ("socket", "worker", "persistence")

_METRICS = {
    "throughput": "throughput",
    "messages": "message throughput",
    "response": "response time",
    "service": "service time",
    "think": "think time",
    "wait": "waiting in the node",
    "parse": "parsing",
    "engine": "engine",
    "store": "store",
    "emit": "emitting",
    "socket": "socket I/O and queueing",
    "worker": "request worker",
    "persistence": "persistence",
    "network": "network time",
    "loop_mean": "mean rate",
    "loop_std": "standard deviation",
    "loop_settling": "settling",
    "loop_overshoot": "overshoot",
    "queue_rate": "rate of the queue",
    "queue_peak": "highest rate over 10 s",
}
_UNITS = {
    "throughput": "requests/s",
    "messages": "messages/s",
    "loop_mean": "messages/s",
    "loop_std": "messages/s",
    "queue_rate": "messages/s",
    "queue_peak": "messages/s",
}
_PROPER_NAMES = {
    "flyball": "Flyball",
    "domain": "a domain of Flyball nodes",
    "rabbitmq": "RabbitMQ",
    "thorbang": "ThorBangMQ",
    "telesto": "Telesto",
    "amqp": "AMQP",
    "http": "HTTP",
    "auction": "the auction site",
}
_UNITS_OF_NAMES = ("bytes", "ms", "s", "us")
_ACTIONS = {"integer": "prefetch count", "fractional": "prefetch count", "pacer": "pace [messages/s]"}
_HIGHER_IS_BETTER = frozenset({"throughput", "messages", "queue_rate", "queue_peak"})


def metric_name(metric: str) -> str:
    """Return the words for a metric of the tables; an unknown metric keeps its name."""
    return _METRICS.get(metric, metric.replace("_", " "))


def unit_of(metric: str, unit: str = "ms") -> str:
    """Return a metric's unit in words; `unit` is the tables' own."""
    return _UNITS.get(metric, unit)


def is_higher_better(metric: str) -> bool:
    """Whether larger values are better."""
    return metric in _HIGHER_IS_BETTER


def axis_name(factor: str) -> str:
    """Return a factor's short name for an axis, its unit in brackets: `body [bytes]`."""
    name, _, unit = factor.rpartition(" ")
    return f"{name} [{unit}]" if name and unit in _UNITS_OF_NAMES else factor


def action_name(actuator: str) -> str:
    """Return the name of an actuator's action, with its unit in brackets if it has one."""
    return _ACTIONS.get(actuator, "action")


def goal_text(value: float) -> str:
    """Return a goal as it was configured: 400, not 400.0."""
    return f"{value:,g}"


def proper(name: str) -> str:
    """Return a target or a protocol in its own spelling."""
    return _PROPER_NAMES.get(name, name)


def target_name(target: Mapping[str, Any]) -> str:
    """Return the name of the server under load: for one that the lab did not start its label, or else its address."""
    if target.get("kind") != "foreign":
        return proper(str(target.get("kind", "")))
    addresses = ", ".join(target.get("addresses", ()))
    return str(target.get("label") or f"the server at {addresses}" if addresses else "a server")


def capital(text: str) -> str:
    """Return the text with its first letter in upper case, and the others unchanged."""
    return text[:1].upper() + text[1:]


def amount(value: float | None, decimals: int | None = None) -> str:
    """Return a number with three significant digits and thousands separators."""
    if not is_number(value):
        return NOTHING
    assert value is not None
    return f"{value:,.{_decimals(value) if decimals is None else decimals}f}"


def whole(value: float | None) -> str:
    """Return a count."""
    return f"{round(value):,}" if value is not None and is_number(value) else NOTHING


def brief(value: float) -> str:
    """Return a large count for a tile: 1.2 million."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if abs(value) >= size:
            return f"{value / size:.3g} {word}"
    return whole(value)


def percent(ratio: float | None) -> str:
    """Return a ratio from 0 to 1 in percent."""
    return (
        f"{amount(ratio * 100, 0 if abs(ratio) >= 0.1 else 1)} %"
        if ratio is not None and is_number(ratio)
        else NOTHING
    )


def student(mean: float, half_width: float | None) -> str:
    """Return `10.0 ± 5.0`: mean and half of the interval by Student; the mean alone without an interval."""
    if half_width is None or not is_number(half_width) or not is_number(mean):
        return amount(mean)
    decimals = _decimals(mean, half_width)
    return f"{amount(mean, decimals)} ± {amount(half_width, decimals)}"


def quantiles(mean: float, low: float | None, high: float | None) -> str:
    """Return `10.0 ± [-3.0, 5.0]`: mean and the distances of the 5 % and 95 % quantiles from it."""
    if low is None or high is None or not (is_number(mean) and is_number(low) and is_number(high)):
        return amount(mean)
    decimals = _decimals(mean, max(abs(low), abs(high)))
    return f"{amount(mean, decimals)} ± [{amount(low, decimals)}, {amount(high, decimals)}]"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{amount(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count_of(number: int, one: str, many: str = "") -> str:
    """Return `1 run` or `3 runs`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def level(value: object) -> str:
    """Return one level of a factor, or one value of a setting."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {level(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(level(part) for part in value) or "none"
    return "none" if value is None or value == "" else str(value)


def setting_text(value: object) -> str:
    """Return one value of a setting as in a configuration: ports and seeds have no thousands separators."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else level(value)


def factor_names(factors: Iterable[str]) -> dict[str, str]:
    """Return a short name for each factor: `workload.clients` is `clients` if that is unique."""
    names = list(factors)
    short = {name: name.rpartition(".")[2].replace("_", " ") for name in names}
    return {
        name: name.replace("_", " ") if list(short.values()).count(text) > 1 else text for name, text in short.items()
    }


def cell_name(factors: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the label of a cell: `clients 10, handler time 0.01 s, RabbitMQ`."""
    return ", ".join(factor_text(name, value, names) for name, value in factors.items()) or "this run"


def factor_text(name: str, value: object, names: Mapping[str, str]) -> str:
    """Return a factor with its level; the kind of a target needs no factor."""
    if name == "target.kind":
        return proper(level(value))
    words, _, unit = names.get(name, name).rpartition(" ")
    has_unit = bool(words) and unit in _UNITS_OF_NAMES and isinstance(value, int | float)
    return f"{words} {level(value)} {unit}" if has_unit else f"{names.get(name, name)} {level(value)}"


def is_number(value: float | None) -> bool:
    """Whether it is not null and finite."""
    return value is not None and math.isfinite(value)


def _decimals(*values: float) -> int:
    """Return how many decimals show three digits of the largest value, and at least one of them."""
    largest = max((abs(value) for value in values if is_number(value)), default=0.0)
    if largest == 0 or largest >= 1:
        return 1 if largest < 1e5 else 0
    return min(2 - math.floor(math.log10(largest)), 6)
