"""The model registry over HTTP: on a node alone, and on two nodes of a domain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from flyball.broker.management.part import console_part
from flyball.broker.models.texts import MAX_DOCUMENT_BYTES
from tests.broker.domains import two_nodes
from tests.broker.management.flyball_api.streams import GUEST
from tests.broker.management.flyball_api.test_domain import governed, pages_of, until
from tests.broker.models import documents
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Users = dict[str, tuple[str, str]]
ORDERS = "/models/capacity/queue:%252F%2Forders"


def publish(api: httpx.Client, place: str = ORDERS, **fields: Any) -> dict[str, Any]:
    body = {"document": documents.capacity(), "evidence": documents.evidence(), "state": "in_force", **fields}
    answer = api.post(f"{place}/versions", json=body)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def states(api: httpx.Client, place: str = ORDERS) -> dict[int, str]:
    return {one["version"]: one["state"] for one in api.get(f"{place}/versions").json()}


def test_published_version_is_in_force_with_its_evidence(api: httpx.Client) -> None:
    answer = publish(api, reason="first fit")
    assert {name: answer[name] for name in ("kind", "scope", "version", "is_new")} == {
        "kind": "capacity",
        "scope": "queue:%2F/orders",
        "version": 1,
        "is_new": True,
    }
    model = api.get(ORDERS).json()
    version = model["in_force"]
    assert (version["document"], version["evidence"]) == (documents.capacity(), documents.evidence())
    assert (version["published_by"], version["reason"], version["is_sound"]) == ("guest", "first fit", None)
    assert version["evidence_brief"] == {
        "traces": ["file:///traces/a"],
        "source": None,
        "samples": 5000,
        "tests": 1,
        "tests_passed": 1,
    }
    assert [(entry["version"], entry["after"]) for entry in model["log"]] == [(1, "in_force")]
    exported = api.get(f"{ORDERS}/versions/1/document")
    assert (exported.json(), exported.headers["content-type"]) == (documents.capacity(), "application/json")


def test_same_document_and_evidence_are_published_once(api: httpx.Client) -> None:
    first, again = publish(api), publish(api)
    assert (first["version"], again["version"], again["is_new"]) == (1, 1, False)
    publish(api, document=documents.capacity(0.5))
    assert publish(api)["model"]["state"] == "superseded"
    assert states(api) == {2: "in_force", 1: "superseded"}


def test_consumer_asks_again_only_for_what_has_changed(api: httpx.Client) -> None:
    publish(api)
    tag = api.get(ORDERS).headers["etag"]
    same = api.get(ORDERS, headers={"if-none-match": tag})
    assert (same.status_code, same.content) == (304, b"")
    publish(api, document=documents.capacity(0.5), state="shadow")
    changed = api.get(ORDERS, headers={"if-none-match": tag})
    assert (changed.status_code, changed.json()["shadow"]["version"]) == (200, 2)


def test_version_goes_from_shadow_into_force_and_back(api: httpx.Client) -> None:
    publish(api)
    publish(api, document=documents.capacity(0.5), state="shadow")
    path = f"{ORDERS}/versions/2/state"
    stale = api.put(path, json={"state": "in_force", "expected": "candidate"})
    assert (stale.status_code, stale.json()["kind"]) == (409, "ModelConflict")
    taken = api.put(path, json={"state": "in_force", "expected": "shadow", "reason": "agreed for 60 samples"})
    assert (taken.status_code, states(api)) == (200, {2: "in_force", 1: "superseded"})
    outcome = {"predicted_settling_samples": 4, "observed_settling_samples": 9}
    back = api.post(f"{ORDERS}/rollback", json={"expected": 2, "reason": "settles late", "outcome": outcome})
    assert (back.status_code, back.json()["version"]) == (200, 1)
    assert states(api) == {2: "quarantined", 1: "in_force"}
    assert api.get(f"{ORDERS}/versions/2").json()["outcome"] == outcome
    again = api.post(f"{ORDERS}/rollback", json={"expected": 2})
    assert (again.status_code, "version 2 of" in again.json()["reason"]) == (409, True)


def test_pin_keeps_a_version_in_force(api: httpx.Client) -> None:
    publish(api)
    assert api.put(f"{ORDERS}/pin", json={"reason": "end of year"}).json()["model"]["is_pinned"]
    body = {"document": documents.capacity(0.5), "state": "in_force"}
    refused = api.post(f"{ORDERS}/versions", json=body)
    assert (refused.status_code, "pinned: unpin it first" in refused.json()["reason"]) == (409, True)
    assert api.delete(ORDERS).status_code == 409
    assert api.delete(f"{ORDERS}/pin").status_code == 200
    assert api.post(f"{ORDERS}/versions", json=body).status_code == 201
    assert api.put(f"{ORDERS}/pin", json={"version": 1}).status_code == 200
    assert states(api) == {2: "superseded", 1: "in_force"}


def test_unsound_design_needs_force_and_shows_it(api: httpx.Client) -> None:
    place = "/models/design/loop:orders"
    body = {"document": documents.design(is_sound=False), "state": "in_force"}
    refused = api.post(f"{place}/versions", json=body)
    assert (refused.status_code, "is not sound: it is unstable" in refused.json()["reason"]) == (409, True)
    assert api.get(place).status_code == 404
    forced = publish(api, place, **body, force=True)["model"]
    assert (forced["is_sound"], forced["is_forced"], forced["objections"][0][:14]) == (False, True, "it is unstable")


def test_versions_are_compared(api: httpx.Client) -> None:
    publish(api)
    nothing = api.get(f"{ORDERS}/diff")
    assert (nothing.status_code, "name the versions" in nothing.json()["reason"]) == (404, True)
    publish(api, document=documents.capacity(0.02))
    found = api.get(f"{ORDERS}/diff").json()
    assert (found["from"]["version"], found["to"]["version"]) == (1, 2)
    [difference] = found["differences"]
    assert difference == {
        "path": "targets[clients].producer_weight",
        "before": 0.01,
        "after": 0.02,
        "change_percent": 100.0,
    }
    assert api.get(f"{ORDERS}/diff", params={"from": 2, "to": 1}).json()["differences"][0]["change_percent"] == -50


def test_models_are_listed_and_filtered(api: httpx.Client) -> None:
    publish(api)
    publish(api, document=documents.capacity(0.5))
    publish(api, "/models/service-times/queue:orders", document=documents.service_times())
    rows = api.get("/models").json()
    assert [(row["kind"], row["scope"], row["version"]) for row in rows] == [
        ("capacity", "queue:%2F/orders", 2),
        ("capacity", "queue:%2F/orders", 1),
        ("service-times", "queue:%2F/orders", 1),
    ]
    assert [
        row["version"] for row in api.get("/models", params={"kind": "capacity", "state": "in_force"}).json()
    ] == [2]
    assert len(api.get("/models", params={"scope": "queue:orders"}).json()) == 3
    page: dict[str, str | int] = {"page": 1, "page_size": 2, "name": "capacity", "sort": "version"}
    page["columns"] = "version,kind"
    found = api.get("/models", params=page).json()
    assert (found["total_count"], found["filtered_count"]) == (3, 2)
    assert found["items"] == [{"version": 1, "kind": "capacity"}, {"version": 2, "kind": "capacity"}]
    assert api.get("/models", params={"scope": "domain"}).json() == []
    for query in ({"kind": "colour"}, {"state": "new"}, {"scope": "world"}):
        assert api.get("/models", params=query).status_code == 400


def test_deleted_model_is_gone(api: httpx.Client, node: RunningNode) -> None:
    publish(api)
    assert node.call(lambda node: node.models.size_bytes) > 0
    assert api.delete(ORDERS).status_code == 200
    assert api.get(ORDERS).status_code == 404
    assert node.call(lambda node: node.models.size_bytes) == 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "document: Missing required argument"),
        ({"document": []}, "document: Input should be a valid dictionary"),
        ({"document": {}}, "invalid capacity model: "),
        ({"document": documents.capacity(), "state": "quarantined"}, "invalid state 'quarantined': use candidate"),
        ({"document": documents.capacity(), "colour": 1}, "unknown field 'colour'"),
        ({"document": documents.capacity(), "by": "root"}, "unknown field 'by'"),
        ({"document": documents.capacity(), "certificate": {}}, '"is_sound" must be true or false'),
        ({"document": documents.capacity(), "force": 1}, "force: Input should be a valid boolean"),
        ({"document": documents.capacity(), "reason": 600 * "x"}, "exceeds the maximum of 500"),
        ({"document": {**documents.capacity(), "note": MAX_DOCUMENT_BYTES * "x"}}, "exceeds the maximum of 262144"),
    ],
)
def test_invalid_publications_are_refused(api: httpx.Client, body: dict[str, Any], problem: str) -> None:
    refused = api.post(f"{ORDERS}/versions", json=body)
    assert (refused.status_code, problem in refused.json()["reason"]) == (400, True), refused.text
    assert api.get("/models").json() == []


def test_unknown_names_and_numbers_are_refused(api: httpx.Client) -> None:
    publish(api)
    for path, status in (
        (f"{ORDERS}/versions/2", 404),
        (f"{ORDERS}/versions/x", 400),
        (f"{ORDERS}/versions/0", 400),
        (f"{ORDERS}/versions/99999999999999999999", 400),
        ("/models/capacity/domain", 404),
        ("/models/colour/domain", 400),
        ("/models/capacity/world", 400),
        (f"{ORDERS}/diff?from=x", 400),
    ):
        assert api.get(path).status_code == status, path
    assert api.put(f"{ORDERS}/versions/7/state", json={"state": "in_force"}).status_code == 404
    assert api.put(f"{ORDERS}/pin", json={"version": 0}).status_code == 400


def test_memory_of_models_is_charged_and_limited(api: httpx.Client, node: RunningNode) -> None:
    note = 200_000 * "x"
    before = node.call(lambda node: node.hub.broker.ledger.definitions_bytes)
    publish(api, document={**documents.capacity(), "note": note})
    assert node.call(lambda node: node.hub.broker.ledger.definitions_bytes) >= before + len(note)

    def fill(node: Any) -> None:
        node.hub.broker.ledger.definitions_bytes = node.hub.broker.ledger.limit_bytes

    # Refused, or housekeeping has just measured again, and the next one is.
    for number in range(100):
        node.call(fill)
        body = {"document": {**documents.capacity(), "note": note}, "evidence": {"number": number}}
        if api.post(f"{ORDERS}/versions", json=body).status_code == 503:
            break
    else:
        pytest.fail("it was never refused")


def test_administrators_change_and_monitoring_reads(api: httpx.Client, users: Users) -> None:
    publish(api)

    def status(user: str, method: str, path: str) -> int:
        return api.request(method, path, auth=users[user]).status_code

    for path in ("/models", ORDERS, f"{ORDERS}/versions", f"{ORDERS}/versions/1", f"{ORDERS}/versions/1/document"):
        assert [status(user, "GET", path) for user in users] == [401, 401, 200], path
    changes = (
        ("POST", f"{ORDERS}/versions"),
        ("PUT", f"{ORDERS}/versions/1/state"),
        ("PUT", f"{ORDERS}/pin"),
        ("DELETE", f"{ORDERS}/pin"),
        ("POST", f"{ORDERS}/rollback"),
        ("DELETE", ORDERS),
    )
    for method, path in changes:
        assert [status(user, method, path) for user in users] == [401, 401, 401], (method, path)
    assert states(api) == {1: "in_force"}


@pytest.mark.parametrize("store", ["memory", "null", "postgresql"])
def test_every_store_has_the_registry(tmp_path: Path, new_database: Callable[[], str], store: str) -> None:
    url = new_database() if store == "postgresql" else store
    with alone(tmp_path, store=url) as (_, api):
        publish(api)
        publish(api, document=documents.capacity(0.5))
        assert api.post(f"{ORDERS}/rollback", json={}).status_code == 200
        assert api.put(f"{ORDERS}/pin", json={}).status_code == 200
        assert states(api) == {2: "quarantined", 1: "in_force"}


def test_consumers_read_the_registry_while_the_store_is_unavailable(tmp_path: Path) -> None:
    with alone(tmp_path, store="memory", store_time_limit_s=0.5) as (node, api):

        def cut_off(is_cut_off: bool) -> None:
            store: Any = node.node.hub.broker.store
            store.cut_off = is_cut_off

        publish(api)
        node.call(lambda _: cut_off(True))
        body = {"document": documents.capacity(0.5), "state": "in_force"}
        refused = api.post(f"{ORDERS}/versions", json=body)
        assert (refused.status_code, refused.json()["kind"]) == (503, "OutcomeUnknown")
        # The version is there as a whole or not at all, and one is in force in either case.
        assert [*states(api).values()].count("in_force") == 1
        node.call(lambda _: cut_off(False))
        # The publisher repeats its request: the version exists once.
        assert api.post(f"{ORDERS}/versions", json=body).status_code in (200, 201)
        assert states(api) == {2: "in_force", 1: "superseded"}


@pytest.fixture
def nodes(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[tuple[RunningNode, RunningNode]]:
    parts = [governed, console_part()]
    with two_nodes(tmp_path, new_database, parts=parts, http="127.0.0.1:0", thorbang="off") as nodes:
        yield nodes


def test_every_node_follows_and_the_leader_notes_every_change(nodes: tuple[RunningNode, RunningNode]) -> None:
    with pages_of(*nodes) as pages:
        large = {**documents.capacity(), "note": 250_000 * "x"}
        for number, page in enumerate(pages, start=1):
            publish(page, document={**large, "number": number}, reason=f"fit {number}")
            for other in pages:
                assert other.get(ORDERS).json()["in_force"]["version"] == number
        assert pages[0].post(f"{ORDERS}/rollback", json={"reason": "oscillates"}).status_code == 200
        for page in pages:
            assert states(page) == {2: "quarantined", 1: "in_force"}
            found = page.get("/domain/decisions").json()["decisions"]
            noted = [decision for decision in found if decision["kind"] == "Model"]
            assert [decision["what"] for decision in noted] == [
                "Capacity model for scope 'queue:%2F/orders': version 1 in force",
                "Capacity model for scope 'queue:%2F/orders': version 1 superseded",
                "Capacity model for scope 'queue:%2F/orders': version 2 in force",
                "Capacity model for scope 'queue:%2F/orders': version 2 quarantined",
                "Capacity model for scope 'queue:%2F/orders': version 1 in force",
            ]
            assert noted[3]["reason"] == "oscillates (by user 'guest')"


def test_simultaneous_publications_leave_one_version_in_force(nodes: tuple[RunningNode, RunningNode]) -> None:
    bodies = [
        json.dumps({"document": documents.capacity(number / 100), "state": "in_force"}) for number in range(1, 13)
    ]
    with pages_of(*nodes) as pages, ThreadPoolExecutor(6) as threads:

        def post(number: int) -> int:
            page = pages[number % 2]
            return page.post(f"{ORDERS}/versions", content=bodies[number]).status_code

        assert [*threads.map(post, range(len(bodies)))] == [201] * len(bodies)
        assert [*threads.map(post, range(len(bodies)))] == [200] * len(bodies)
        first, second = (states(page) for page in pages)
        assert first == second
        assert sorted(first) == [*range(1, 13)]
        assert [*first.values()].count("in_force") == 1


def test_capacity_model_in_force_governs_a_clustered_queue(nodes: tuple[RunningNode, RunningNode]) -> None:
    with pages_of(*nodes) as pages:
        created = pages[0].post("/domain/commands/cluster.create", json={"name": "orders", "members": ["a", "b"]})
        assert created.status_code == 200, created.text
        host, port = nodes[0].address("amqp")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0)) as connection:
            connection.channel().basic_consume("orders", lambda *_: None)

            def cluster() -> dict[str, Any]:
                [found] = pages[1].get("/domain").json()["clusters"]
                return dict(found)

            until(cluster, lambda found: found["consumers"] == 1)
            declared = cluster()
            assert declared["load"] == 0.005
            publish(pages[1], document=documents.capacity(0.1, 0.4))
            # One consumer of 0.4 on two members of 1; the definition itself is as it was.
            fitted = until(cluster, lambda found: found["load"] == 0.2)
            assert fitted["options"] == declared["options"]
            publish(pages[1], document=documents.capacity(0.1, 0.8), state="shadow")
            shadow = "/loops/domain.orders.shadow"
            loop = until(lambda: pages[0].get(shadow).json(), has_measured)
            assert (loop["is_shadow"], loop["last"]["measurement"], cluster()["load"]) == (True, 0.4, 0.2)
            pages[1].post(f"{ORDERS}/rollback", json={"reason": "a test"})
            until(cluster, lambda found: found["load"] == declared["load"])


def has_measured(loop: dict[str, Any]) -> bool:
    return bool((loop.get("last") or {}).get("measurement"))


@contextmanager
def alone(folder: Path, **flags: Any) -> Iterator[tuple[RunningNode, httpx.Client]]:
    """Start a node and a client of its API."""
    with (
        RunningNode(folder / "data", parts=[console_part()], http="127.0.0.1:0", **flags) as node,
        httpx.Client(base_url=f"{node.url}/api/flyball", auth=GUEST, timeout=ANSWER_LIMIT_S) as api,
    ):
        yield node, api


def test_models_survive_a_restart(tmp_path: Path, new_database: Callable[[], str]) -> None:
    database = new_database()
    with alone(tmp_path, store=database) as (_, api):
        publish(api)
        assert api.put(f"{ORDERS}/pin", json={}).status_code == 200
        before = api.get(ORDERS).json()
    with alone(tmp_path, store=database) as (_, api):
        assert api.get(ORDERS).json() == before
