"""Users and their permissions are changed over HTTP as RabbitMQ's tools do it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import quote

import httpx
import pytest

NewUser = Callable[..., httpx.Client]


def name_of(client: httpx.Client) -> str:
    name: str = client.get("/whoami").json()["name"]
    return name


def test_a_user_is_added_changed_and_deleted(api: httpx.Client, new_client: NewUser) -> None:
    assert api.put("/users/ann", json={"password": "one", "tags": "monitoring"}).status_code == 201
    assert new_client("ann", "one").get("/whoami").json()["tags"] == ["monitoring"]
    changed = api.put("/users/ann", json={"password": "two", "tags": ["management", "policymaker"]})
    assert changed.status_code == 204
    assert new_client("ann", "one").get("/whoami").status_code == 401
    assert new_client("ann", "two").get("/whoami").json()["tags"] == ["management", "policymaker"]
    assert api.delete("/users/ann").status_code == 204
    assert api.get("/users/ann").status_code == 404
    assert api.delete("/users/ann").status_code == 404


def test_a_user_without_a_password_cannot_log_in(api: httpx.Client, new_client: NewUser) -> None:
    api.put("/users/bare", json={"password_hash": "", "tags": ""})
    assert api.get("/users/bare").json()["password_hash"] == ""
    assert new_client("bare", "").get("/whoami").status_code == 401
    api.delete("/users/bare")


def test_a_hash_that_was_told_gives_another_user_the_same_password(api: httpx.Client, new_client: NewUser) -> None:
    api.put("/users/ann", json={"password": "secret of ann", "tags": ""})
    told = api.get("/users/ann").json()
    assert told["hashing_algorithm"] == "flyball_argon2id"
    assert "secret of ann" not in str(told)
    assert api.put("/users/eve", json=told).status_code == 201
    assert new_client("eve", "secret of ann").get("/whoami").json()["name"] == "eve"
    api.post("/users/bulk-delete", json={"users": ["ann", "eve", "nobody"]})
    assert api.get("/users/eve").status_code == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "x"}, "missing field 'tags'"),
        ({"password": "", "tags": ""}, "a password cannot be empty"),
        ({"password": 5, "tags": ""}, "'password' must be a string"),
        ({"password": "x", "tags": 7}, "'tags' must be a list"),
        ({"password": "x", "tags": ["a b"]}, "contains a comma, space"),
        (
            {
                "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
            },
            "Flyball cannot verify a password_hash of rabbit_password_hashing_sha256: use a password",
        ),
        ({"password_hash": "%%", "hashing_algorithm": "flyball_argon2id", "tags": ""}, "not valid base64"),
        (
            {
                "password_hash": base64.b64encode(b"$argon2id$v=19$m=99999999,t=2,p=1$" + b"c2FsdHNhbHRzYWx0c2FsdA$"
                                                  b"aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g").decode(),
                "hashing_algorithm": "flyball_argon2id",
                "tags": "",
            },
            "too expensive to verify",
        ),
    ],
)  # fmt: skip
def test_a_user_that_cannot_be_is_refused_with_the_reason(
    body: dict[str, object], reason: str, api: httpx.Client
) -> None:
    answer = api.put("/users/odd", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]
    assert api.get("/users/odd").status_code == 404


def test_permissions_are_set_listed_and_cleared(api: httpx.Client, vhost: str, new_user: NewUser) -> None:
    ann = name_of(new_user(patterns=None))
    path = f"/permissions/{quote(vhost, safe='')}/{ann}"
    assert api.get(path).status_code == 404
    patterns = {"configure": "^a", "write": "", "read": ".*"}
    assert api.put(path, json=patterns).status_code == 201
    document = {"user": ann, "vhost": vhost, **patterns}
    assert api.get(path).json() == document
    assert document in api.get("/permissions").json()
    assert api.get(f"/users/{ann}/permissions").json() == [document]
    assert document in api.get(f"/vhosts/{quote(vhost, safe='')}/permissions").json()
    assert api.put(path, json={**patterns, "write": ".*"}).status_code == 204
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
    assert ann in [user["name"] for user in api.get("/users/without-permissions").json()]


@pytest.mark.parametrize(
    ("body", "reason"), [({"configure": "("}, "missing field 'write'"), ({"read": 1}, "missing field 'configure'")]
)
def test_a_permission_that_cannot_be_is_refused(
    body: dict[str, object], reason: str, api: httpx.Client, vhost: str
) -> None:
    answer = api.put(f"/permissions/{quote(vhost, safe='')}/guest", json=body)
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]


def test_permissions_name_users_and_virtual_hosts_that_exist(api: httpx.Client, vhost: str) -> None:
    patterns = {"configure": "", "write": "", "read": ""}
    assert api.put("/permissions/nowhere/guest", json=patterns).status_code == 404
    assert api.put(f"/permissions/{quote(vhost, safe='')}/nobody", json=patterns).status_code == 404
    broken = api.put(f"/permissions/{quote(vhost, safe='')}/guest", json={**patterns, "read": "("})
    assert broken.status_code == 400
    assert "is not a regular expression" in broken.json()["reason"]


def test_there_are_no_permissions_by_topics_and_nobody_is_left_in_doubt(api: httpx.Client, vhost: str) -> None:
    assert api.get("/topic-permissions").json() == []
    assert api.get("/users/guest/topic-permissions").json() == []
    assert api.get(f"/vhosts/{quote(vhost, safe='')}/topic-permissions").json() == []
    body = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    refused = api.put(f"/topic-permissions/{quote(vhost, safe='')}/guest", json=body)
    assert refused.status_code == 400
    assert "no topic permissions" in refused.json()["reason"]


@pytest.mark.parametrize("tags", ["", "management", "policymaker", "monitoring"])
def test_only_administrators_change_users_and_virtual_hosts(tags: str, new_user: NewUser) -> None:
    client = new_user(tags)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    for answer in (
        client.get("/users"),
        client.put("/users/mallory", json={"password": "x", "tags": "administrator"}),
        client.delete("/users/guest"),
        client.post("/users/bulk-delete", json={"users": ["guest"]}),
        client.put("/permissions/%2F/guest", json=everything),
        client.delete("/permissions/%2F/guest"),
        client.put("/vhosts/another"),
        client.delete("/vhosts/another"),
        client.get("/definitions"),
        client.get("/definitions/%2F"),
        client.post("/definitions", json={}),
    ):
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised")


def test_the_console_hears_403_so_that_401_means_to_log_in(new_user: NewUser) -> None:
    client = new_user("monitoring")
    answer = client.delete("/users/guest", headers={"X-Requested-With": "flyball-console"})
    assert answer.status_code == 403


def test_a_virtual_host_is_its_creators(api: httpx.Client, vhost: str) -> None:
    assert api.get(f"/permissions/{quote(vhost, safe='')}/guest").json()["configure"] == ".*"
    assert api.put(f"/vhosts/{quote(vhost, safe='')}").status_code == 204


def test_the_default_virtual_host_stays(api: httpx.Client) -> None:
    answer = api.delete("/vhosts/%2F")
    assert answer.status_code == 400
    assert "cannot be deleted" in answer.json()["reason"]
    assert api.delete("/vhosts/nowhere").status_code == 404
