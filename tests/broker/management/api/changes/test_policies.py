"""Policies are set and cleared over HTTP by those who may."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

Place = Callable[..., str]
NewUser = Callable[..., httpx.Client]

POLICY = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 3}


def test_a_policy_is_set_applies_and_is_cleared(api: httpx.Client, place: Place, vhost: str) -> None:
    path = place("policies", "short")
    assert api.put(path, json=POLICY).status_code == 201
    assert api.get(path).json() == {"vhost": vhost, "name": "short", **POLICY}
    assert api.get(place("policies")).json() == [api.get(path).json()]
    assert api.get(path).json() in api.get("/policies").json()
    api.put(place("queues", "q1"), json={})
    for number in range(8):
        body = {"properties": {}, "routing_key": "q1", "payload": str(number), "payload_encoding": "string"}
        api.post(place("exchanges", "amq.default", "publish"), json=body)
    got = api.post(
        place("queues", "q1", "get"), json={"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}
    )
    assert [message["payload"] for message in got.json()] == ["3", "4", "5", "6", "7"]
    assert api.put(path, json={**POLICY, "priority": 4}).status_code == 204
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
    assert api.get(path).status_code == 404


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pattern": None}, "missing field 'pattern'"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"definition": {}}, "at least one key"),
        ({"definition": {"ha-mode": "all"}}, "unknown policy key 'ha-mode'"),
        ({"definition": {"max-length": "many"}}, "max-length must be a number of messages"),
        ({"apply-to": "users"}, "applies to all, queues or exchanges"),
        ({"priority": "high"}, "'priority' must be an integer"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_reason(
    change: dict[str, object], reason: str, api: httpx.Client, place: Place
) -> None:
    answer = api.put(place("policies", "odd"), json={**POLICY, **change})
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]


def test_policies_are_for_those_with_the_tag_and_a_permission(
    api: httpx.Client, place: Place, new_user: NewUser
) -> None:
    path = place("policies", "short")
    assert new_user("management").put(path, json=POLICY).status_code == 401
    assert new_user("monitoring").put(path, json=POLICY).status_code == 401
    assert new_user("policymaker", None).put(path, json=POLICY).status_code == 401
    seeing = new_user("policymaker,monitoring", None)
    assert seeing.put(path, json=POLICY).status_code == 401
    assert new_user("policymaker").put(path, json=POLICY).status_code == 201
    assert seeing.get(path).status_code == 200
    assert seeing.delete(path).status_code == 401
    assert new_user("management").get(path).json()["priority"] == 3
    assert new_user("management", None).get(path).status_code == 401


def test_there_are_no_policies_of_operators(api: httpx.Client, place: Place) -> None:
    assert api.get("/operator-policies").json() == []
    assert api.get(place("operator-policies")).json() == []
    assert api.get(place("operator-policies", "short")).status_code == 404
    refused = api.put(place("operator-policies", "short"), json=POLICY)
    assert refused.status_code == 400
    assert "no operator policies" in refused.json()["reason"]
