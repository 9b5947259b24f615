"""The console shows every loop, of the node and of its clients, and switches those that may be switched."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.broker.core.loops import MAX_LOOPS
from flyball.broker.management.part import console_part
from tests.broker.domains import two_nodes
from tests.broker.management.flyball_api.streams import GUEST, SHAKY, report
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Users = dict[str, tuple[str, str]]


def tell(api: httpx.Client, name: str = "orders", **others: Any) -> httpx.Response:
    return api.post(f"/loops/{name}/samples", json=report(time.time(), **others))


def test_the_loops_inside_the_node_are_shown_with_their_certificates(api: httpx.Client) -> None:
    found = {loop["name"]: loop for loop in api.get("/loops").json()}
    assert list(found) == ["north.commit_queue", "north.listings", "north.memory"]
    for loop in found.values():
        assert (loop["node"], loop["place"], loop["state"]) == ("north", "node", "idle")
        assert loop["certificate"]["is_sound"]
        assert loop["measures"]["unit"]
    assert found["north.commit_queue"]["gains"] == {"kp": 5.0, "ki_per_s": 6.25}
    assert not found["north.memory"]["can_switch"]
    assert found["north.listings"]["can_switch"]


def test_a_loop_that_is_reported_is_shown_with_its_samples(api: httpx.Client) -> None:
    assert tell(api, value=380.0).json() == {"mode": None, "needs_facts": False}
    tell(api, value=390.0, facts=None)
    found = api.get("/loops/orders").json()
    assert (found["title"], found["place"], found["client"], found["user"]) == ("orders", "client", "host-1", "guest")
    assert [sample["measurement"] for sample in found["samples"]] == [380.0, 390.0]
    assert (found["setpoint"], found["last"]["action"], found["state"]) == (400.0, 7.5, "running")
    [listed] = [loop for loop in api.get("/loops").json() if loop["name"] == "orders"]
    assert "samples" not in listed


def test_a_node_that_does_not_know_the_loop_asks_for_its_facts(api: httpx.Client) -> None:
    assert tell(api, facts=None).json() == {"mode": None, "needs_facts": True}
    assert api.get("/loops/orders").status_code == 404


def test_a_loop_whose_name_has_a_slash_is_found(api: httpx.Client) -> None:
    assert tell(api, "a%2Fb%20c").status_code == 200
    assert api.get("/loops/a%2Fb%20c").json()["name"] == "a/b c"


def test_somebody_switches_a_loop_and_it_hears_of_it_with_its_next_report(api: httpx.Client) -> None:
    tell(api, is_shadow=True)
    switched = api.put("/loops/orders/mode", json={"mode": "active"})
    assert (switched.status_code, switched.json()["wanted_mode"], switched.json()["is_shadow"]) == (
        200,
        "active",
        True,
    )
    assert tell(api, is_shadow=True).json()["mode"] == "active"
    tell(api, is_shadow=False)
    assert api.get("/loops/orders").json()["is_shadow"] is False


def test_a_loop_without_a_sound_certificate_is_not_made_active(api: httpx.Client) -> None:
    shaky = report(1.0)["facts"] | {"certificate": SHAKY}
    tell(api, facts=shaky, is_shadow=True)
    refused = api.put("/loops/orders/mode", json={"mode": "active"})
    assert refused.status_code == 409
    assert "its gain margin on y = 2 u is 1.3, below 2" in refused.json()["reason"]
    assert api.get("/loops/orders").json()["wanted_mode"] is None


def test_what_protects_the_node_cannot_be_switched_off(api: httpx.Client) -> None:
    refused = api.put("/loops/north.memory/mode", json={"mode": "shadow"})
    assert refused.status_code == 409
    assert "running out of memory" in refused.json()["reason"]


def test_admission_of_listings_is_switched_at_once(api: httpx.Client, node: RunningNode) -> None:
    assert api.put("/loops/north.listings/mode", json={"mode": "shadow"}).json()["is_shadow"]
    assert node.call(lambda node: node.hub.broker.listing_limiter.admission.is_shadow)
    assert not api.put("/loops/north.listings/mode", json={"mode": "active"}).json()["is_shadow"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/loops/orders/mode", {"mode": "off"}, 400),
        ("PUT", "/loops/nobody/mode", {"mode": "shadow"}, 404),
        ("POST", "/loops/orders/samples", {"samples": [{"at": "now"}]}, 400),
        ("POST", "/loops/orders/samples", {"samples": [{"at": 1.0}] * 301}, 400),
        ("POST", "/loops/%00/samples", {}, 400),
        ("POST", "/loops/north.memory/samples", {}, 401),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(
    api: httpx.Client, method: str, path: str, body: dict[str, Any], status: int
) -> None:
    tell(api)
    answer = api.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.json()["reason"]


def test_only_those_with_the_right_see_report_and_switch(api: httpx.Client, users: Users) -> None:
    def may(user: str, method: str, path: str, body: Any = None) -> bool:
        answer = api.request(method, path, json=body, auth=users[user])
        assert answer.status_code in (200, 401)
        return answer.status_code == 200

    tell(api, "guests")
    sees = [user for user in users if may(user, "GET", "/loops") and may(user, "GET", "/loops/guests")]
    assert sees == ["monitoring"]
    assert [user for user in users if may(user, "PUT", "/loops/guests/mode", {"mode": "shadow"})] == []
    reports = [user for user in users if may(user, "POST", f"/loops/of-{user}/samples", report(1.0))]
    assert reports == ["management", "monitoring"]
    assert not may("monitoring", "POST", "/loops/of-management/samples", report(1.0)), "it is another user's"
    assert tell(api, "of-management").status_code == 200, "an administrator may"


def test_all_loops_that_a_node_keeps_are_listed_and_no_more_are_kept(api: httpx.Client, node: RunningNode) -> None:
    def fill(node: Any) -> None:
        loops = node.hub.loops
        facts = loops.get("north.memory").facts
        for number in range(MAX_LOOPS - len(loops.all())):
            loops.add(f"loop-{number}", facts, lambda: None)

    node.call(fill)
    assert len(api.get("/loops").json()) == MAX_LOOPS
    refused = tell(api)
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")


def test_loops_of_all_nodes_are_seen_and_switched_from_any(tmp_path: Path, new_database: Callable[[], str]) -> None:
    with two_nodes(tmp_path, new_database, parts=[console_part()], http="127.0.0.1:0", thorbang="off") as nodes:
        urls = [f"http://{node.address('http')}/api/flyball" for node in nodes]
        here, there = (httpx.Client(base_url=url, auth=GUEST, timeout=ANSWER_LIMIT_S) for url in urls)
        with here, there:
            assert tell(there, is_shadow=True).status_code == 200
            names = {loop["name"]: loop["node"] for loop in here.get("/loops").json()}
            assert names["a.memory"] == "a"
            assert (names["b.memory"], names["orders"]) == ("b", "b")
            assert here.get("/loops/orders").json()["samples"]
            assert here.put("/loops/orders/mode", json={"mode": "active"}).json()["wanted_mode"] == "active"
            assert there.get("/loops/orders").json()["wanted_mode"] == "active"
            refused = here.put("/loops/b.memory/mode", json={"mode": "shadow"})
            assert (refused.status_code, "memory" in refused.json()["reason"]) == (409, True)
