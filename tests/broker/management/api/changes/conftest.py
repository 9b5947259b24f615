"""Clients that change the node of the tests of the API: each test has a virtual host of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import quote

import httpx
import pytest

from tests.nodes import ANSWER_LIMIT_S, RunningNode

Patterns = tuple[str, str, str]
EVERYTHING: Patterns = (".*", ".*", ".*")


@pytest.fixture
def new_client(console_node: RunningNode) -> Iterator[Callable[..., httpx.Client]]:
    """Make a client that asks below /api."""
    with ExitStack() as clients:

        def make(name: str = "guest", password: str = "guest", **headers: str) -> httpx.Client:
            base = f"http://{console_node.address('http')}/api"
            return clients.enter_context(
                httpx.Client(base_url=base, auth=(name, password), headers=headers, timeout=ANSWER_LIMIT_S)
            )

        yield make


@pytest.fixture
def api(new_client: Callable[..., httpx.Client]) -> httpx.Client:
    """A client of an administrator."""
    return new_client()


@pytest.fixture
def vhost(api: httpx.Client) -> Iterator[str]:
    """A virtual host of the test's own; as a part of a path it has to be encoded."""
    name = f"/{secrets.token_hex(4)}"
    assert api.put(f"/vhosts/{quote(name, safe='')}").status_code == 201
    yield name
    assert api.delete(f"/vhosts/{quote(name, safe='')}").status_code == 204


@pytest.fixture
def new_user(
    api: httpx.Client, vhost: str, new_client: Callable[..., httpx.Client]
) -> Iterator[Callable[..., httpx.Client]]:
    """Make a user with tags, and patterns for what it may do in the virtual host, and return its client."""
    names: list[str] = []

    def make(tags: str = "management", patterns: Patterns | None = EVERYTHING) -> httpx.Client:
        name = f"user-{secrets.token_hex(4)}"
        names.append(name)
        assert api.put(f"/users/{name}", json={"password": "secret", "tags": tags}).status_code == 201
        if patterns is not None:
            body = dict(zip(("configure", "write", "read"), patterns, strict=True))
            assert api.put(f"/permissions/{quote(vhost, safe='')}/{name}", json=body).status_code == 201
        return new_client(name, "secret")

    yield make
    assert api.post("/users/bulk-delete", json={"users": names}).status_code == 204


@pytest.fixture
def place(vhost: str) -> Callable[..., str]:
    """Make a path in the virtual host: place("queues", "a/b") names a queue."""
    return lambda kind, *parts: "/" + "/".join(quote(part, safe="") for part in (kind, vhost, *parts))
