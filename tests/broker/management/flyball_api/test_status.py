"""A node reports its state over HTTP, and how many messages a purge has removed."""

from __future__ import annotations

import httpx

from tests.nodes import RunningNode


def test_status_tells_of_the_node_and_its_queues(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    api.put("../queues/%2F/orders", json={"durable": True})
    status = api.get("/status").json()
    assert (status["store"]["kind"], status["connections"]) == ("MemoryStore", 0)
    assert [queue["name"] for queue in status["queues"]] == ["orders"]
    assert [api.get("/status", auth=user).status_code for user in users.values()] == [401, 401, 200]


def test_purge_tells_how_many_messages_went(api: httpx.Client, node: RunningNode) -> None:
    root = f"http://{node.address('http')}/api"
    api.put(f"{root}/queues/%2F/orders", json={"durable": True})
    message = {"properties": {}, "routing_key": "orders", "payload": "m", "payload_encoding": "string"}
    for _ in range(3):
        api.post(f"{root}/exchanges/%2F/amq.default/publish", json=message)
    assert api.post("/queues/%2F/orders/purge").json() == {"purged": 3}
    assert api.post("/queues/%2F/orders/purge").json() == {"purged": 0}
    assert api.post("/queues/%2F/nowhere/purge").json()["kind"] == "QueueNotFound"
    assert api.get(f"{root}/queues/%2F/orders").json()["id"] == 1
