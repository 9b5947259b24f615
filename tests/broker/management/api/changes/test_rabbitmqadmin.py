"""RabbitMQ's own tool changes a node of Flyball, and definitions go from the one broker to the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.lab.rabbitmq import RabbitMq
from tests.broker.management import rabbitmqadmin
from tests.nodes import RunningNode

Run = Callable[..., str]


@pytest.fixture
def admin(admin_tool: Path, console_node: RunningNode, vhost: str) -> Run:
    """Run the tool in the test's virtual host."""
    return lambda *arguments: rabbitmqadmin.run(admin_tool, console_node.address("http"), "-V", vhost, *arguments)


def test_rabbitmqadmin_declares_publishes_gets_purges_and_deletes(admin: Run) -> None:
    assert "exchange declared" in admin("declare", "exchange", "name=x", "type=topic")
    assert "queue declared" in admin("declare", "queue", "name=q", "durable=false", 'arguments={"x-max-length": 9}')
    admin("declare", "queue", "name=strong", "queue_type=quorum")
    admin("declare", "binding", "source=x", "destination=q", "routing_key=a.*")
    assert admin("publish", "exchange=x", "routing_key=a.b", "payload=hello").strip() == "Message published"
    assert "NOT routed" in admin("publish", "exchange=x", "routing_key=b", "payload=hello")
    for mode, count in (("ack_requeue_true", 1), ("ack_requeue_false", 1), ("ack_requeue_true", 0)):
        found = json.loads(admin("-f", "raw_json", "get", "queue=q", f"ackmode={mode}", "count=5"))
        assert [message["payload"] for message in found] == ["hello"] * count
    admin("publish", "routing_key=q", "payload=more", 'properties={"delivery_mode": 2}')
    assert "queue purged" in admin("purge", "queue", "name=q")
    assert "No items" in admin("get", "queue=q")
    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q", "properties_key=a.%2A")
    assert "NOT routed" in admin("publish", "exchange=x", "routing_key=a.b", "payload=hello")
    assert "queue deleted" in admin("delete", "queue", "name=q")
    assert "exchange deleted" in admin("delete", "exchange", "name=x")


def test_rabbitmqadmin_manages_users_permissions_and_policies(admin: Run, vhost: str) -> None:
    admin("declare", "user", "name=carl", "password=secret", "tags=monitoring,policymaker")
    admin("declare", "permission", f"vhost={vhost}", "user=carl", "configure=", "write=.*", "read=.*")
    admin(
        "declare", "policy", "name=p", "pattern=^q", 'definition={"max-length": 3}', "priority=2", "apply-to=queues"
    )
    assert "carl" in admin("list", "users", "name", "tags")
    assert "carl" in admin("list", "permissions")
    assert '{"max-length": 3}' in admin("list", "policies")
    admin("delete", "policy", "name=p")
    admin("delete", "permission", f"vhost={vhost}", "user=carl")
    admin("delete", "user", "name=carl")
    assert "carl" not in admin("list", "users")
    admin("declare", "vhost", "name=from-the-tool")
    admin("delete", "vhost", "name=from-the-tool")


def test_rabbitmqadmin_says_why_something_is_refused(admin: Run) -> None:
    admin("declare", "queue", "name=q")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        admin("declare", "queue", "name=q", "durable=false")
    assert "*** inequivalent arg 'durable' for queue 'q'" in failed.value.stderr


def test_rabbitmqadmin_exports_and_imports(admin: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "definitions.json")
    admin("declare", "queue", "name=q")
    admin("declare", "binding", "source=amq.topic", "destination=q", "routing_key=k")
    admin("export", path)
    admin("delete", "queue", "name=q")
    admin("import", path)
    assert "q" in admin("list", "bindings", "source", "destination", "routing_key").split()


def fill(change: Callable[[str, str, Any], object], vhost: str) -> None:
    """Declare one of each on a broker."""
    part = vhost.replace("/", "%2F")
    change("PUT", f"/vhosts/{part}", {})
    change("PUT", "/users/dora", {"password": "secret", "tags": "monitoring"})
    change("PUT", f"/permissions/{part}/dora", {"configure": "", "write": "^x", "read": ".*"})
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 2}
    change("PUT", f"/policies/{part}/short", policy)
    arguments = {"alternate-exchange": "amq.fanout"}
    change("PUT", f"/exchanges/{part}/x", {"type": "topic", "durable": True, "arguments": arguments})
    change("PUT", f"/queues/{part}/q", {"durable": True, "arguments": {"x-message-ttl": 60000}})
    change("PUT", f"/queues/{part}/passing", {"durable": False})
    change("POST", f"/bindings/{part}/e/x/q/q", {"routing_key": "a.*", "arguments": {"n": 1}})
    change("POST", f"/bindings/{part}/e/amq.direct/e/x", {"routing_key": "k"})


def about(definitions: dict[str, Any], vhost: str) -> dict[str, list[dict[str, Any]]]:
    """Return what both brokers should say of the virtual host."""
    sections = ("permissions", "policies", "queues", "exchanges", "bindings")
    return {
        section: sorted(
            [item for item in definitions[section] if item["vhost"] == vhost and item.get("user") != "guest"],
            key=json.dumps,
        )
        for section in sections
    }


def test_definitions_of_rabbitmq_come_in(api: httpx.Client, counting_rabbitmq: RabbitMq) -> None:
    fill(counting_rabbitmq.api, "/from/rabbitmq")
    exported = counting_rabbitmq.api("GET", "/definitions")
    answer = api.post("/definitions", json=exported)
    assert answer.status_code == 200, answer.text
    told = {item["name"]: item["reason"] for item in answer.json()["left_out"]}
    assert told.keys() == {"'guest'", "'dora'"}
    assert "flyball user password dora" in told["'dora'"]
    assert about(api.get("/definitions").json(), "/from/rabbitmq") == about(exported, "/from/rabbitmq")
    api.delete("/vhosts/%2Ffrom%2Frabbitmq")
    api.delete("/users/dora")


def test_definitions_go_out_to_rabbitmq(api: httpx.Client, counting_rabbitmq: RabbitMq) -> None:
    fill(lambda method, path, body: api.request(method, path, json=body), "/from/flyball")
    topics = [{"name": "far"}, {"name": "near", "parent": "far"}]
    assert api.post("/definitions/%2Ffrom%2Fflyball", json={"flyball_topics": topics}).status_code == 204
    exported = api.get("/definitions").json()
    assert {"name": "near", "vhost": "/from/flyball", "parent": "far"} in exported["flyball_topics"]
    # As a domain would export it: RabbitMQ does not make a queue of it.
    clustered = {"vhost": "/from/flyball", "source": "x", "destination": "c", "destination_type": "queue"}
    exported["flyball_clusters"] = [{"name": "c", "vhost": "/from/flyball", "members": ["a"]}]
    exported["flyball_bindings"] = [{**clustered, "routing_key": "k", "arguments": {}}]
    # Otherwise its own administrator could no longer log in.
    exported["users"] = [user for user in exported["users"] if user["name"] == "dora"]
    counting_rabbitmq.api("POST", "/definitions", exported)
    found = counting_rabbitmq.api("GET", "/definitions")
    assert about(found, "/from/flyball") == about(exported, "/from/flyball")
    assert "dora" in [user["name"] for user in found["users"]]
    api.delete("/vhosts/%2Ffrom%2Fflyball")
    api.delete("/users/dora")
