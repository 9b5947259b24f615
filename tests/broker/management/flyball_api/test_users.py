"""A password is changed without the tags, and tags without the password."""

from __future__ import annotations

import httpx
import pytest

from tests.nodes import RunningNode


def test_password_is_changed_and_tags_stay(api: httpx.Client, node: RunningNode) -> None:
    root = f"http://{node.address('http')}/api"
    api.put(f"{root}/users/ann", json={"password": "old", "tags": ["monitoring"]})
    assert api.put("/users/ann/password", json={"password": "new"}).status_code == 204
    for password, status in (("old", 401), ("new", 200)):
        assert api.get(f"{root}/whoami", auth=("ann", password)).status_code == status
    assert api.put("/users/ann/tags", json={"tags": ["management"]}).status_code == 204
    assert api.get(f"{root}/whoami", auth=("ann", "new")).json()["tags"] == ["management"]
    assert api.put("/users/ann/password", json={"password": None}).status_code == 204
    assert api.get(f"{root}/users/ann").json()["password_hash"] == ""


@pytest.mark.parametrize(
    ("path", "document", "status"),
    [
        ("/users/nobody/password", {"password": "x"}, 404),
        ("/users/nobody/tags", {"tags": []}, 404),
        ("/users/guest/password", {}, 400),
        ("/users/guest/password", {"password": 1}, 400),
        ("/users/guest/tags", {}, 400),
        ("/users/guest/tags", {"tags": ["a b"]}, 400),
    ],
)
def test_what_cannot_be_is_refused(api: httpx.Client, path: str, document: object, status: int) -> None:
    assert api.put(path, json=document).status_code == status


def test_only_administrators_change_users(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    for user in users.values():
        assert api.put("/users/guest/password", json={"password": "x"}, auth=user).status_code == 401
        assert api.put("/users/guest/tags", json={"tags": []}, auth=user).status_code == 401
