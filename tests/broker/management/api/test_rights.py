"""Rights that each request needs, and the answer to users without them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from flyball.broker.management.api.context import Right, has_right
from flyball.model import User
from tests.broker.management.api.conftest import Api, connected
from tests.nodes import RunningNode


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ((), {"any user"}),
        (("other",), {"any user"}),
        (("management",), {"any user", "management"}),
        (("policymaker",), {"any user", "management", "policymaker"}),
        (("monitoring",), {"any user", "management", "monitoring"}),
        (("administrator",), {"any user", "management", "policymaker", "monitoring", "administrator"}),
    ],
)
def test_a_tag_gives_rights(tags: tuple[str, ...], expected: set[str]) -> None:
    assert {right for right in Right if has_right(User("somebody", tags=tags), right)} == expected


def test_without_a_password_nobody_gets_in(console_node: RunningNode) -> None:
    answer = httpx.get(f"http://{console_node.address('http')}/api/overview")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert answer.json()["error"] == "not_authorised"


def test_a_user_without_a_tag_may_ask_nothing(api_of: Callable[..., Api]) -> None:
    found = api_of("tagless", [], {"/": (".*", ".*", ".*")}).ask("/overview")
    assert found.status_code == 401
    assert found.json()["error"] == "not_authorised"
    assert "management" in found.json()["reason"]


def test_the_console_hears_403_of_missing_rights_since_401_means_to_log_in(api_of: Callable[..., Api]) -> None:
    headers = {"X-Requested-With": "flyball-console"}
    assert api_of("tagless-in-console", []).ask("/overview", headers=headers).status_code == 403


def test_a_user_sees_the_vhosts_that_it_may_enter(
    api: Api, api_of: Callable[..., Api], console_node: RunningNode
) -> None:
    console_node.administer(lambda authority: authority.add_vhost("hidden/place"))
    console_node.allow_all("guest", "hidden/place")
    with connected(console_node.address("amqp"), "hidden/place") as connection:
        connection.channel().queue_declare("secret", durable=True)
    limited = api_of("limited", ["management"], {"/": ("", "", "")})
    watching = api_of("watching", ["monitoring"])
    assert limited.names("/vhosts") == ["/"]
    assert "secret" not in limited.names("/queues")
    assert limited.ask("/queues/hidden%2Fplace").status_code == 401
    assert limited.ask("/vhosts/hidden%2Fplace").status_code == 401
    assert "hidden/place" not in {binding["vhost"] for binding in limited.get("/bindings")}
    for seeing in (api, watching):
        assert "hidden/place" in seeing.names("/vhosts")
        assert seeing.names("/queues/hidden%2Fplace") == ["secret"]
        assert seeing.get("/vhosts/hidden%2Fplace")["name"] == "hidden/place"


def test_nodes_are_for_those_who_look_after_them(api_of: Callable[..., Api]) -> None:
    assert api_of("curious", ["management"], {"/": ("", "", "")}).ask("/nodes").status_code == 401
    assert api_of("caring", ["monitoring"]).names("/nodes") == ["north"]


def test_the_overview_tells_a_user_of_what_it_sees(api_of: Callable[..., Api]) -> None:
    found = api_of("modest", ["management"], {"/": ("", "", "")}).get("/overview")
    assert found["object_totals"]["connections"] == 0
    assert found["object_totals"]["exchanges"] >= 7
    assert "listeners" not in found
    assert api_of("nowhere-at-all", ["management"]).get("/overview")["queue_totals"]["messages"] == 0


@pytest.mark.parametrize("path", ["/overview", "/queues", "/nothing", "/queues/%2F/nothing", "/../metrics"])
def test_browsers_take_no_answer_for_what_it_is_not(api: Api, path: str) -> None:
    assert api.ask(path).headers["x-content-type-options"] == "nosniff"
