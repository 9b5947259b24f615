"""Scopes as text."""

from __future__ import annotations

import pytest

from flyball.broker.models.scopes import DOMAIN, Scope, ScopeKind
from flyball.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("domain", DOMAIN),
        ("node:a", Scope(ScopeKind.NODE, "a")),
        ("queue:%2F/orders", Scope.queue("/", "orders")),
        ("queue:a%2Fb%3A/c/d:e", Scope.queue("a/b:", "c/d:e")),
        ("application:shop/de", Scope(ScopeKind.APPLICATION, "shop/de")),
        ("loop:a.commit_queue", Scope(ScopeKind.LOOP, "a.commit_queue")),
    ],
)
def test_scope_is_written_as_it_is_read(text: str, scope: Scope) -> None:
    assert (Scope.parse(text), str(scope)) == (scope, text)


def test_queue_without_vhost_is_in_the_default_one() -> None:
    assert Scope.parse("queue:orders") == Scope.queue("/", "orders")


@pytest.mark.parametrize("text", ["", "node", "node:", "domain:x", "world:x", "queue:/x", "queue:x/", "node:\n", "x"])
def test_what_is_not_a_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid scope"):
        Scope.parse(text)
    with pytest.raises(InvalidArgument, match="at most 600 printable"):
        Scope.parse("node:" + 600 * "x")


def test_scope_that_would_be_too_long_to_read_again_is_refused() -> None:
    fitting = Scope.parse("queue:" + 40 * "日" + "/orders")
    assert Scope.parse(str(fitting)) == fitting
    with pytest.raises(InvalidArgument, match="at most 600 printable"):
        Scope.parse("queue:" + 100 * "日" + "/orders")
