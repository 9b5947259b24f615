"""The console shows the registered clients of the research protocols, and whether they are connected."""

from __future__ import annotations

import httpx
import pytest

from tests.broker.peers import telesto
from tests.nodes import RunningNode


def test_clients_are_shown_with_their_connections(api: httpx.Client, node: RunningNode) -> None:
    peer = telesto(node, "anna")
    [found] = api.get("/clients").json()
    peer.close()
    assert (found["name"], found["mode"], found["connected"]) == ("anna", "full", True)
    [connection] = found["connections"]
    assert (connection["protocol"], connection["node"]) == ("telesto", "north")
    node.wait_until(lambda node: not node.hub.connections)
    [found] = api.get("/clients").json()
    assert (found["connected"], found["connections"]) == (False, [])


def test_only_monitors_see_them(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    assert [api.get("/clients", auth=user).status_code for user in users.values()] == [401, 401, 200]


def test_client_is_registered_once_and_deleted(api: httpx.Client) -> None:
    answer = api.put("/clients/anna%2Fb", json={"mode": "read only"})
    assert (answer.status_code, answer.json()) == (201, {"id": 1, "name": "anna/b", "mode": "read only"})
    again = api.put("/clients/anna%2Fb")
    assert (again.status_code, again.json()["kind"]) == (400, "ClientNameTaken")
    found = api.put("/clients/ben").json()
    assert found["mode"] == "full"
    assert api.delete("/clients/1").status_code == 204
    assert [client["name"] for client in api.get("/clients").json()] == ["ben"]


@pytest.mark.parametrize("client", ["1", "x", "²", "99999999999999999999", "9" * 5000])
def test_client_that_is_not_there_is_not_found(api: httpx.Client, client: str) -> None:
    answer = api.delete(f"/clients/{client}")
    assert (answer.status_code, answer.json()["kind"]) == (404, "ClientNotFound")


def test_mode_that_there_is_not_is_refused(api: httpx.Client) -> None:
    answer = api.put("/clients/anna", json={"mode": "half"})
    assert (answer.status_code, answer.json()["reason"]) == (
        400,
        "unknown client mode 'half': use 'full' or 'read only'",
    )


def test_only_administrators_change_clients(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    for user in users.values():
        assert api.put("/clients/anna", auth=user).status_code == 401
        assert api.delete("/clients/1", auth=user).status_code == 401
