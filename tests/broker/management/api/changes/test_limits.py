"""Limits of virtual hosts and users are set over HTTP, as with RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from flyball.lab.rabbitmq import RabbitMq
from tests.nodes import ANSWER_LIMIT_S, RunningNode

NAME = "limited"

Ask = Callable[..., Any]


@pytest.fixture(params=["rabbitmq", "flyball"])
def ask(request: pytest.FixtureRequest, console_node: RunningNode) -> Iterator[Ask]:
    """Ask either broker for a path below /api; there are a virtual host and a user `limited`."""
    if request.param == "flyball":
        address = console_node.address("http")
    else:
        node: RabbitMq = request.getfixturevalue("counting_rabbitmq")
        address = node.api_address
    # RabbitMQ closes a connection after a refused request whose body it has not read: each request has its own.
    fresh = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(
        base_url=f"http://{address}/api", auth=("guest", "guest"), timeout=ANSWER_LIMIT_S, limits=fresh
    ) as client:

        def ask(method: str, path: str, body: object = None, auth: tuple[str, str] = ("guest", "guest")) -> Any:
            """Return the document, or the status if there is none."""
            content = None if body is None else json.dumps(body)
            headers = {"content-type": "application/json"}
            answer = client.request(method, path, content=content, headers=headers, auth=auth)
            return answer.json() if answer.status_code == 200 else answer.status_code

        assert ask("PUT", f"/vhosts/{NAME}") == 201
        assert ask("PUT", f"/users/{NAME}", {"password": NAME, "tags": "management"}) == 201
        yield ask
        assert ask("DELETE", f"/users/{NAME}") == 204
        assert ask("DELETE", f"/vhosts/{NAME}") == 204


KINDS = [("vhost", "max-connections", "max-queues"), ("user", "max-connections", "max-channels")]


@pytest.mark.parametrize(("kind", "first", "second"), KINDS)
def test_limits_are_set_listed_and_cleared(ask: Ask, kind: str, first: str, second: str) -> None:
    path = f"/{kind}-limits"
    assert ask("GET", f"{path}/{NAME}") == []
    assert ask("GET", f"{path}/{NAME}-not") == 404
    for value in (5, 0, -1, 7):
        assert ask("PUT", f"{path}/{NAME}/{first}", {"value": value}) == 204
        assert ask("GET", f"{path}/{NAME}") == [{kind: NAME, "value": {first: value}}]
    assert ask("PUT", f"{path}/{NAME}/{second}", {"value": 3}) == 204
    both = {kind: NAME, "value": {first: 7, second: 3}}
    assert ask("GET", f"{path}/{NAME}") == [both]
    assert both in ask("GET", path)
    assert ask("DELETE", f"{path}/{NAME}/{first}") == 204
    assert ask("DELETE", f"{path}/{NAME}/{first}") == 204
    assert ask("GET", f"{path}/{NAME}") == [{kind: NAME, "value": {second: 3}}]
    assert ask("DELETE", f"{path}/{NAME}/{second}") == 204
    assert ask("GET", f"{path}/{NAME}") == []


@pytest.mark.parametrize(("kind", "first", "second"), KINDS)
@pytest.mark.parametrize("body", [{"value": "3"}, {"value": 1.5}, {"value": None}, {"value": True}, {}])
def test_limit_that_is_not_a_number_is_refused(ask: Ask, kind: str, first: str, second: str, body: object) -> None:
    assert ask("PUT", f"/{kind}-limits/{NAME}/{first}", body) == 400
    assert ask("PUT", f"/{kind}-limits/{NAME}/max-nonsense", {"value": 1}) == 400
    assert ask("GET", f"/{kind}-limits/{NAME}") == []


def test_limits_are_in_the_definitions(ask: Ask) -> None:
    ask("PUT", f"/vhost-limits/{NAME}/max-queues", {"value": 4})
    ask("PUT", f"/user-limits/{NAME}/max-channels", {"value": 5})
    parameter = {"value": {"max-queues": 4}, "vhost": NAME, "component": "vhost-limits", "name": "limits"}
    for path in ("/parameters", "/parameters/vhost-limits", f"/parameters/vhost-limits/{NAME}"):
        assert parameter in ask("GET", path)
    assert ask("GET", f"/parameters/vhost-limits/{NAME}/limits") == parameter
    exported = ask("GET", "/definitions")
    assert parameter in exported["parameters"]
    assert [user["limits"] for user in exported["users"] if user["name"] == NAME] == [{"max-channels": 5}]
    assert ask("GET", f"/definitions/{NAME}")["parameters"] == [parameter]
    assert ask("GET", f"/users/{NAME}")["limits"] == {"max-channels": 5}
    wanted = {
        "users": [{"name": NAME, "password": NAME, "tags": ["management"], "limits": {"max-channels": 6}}],
        "parameters": [{**parameter, "value": {"max-connections": 7}}],
    }
    assert ask("POST", "/definitions", wanted) == 204
    assert ask("GET", f"/vhost-limits/{NAME}") == [{"vhost": NAME, "value": {"max-connections": 7}}]
    assert ask("GET", f"/user-limits/{NAME}") == [{"user": NAME, "value": {"max-channels": 6}}]
    without = {"users": [{"name": NAME, "password": NAME, "tags": ["management"]}]}
    assert ask("POST", "/definitions", without) == 204
    assert ask("GET", f"/user-limits/{NAME}") == [{"user": NAME, "value": {"max-channels": 6}}]
    wrong = {"parameters": [{**parameter, "value": {"max-nonsense": 1}}]}
    assert ask("POST", "/definitions", wrong) == 400


def test_import_that_would_exceed_the_queue_limit_is_refused(ask: Ask) -> None:
    ask("PUT", f"/vhost-limits/{NAME}/max-queues", {"value": 1})
    queue = {"durable": True, "auto_delete": False, "arguments": {}}
    assert ask("PUT", f"/queues/{NAME}/one", {"durable": True}) == 201
    assert ask("PUT", f"/queues/{NAME}/two", {"durable": True}) == 400
    assert ask("POST", f"/definitions/{NAME}", {"queues": [{"name": "two", **queue}]}) == 400
    assert [found["name"] for found in ask("GET", f"/queues/{NAME}")] == ["one"]
    assert ask("POST", f"/definitions/{NAME}", {"queues": [{"name": "one", **queue}]}) in (204, 400)


def test_user_that_is_changed_keeps_its_limits(ask: Ask) -> None:
    ask("PUT", f"/user-limits/{NAME}/max-channels", {"value": 5})
    assert ask("PUT", f"/users/{NAME}", {"password": "other", "tags": ""}) == 204
    assert ask("GET", f"/user-limits/{NAME}") == [{"user": NAME, "value": {"max-channels": 5}}]


def test_only_administrators_set_limits(ask: Ask) -> None:
    user = (NAME, NAME)
    for path in ("/vhost-limits", "/user-limits"):
        assert isinstance(ask("GET", path, auth=user), list)
    for path in (f"/vhost-limits/{NAME}/max-queues", f"/user-limits/{NAME}/max-channels"):
        # RabbitMQ says 401, as if it did not know the user.
        assert ask("PUT", path, {"value": 1}, auth=user) in (401, 403)
        assert ask("DELETE", path, auth=user) in (401, 403)
