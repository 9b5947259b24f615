"""The dashboard for Grafana and the documentation are about metrics that a real domain has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pika
import pytest

from flyball.broker.cluster.node import attached
from flyball.broker.management.part import console_part
from flyball.broker.node.node import Node
from tests.broker.management.metrics.promql import Wrong, metrics_in
from tests.broker.management.metrics.scrapes import GUEST, Scrape, scrape
from tests.nodes import RunningNode

DOCS = Path(__file__).parents[4] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "flyball.json").read_text())

# Labels that Prometheus adds.
OF_PROMETHEUS = {"instance", "job"}


@asynccontextmanager
async def governed(node: Node) -> AsyncIterator[None]:
    async with attached(node, {}, asyncio.Event()):
        yield


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[], str]) -> Iterator[RunningNode]:
    """A node that leads a domain with a clustered queue and a consumer of it."""
    parts = [governed, console_part()]
    flags = {"store": new_database(), "name": "north", "http": "127.0.0.1:0", "trace": "on"}
    with RunningNode(tmp_path_factory.mktemp("domain"), parts=parts, **flags) as node:
        node.wait_until(lambda node: node.hub.reports["domain"]()["leads"])
        url = f"http://{node.address('http')}/api/flyball/domain/commands/cluster.create"
        wish = {"name": "orders", "members": ["north"]}
        httpx.post(url, json=wish, auth=GUEST, timeout=30).raise_for_status()
        connection = pika.BlockingConnection(pika.ConnectionParameters(*node.address("amqp"), heartbeat=0))
        channel = connection.channel()
        channel.basic_consume("orders", print)
        channel.basic_publish("", "orders", b"something")
        yield node
        connection.close()


@pytest.fixture(scope="module")
def found(domain: RunningNode) -> Scrape:
    """Return a scrape of the domain, once the nodes have exchanged all that there is."""
    needed = ("flyball_cluster_sessions", "flyball_loop_action", "flyball_phase_seconds_bucket")
    positive = ("flyball_cluster_member_load", "flyball_cluster_member_unacked")

    def is_whole(found: Scrape) -> bool:
        return all(map(found.all, needed)) and all(any(found.all(name).values()) for name in positive)

    while not is_whole(found := scrape(domain.address("http"))):
        pass
    return found


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$__rate_interval", "1m", text) for text in targets]


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(found: Scrape) -> None:
    asked = [metric for text in expressions() for metric in metrics_in(text)]
    assert len(asked) > 50
    known = found.labels()
    assert {metric.name for metric in asked} - known.keys() == set()
    for metric in asked:
        assert metric.labels - known[metric.name] - OF_PROMETHEUS == set(), metric.name


def test_the_variables_of_the_dashboard_have_values(found: Scrape) -> None:
    names = set()
    for variable in DASHBOARD["templating"]["list"]:
        names.add(variable["name"])
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert asked is not None
            assert asked[2] in found.labels()[asked[1]] | OF_PROMETHEUS
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} == names


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_a_leader_tells_of_its_domain(found: Scrape) -> None:
    assert found.value("flyball_node_leads") == 1
    assert found.value("flyball_cluster_members", vhost="/", queue="orders") == 1
    assert found.value("flyball_cluster_member_load", vhost="/", queue="orders", node="north") > 0
    assert found.value("flyball_cluster_member_unacked", vhost="/", queue="orders") == 1
    this = {"vhost": "/", "queue": "orders", "node": "north"}
    assert found.value("flyball_cluster_sessions", **this, role="consumer") == 1
    assert found.value("flyball_cluster_decisions_total", kind="Lead") == 1


def test_the_documentation_names_the_metrics_that_there_are(domain: RunningNode, found: Scrape) -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    named = {name.removesuffix("_bucket") for name in re.findall(r"`((?:flyball|process)_\w+)`", text)}
    objects = scrape(domain.address("http"), "/metrics/per-object")
    own = {name for name in {*found.kinds, *objects.kinds} if not name.startswith("rabbitmq_")}
    assert named == own


@pytest.mark.parametrize("text", ["sum(", "rate(a[1m]) b", 'a{b="c}', "sum by (a b) (c)", "a + ", "a{b}"])
def test_what_is_no_expression_is_found_out(text: str) -> None:
    with pytest.raises(Wrong):
        metrics_in(text)


def test_metrics_of_an_expression_are_told_with_their_labels() -> None:
    text = 'histogram_quantile(0.99, sum by (le) (rate(a_bucket{kind=~"put"}[1m]))) / (b - 2)'
    assert [(metric.name, metric.labels) for metric in metrics_in(text)] == [
        ("a_bucket", {"le", "kind"}),
        ("b", set()),
    ]
