"""A path of the API with a slash at its end means what it means without, on RabbitMQ and on a node."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from flyball.broker.settings import Address
from flyball.lab.rabbitmq import RabbitMq
from tests.broker.management.api.conftest import GUEST
from tests.nodes import ANSWER_LIMIT_S, RunningNode

LISTS = (
    "bindings",
    "channels",
    "cluster-name",
    "connections",
    "consumers",
    "definitions",
    "exchanges",
    "extensions",
    "global-parameters",
    "nodes",
    "overview",
    "parameters",
    "permissions",
    "policies",
    "queues",
    "users",
    "users/without-permissions",
    "vhosts",
    "whoami",
    "health/checks/alarms",
    "aliveness-test/%2F",
    "queues/%2F",
    "exchanges/%2F",
    "bindings/%2F",
    "policies/%2F",
    "consumers/%2F",
)

MESSAGE = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}

CHANGES: tuple[tuple[str, str, object, int], ...] = (
    ("PUT", "vhosts/slash", None, 201),
    ("PUT", "users/slash", {"password": "x", "tags": ""}, 201),
    ("PUT", "permissions/slash/slash", {"configure": "", "write": "", "read": ""}, 201),
    ("PUT", "permissions/slash/guest", {"configure": ".*", "write": ".*", "read": ".*"}, 204),
    ("PUT", "queues/slash/q", {"durable": True}, 201),
    ("PUT", "exchanges/slash/x", {"type": "topic"}, 201),
    ("POST", "bindings/slash/e/x/q/q", {"routing_key": "k"}, 201),
    ("PUT", "policies/slash/p", {"pattern": "zz", "definition": {"max-length": 1}}, 201),
    ("POST", "exchanges/slash/x/publish", MESSAGE, 200),
    ("POST", "queues/slash/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 200),
    ("GET", "queues/slash/q", None, 200),
    ("GET", "queues/slash/q/bindings", None, 200),
    ("GET", "exchanges/slash/x/bindings/source", None, 200),
    # The default exchange, whose name is empty, and then a slash.
    ("GET", "exchanges/slash/", None, 200),
    ("GET", "exchanges/slash//bindings/source", None, 200),
    ("GET", "bindings/slash/e/x/q/q/k", None, 200),
    ("GET", "vhosts/slash/permissions", None, 200),
    ("GET", "users/slash/permissions", None, 200),
    ("GET", "queues/slash/none", None, 404),
    ("GET", "queues/slash/", None, 404),
    ("GET", "nothing", None, 404),
    ("PATCH", "queues", None, 405),
    ("DELETE", "queues/slash/q/contents", None, 204),
    ("DELETE", "bindings/slash/e/x/q/q/k", None, 204),
    ("DELETE", "policies/slash/p", None, 204),
    ("DELETE", "exchanges/slash/x", None, 204),
    ("DELETE", "queues/slash/q", None, 204),
    ("DELETE", "permissions/slash/slash", None, 204),
    ("DELETE", "users/slash", None, 204),
    ("DELETE", "vhosts/slash", None, 204),
)


@pytest.fixture(params=["rabbitmq", "flyball"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    address: Address
    if request.param == "rabbitmq":
        rabbitmq: RabbitMq = request.getfixturevalue("counting_rabbitmq")
        address = rabbitmq.api_address
    else:
        node: RunningNode = request.getfixturevalue("console_node")
        address = node.address("http")
    # It follows no redirects: clients lose the body of a request, or their password, with some.
    with httpx.Client(base_url=f"http://{address}/api/", auth=GUEST, timeout=ANSWER_LIMIT_S) as client:
        yield client


def test_lists_are_served_with_a_trailing_slash(client: httpx.Client) -> None:
    assert {path: client.get(f"{path}/").status_code for path in LISTS} == dict.fromkeys(LISTS, 200)
    assert client.get("queues/?page=1&page_size=1").json()["page"] == 1


def test_every_method_takes_a_trailing_slash(client: httpx.Client) -> None:
    for method, path, body, status in CHANGES:
        answer = client.request(method, f"{path}/", json=body)
        assert answer.status_code == status, f"{method} {path}/: {answer.text}"


def test_names_that_end_with_an_encoded_slash_keep_it(client: httpx.Client) -> None:
    assert client.put("queues/%2F/slash%2F", json={}).status_code == 201
    assert client.get("queues/%2F/slash%2F/").json()["name"] == "slash/"
    assert client.get("queues/%2F/slash/").status_code == 404
    assert client.delete("queues/%2F/slash%2F/").status_code == 204
