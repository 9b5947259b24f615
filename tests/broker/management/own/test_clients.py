"""The console shows the registered clients of the research protocols, and whether they are connected."""

from __future__ import annotations

import httpx

from flyball.client.sync import Client
from tests.nodes import RunningNode


def test_clients_are_shown_with_their_connections(api: httpx.Client, node: RunningNode) -> None:
    with Client.connect(str(node.address("telesto")), name="anna"):
        [found] = api.get("/clients").json()
    assert (found["name"], found["mode"], found["connected"]) == ("anna", "full", True)
    [connection] = found["connections"]
    assert (connection["protocol"], connection["node"]) == ("telesto", "north")
    node.wait_until(lambda node: not node.hub.connections)
    [found] = api.get("/clients").json()
    assert (found["connected"], found["connections"]) == (False, [])


def test_only_monitors_see_them(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    assert [api.get("/clients", auth=user).status_code for user in users.values()] == [401, 401, 200]
