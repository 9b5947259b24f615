"""Topics are made, moved and deleted over HTTP, by users with the rights for the exchanges and queues behind them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from flyball.model import Permission
from tests.broker.management.api.conftest import connected
from tests.nodes import RunningNode


def parents(api: httpx.Client) -> dict[str, str | None]:
    return {topic["name"]: topic["parent"] for topic in api.get("/topics/%2F").json()}


def test_topics_are_created_moved_and_deleted(api: httpx.Client) -> None:
    assert api.put("/topics/%2F/news").status_code == 201
    assert api.put("/topics/%2F/news").status_code == 204
    assert api.put("/topics/%2F/news.sport", json={"parent": "news"}).status_code == 201
    assert api.get("/topics/%2F/news.sport").json() == {"name": "news.sport", "vhost": "/", "parent": "news"}
    assert api.get("/topics").json() == api.get("/topics/%2F").json()
    refused = api.put("/topics/%2F/news.sport", json={"parent": None})
    assert (refused.status_code, refused.json()["kind"]) == (400, "InvalidArgument")
    assert api.put("/topics/%2F/news.sport/parent", json={"parent": None}).status_code == 204
    assert parents(api) == {"news": None, "news.sport": None}
    assert api.delete("/topics/%2F/news").status_code == 204
    assert api.delete("/topics/%2F/news").status_code == 404
    assert parents(api) == {"news.sport": None}


def test_topic_with_children_stays(api: httpx.Client) -> None:
    api.put("/topics/%2F/news")
    api.put("/topics/%2F/news.sport", json={"parent": "news"})
    refused = api.delete("/topics/%2F/news")
    assert (refused.status_code, refused.json()["kind"]) == (400, "TopicInUse")
    assert api.put("/topics/%2F/news/parent", json={"parent": "news.sport"}).status_code == 400
    assert api.put("/topics/%2F/other", json={"parent": "nowhere"}).status_code == 404


def test_subscription_is_listed_and_ended(api: httpx.Client, node: RunningNode) -> None:
    api.put("/topics/%2F/news")
    with connected(node.address("amqp")) as connection:
        channel = connection.channel()
        channel.queue_declare("news/mail", durable=True)
        channel.queue_bind("news/mail", "news", "#")
        tag = channel.basic_consume("news/mail", lambda *delivery: None)
        [found] = api.get("/topics/%2F/news/subscriptions").json()
        assert (found["subscription"], found["queue"], found["consumers"]) == ("mail", "news/mail", 1)
        assert api.delete("/topics/%2F/news/subscriptions/mail").json()["kind"] == "QueueInUse"
        channel.basic_cancel(tag)
    assert api.delete("/topics/%2F/news/subscriptions/mail").status_code == 204
    assert api.delete("/topics/%2F/news/subscriptions/mail").status_code == 404
    assert api.get("/topics/%2F/nowhere/subscriptions").status_code == 404


CHANGES: list[tuple[str, str, Any]] = [
    ("PUT", "/topics/%2F/theirs", None),
    ("PUT", "/topics/%2F/own.theirs", {"parent": "theirs"}),
    ("PUT", "/topics/%2F/theirs/parent", {"parent": None}),
    ("DELETE", "/topics/%2F/theirs", None),
    ("DELETE", "/topics/%2F/theirs/subscriptions/own", None),
]


@pytest.mark.parametrize(("method", "path", "document"), CHANGES, ids=lambda value: str(value))
def test_permissions_apply_to_topics(
    api: httpx.Client,
    node: RunningNode,
    users: dict[str, tuple[str, str]],
    method: str,
    path: str,
    document: Any,
) -> None:
    node.run(lambda node: node.hub.authority.set_permission(Permission("management", "/", "^own", "^own", "^own")))
    api.put("/topics/%2F/theirs")
    refused = api.request(method, path, json=document, auth=users["management"])
    assert (refused.status_code, refused.json()["kind"]) == (401, "NotPermitted")
    assert api.put("/topics/%2F/own", auth=users["management"]).status_code == 201
    assert parents(api) == {"own": None, "theirs": None}


def test_topic_is_bound_and_unbound_with_the_permissions_of_its_bindings(
    api: httpx.Client, node: RunningNode, users: dict[str, tuple[str, str]]
) -> None:
    permission = Permission("management", "/", configure="^(own|secret)", write="^own", read="^own")
    node.run(lambda node: node.hub.authority.set_permission(permission))
    api.put("/topics/%2F/secret")
    api.put("/topics/%2F/own.below", json={"parent": "secret"})
    api.put("/topics/%2F/own")
    for name, parent in (("secret", "own"), ("own.below", "own"), ("own.below", None)):
        refused = api.put(f"/topics/%2F/{name}/parent", json={"parent": parent}, auth=users["management"])
        assert (refused.status_code, refused.json()["kind"]) == (401, "NotPermitted")
    assert parents(api) == {"secret": None, "own.below": "secret", "own": None}


def test_exclusive_queue_of_a_connection_is_not_ended(api: httpx.Client, node: RunningNode) -> None:
    api.put("/topics/%2F/news")
    with connected(node.address("amqp")) as connection:
        channel = connection.channel()
        channel.queue_declare("news/mail", exclusive=True)
        assert api.delete("/topics/%2F/news/subscriptions/mail").json()["kind"] == "QueueLocked"
        channel.queue_declare("news/mail", passive=True)


def test_topics_of_other_vhosts_are_not_seen(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    api.put("/topics/%2F/news")
    assert api.get("/topics", auth=users["management"]).json() == []
    assert api.get("/topics/%2F", auth=users["management"]).status_code == 401
    assert api.get("/topics", auth=users["nothing"]).status_code == 401
    assert [topic["name"] for topic in api.get("/topics", auth=users["monitoring"]).json()] == ["news"]
