"""Scrapes metrics as Prometheus does, and reads them with its own library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from flyball.broker.settings import Address
from tests.nodes import ANSWER_LIMIT_S

GUEST = ("guest", "guest")

Labels = frozenset[tuple[str, str]]


@dataclass
class Scrape:
    """Result of one scrape."""

    text: str
    # Of the metrics, by their names.
    kinds: dict[str, str]
    values: dict[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a sample; labels that are Python's words have an underscore behind them."""
        return self.values[name, frozenset((label.rstrip("_"), text) for label, text in labels.items())]

    def all(self, name: str) -> dict[Labels, float]:
        """Return the values of a name by their labels."""
        return {labels: value for (found, labels), value in self.values.items() if found == name}

    def labels(self) -> dict[str, set[str]]:
        """Return the names of the labels of each metric."""
        found: dict[str, set[str]] = {}
        for name, labels in self.values:
            found.setdefault(name, set()).update(label for label, _ in labels)
        return found


def read(text: str) -> Scrape:
    """Read a scrape. Each metric and each sample is there once, all samples of a metric together."""
    values: dict[tuple[str, Labels], float] = {}
    kinds: dict[str, str] = {}
    for name, kind in _types(text):
        assert name not in kinds, f"{name} comes twice"
        kinds[name] = kind
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = (sample.name, frozenset(sample.labels.items()))
            assert place not in values, f"{place} comes twice"
            values[place] = sample.value
    return Scrape(text, kinds, values)


def _types(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            yield name, kind


def scrape(address: Address, path: str = "/metrics", user: tuple[str, str] | None = GUEST) -> Scrape:
    """Ask for metrics, and read them."""
    answer = httpx.get(f"http://{address}{path}", auth=user, timeout=ANSWER_LIMIT_S)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read(answer.text)
