"""Answers of the API about the whole: totals, nodes, virtual hosts, and the lists that are always empty."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from flyball.broker.management.api import nodes
from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.login import ConsoleLogin
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.node.node import Node
from flyball.broker.node.resources import Resources
from flyball.broker.protocols.amqp.context import server_properties
from tests.broker.management.api.conftest import Api
from tests.nodes import RunningNode


def test_the_overview_adds_up_what_happens(api: Api, channel: Any) -> None:
    before = api.get("/overview")
    channel.queue_declare("overviewed")
    channel.confirm_delivery()
    channel.basic_publish("", "overviewed", b"")
    channel.basic_get("overviewed", auto_ack=True)
    channel.basic_get("overviewed", auto_ack=True)
    after = api.get("/overview")

    def grown(*place: str) -> int:
        found: list[Any] = []
        for document in (before, after):
            for name in place:
                document = document[name]
            found.append(document)
        return int(found[1] - found[0])

    for name in ("publish", "confirm", "get_no_ack", "deliver_get", "get_empty"):
        assert grown("message_stats", name) == 1
    assert grown("object_totals", "queues") == 1
    assert grown("churn_rates", "queue_created") == 1
    assert after["object_totals"]["connections"] >= 1
    assert after["queue_totals"]["messages"] == (
        after["queue_totals"]["messages_ready"] + after["queue_totals"]["messages_unacknowledged"]
    )


def test_the_overview_names_the_product_and_the_version_of_the_api(api: Api) -> None:
    found = api.get("/overview")
    assert found["product_name"] == "Flyball"
    assert found["rabbitmq_version"] == server_properties()["version"]
    assert found["product_version"] == server_properties()["flyball_version"]
    assert (found["node"], found["cluster_name"]) == ("north", "north")
    assert api.get("/cluster-name") == {"name": "north"}


def test_listeners_are_those_of_the_node(api: Api, console_node: RunningNode) -> None:
    found = {listener["protocol"]: listener["port"] for listener in api.get("/overview")["listeners"]}
    assert found["amqp"] == console_node.address("amqp").port
    assert found["http"] == console_node.address("http").port


def test_one_document_can_be_cut_down_to_some_fields(api: Api) -> None:
    assert api.get("/overview?columns=node,object_totals.queues").keys() == {"node", "object_totals"}


def test_a_node_tells_of_its_process(api: Api) -> None:
    found = api.get("/nodes/north")
    assert api.names("/nodes") == ["north"]
    assert (found["running"], found["type"], found["mem_alarm"]) == (True, "disc", False)
    assert 0 < found["fd_used"] < found["fd_total"]
    assert found["mem_used"] > 1_000_000
    assert found["uptime"] > 0
    assert api.ask("/nodes/south").status_code == 404


def test_node_tells_what_takes_its_memory(api: Api) -> None:
    found = api.get("/nodes/north/memory")["memory"]
    assert found["total"]["rss"] > 1_000_000
    assert found["strategy"] == "rss"
    assert found["mnesia"] == found["ledger"]["definitions_bytes"]
    assert found["ledger"]["level_bytes"] < found["ledger"]["limit_bytes"]
    assert found["ledger"]["vhosts"]["/"]["definitions_bytes"] > 0
    assert api.ask("/nodes/south/memory").status_code == 404


def test_a_node_whose_disk_cannot_be_asked_tells_all_the_rest(
    console_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def twice(node: Node) -> list[dict[str, Any]]:
        times_s = iter(range(0, 100, 5))
        sampler = Sampler(node, lambda: next(times_s))
        context = ApiContext(node, sampler, DomainNodes(node, sampler), ConsoleLogin(node.hub.authority))
        known = await nodes.document(context)
        monkeypatch.setattr(node, "resources", Resources(node.settings.data / "gone"))
        return [known, await nodes.document(context), await nodes.document(context)]

    first, *others = console_node.run(twice)
    assert first["disk_free"] > 0
    for found in others:
        assert (found["disk_free"], found["disk_free_details"]) == (None, {"rate": 0.0})
        assert found["mem_used"] > 1_000_000


def test_a_vhost_tells_what_its_queues_hold(api: Api, channel: Any) -> None:
    before = api.get("/vhosts/%2F")
    channel.queue_declare("in-the-vhost")
    channel.confirm_delivery()
    channel.basic_publish("", "in-the-vhost", b"")
    after = api.get("/vhosts/%2F")
    assert after["messages_ready"] == before["messages_ready"] + 1
    assert after["message_stats"]["publish"] == before["message_stats"]["publish"] + 1
    assert after["cluster_state"] == {"north": "running"}
    assert "/" in api.names("/vhosts")
    assert api.ask("/vhosts/nowhere").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/extensions",
        "/parameters",
        "/parameters/federation",
        "/parameters/federation/%2F",
        "/global-parameters",
        "/vhost-limits",
        "/vhost-limits/%2F",
        "/user-limits",
        "/user-limits/guest",
        "/federation-links",
        "/federation-links/%2F",
        "/feature-flags",
    ],
)
def test_what_flyball_does_not_have_is_an_empty_list(api: Api, path: str) -> None:
    assert api.get(path) == []


@pytest.mark.parametrize("path", ["/parameters/federation/%2F/name", "/global-parameters/name", "/vhost-limits/none"])
def test_single_things_that_flyball_does_not_have_are_not_found(api: Api, path: str) -> None:
    assert api.ask(path).status_code == 404


def test_how_to_log_in_is_told_to_everybody(console_node: RunningNode) -> None:
    answer = httpx.get(f"http://{console_node.address('http')}/api/auth")
    assert (answer.status_code, answer.json()["enable_uaa"]) == (200, False)
