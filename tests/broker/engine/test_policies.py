"""Policies apply by pattern and priority, and limit what declarations say."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.broker.engine.policies import KEYS, Policies, effective
from flyball.errors import InvalidArgument, InvalidName, InvalidPattern, PolicyNotFound
from flyball.model import Policy

SHORT = {"max-length": 10}


def policies_of(*policies: Policy) -> Policies:
    found = Policies()
    for policy in policies:
        found.set(policy)
    return found


def name_of(policy: Policy | None) -> str | None:
    return None if policy is None else policy.name


def test_a_policy_applies_where_its_pattern_fits_in_its_virtual_host() -> None:
    policies = policies_of(Policy("p", "ord", SHORT))
    assert name_of(policies.for_queue("/", "my-orders")) == "p"
    assert policies.for_queue("/", "bills") is None
    assert policies.for_queue("shop", "orders") is None


def test_pattern_of_a_policy_takes_linear_time() -> None:
    policies = policies_of(Policy("p", "^(a+)+$", SHORT))
    assert policies.for_queue("/", "a" * 200 + "!") is None
    assert name_of(policies.for_exchange("/", "a" * 200)) == "p"


def test_an_empty_pattern_fits_every_name() -> None:
    assert name_of(policies_of(Policy("p", "", SHORT)).for_queue("/", "orders")) == "p"


def test_the_highest_priority_applies_and_the_name_decides_among_equals() -> None:
    low, high = Policy("low", ".*", SHORT, priority=-1), Policy("high", "^a", SHORT, priority=1)
    zero, also = Policy("zero", ".*", SHORT), Policy("also", ".*", SHORT)
    for order in ((low, high, zero, also), (also, zero, high, low)):
        policies = policies_of(*order)
        assert name_of(policies.for_queue("/", "a")) == "high"
        assert name_of(policies.for_queue("/", "b")) == "also"
        assert [policy.name for policy in policies.of_vhost("/")] == ["high", "also", "zero", "low"]


def test_a_policy_applies_to_queues_to_exchanges_or_to_both() -> None:
    policies = policies_of(
        Policy("queues", ".*", SHORT, apply_to="queues", priority=2),
        Policy("exchanges", ".*", SHORT, apply_to="exchanges", priority=1),
        Policy("all", ".*", SHORT),
    )
    assert name_of(policies.for_queue("/", "x")) == "queues"
    assert name_of(policies.for_exchange("/", "x")) == "exchanges"
    policies.clear("/", "queues")
    policies.clear("/", "exchanges")
    assert name_of(policies.for_queue("/", "x")) == name_of(policies.for_exchange("/", "x")) == "all"


def test_a_policy_replaces_the_one_of_its_name() -> None:
    policies = policies_of(Policy("p", "^a", SHORT, priority=5), Policy("p", "^b", {"expires": 1}))
    assert policies.for_queue("/", "a") is None
    assert policies.all() == [Policy("p", "^b", {"expires": 1})]


def test_a_cleared_policy_applies_no_more() -> None:
    policies = policies_of(Policy("p", ".*", SHORT))
    assert policies.clear("/", "p") == Policy("p", ".*", SHORT)
    assert policies.for_queue("/", "x") is None
    with pytest.raises(PolicyNotFound):
        policies.clear("/", "p")


def test_a_virtual_hosts_policies_go_with_it() -> None:
    policies = policies_of(Policy("p", ".*", SHORT), Policy("q", ".*", SHORT, vhost="shop"))
    assert [policy.name for policy in policies.delete_vhost("shop")] == ["q"]
    assert [policy.name for policy in policies.all()] == ["p"]
    assert policies.delete_vhost("shop") == []


def test_every_change_has_a_new_version() -> None:
    policies = Policies()
    versions = [policies.version]
    policies.set(Policy("p", ".*", SHORT))
    versions.append(policies.version)
    policies.clear("/", "p")
    versions.append(policies.version)
    policies.delete_vhost("/")
    versions.append(policies.version)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("key", ["message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"])
def test_of_two_limits_the_smaller_counts(key: str) -> None:
    assert effective({f"x-{key}": 5}, {key: 7}) == {key: 5}
    assert effective({f"x-{key}": 7}, {key: 5}) == {key: 5}
    assert effective({f"x-{key}": 0}, {key: 5}) == {key: 0}


def test_otherwise_the_argument_wins_over_the_policy() -> None:
    arguments = {"x-overflow": "drop-head", "x-dead-letter-exchange": "mine", "alternate-exchange": "a"}
    definition = {"overflow": "reject-publish", "dead-letter-exchange": "theirs", "alternate-exchange": "b"}
    assert effective(arguments, definition) == {
        "overflow": "drop-head",
        "dead-letter-exchange": "mine",
        "alternate-exchange": "a",
    }


def test_what_only_one_of_them_says_holds() -> None:
    assert effective({"x-max-priority": 9}, {"max-length": 5}) == {"max-priority": 9, "max-length": 5}
    assert effective({"x-max-length": 5}, None) == {"max-length": 5}
    definition = {"max-length": 5}
    effective({"x-max-length": 1}, definition)
    assert definition == {"max-length": 5}


GOOD: dict[str, list[Any]] = {
    "message-ttl": [0, 2**32 - 1],
    "expires": [1],
    "max-length": [0, 2**40],
    "max-length-bytes": [0],
    "delivery-limit": [0, 20],
    "overflow": ["drop-head", "reject-publish", "reject-publish-dlx"],
    "dead-letter-exchange": ["", "dlx"],
    "dead-letter-routing-key": ["", "key"],
    "alternate-exchange": ["ae"],
    "queue-mode": ["default", "lazy"],
}
BAD: dict[str, list[Any]] = {
    "message-ttl": [-1, 2**32, "5", 1.5, True, None],
    "expires": [0, "1"],
    "max-length": [-1, "5", 2**63],
    "max-length-bytes": [-1, [5]],
    "delivery-limit": [-1, False],
    "overflow": ["drop-tail", 1, ["drop-head"]],
    "dead-letter-exchange": [1, None, "zero \0", "x" * 256],
    "dead-letter-routing-key": [1, "half \ud83d", "é" * 200],
    "alternate-exchange": [{}],
    "queue-mode": ["eager", {}],
}


@pytest.mark.parametrize("key", KEYS)
def test_values_are_checked(key: str) -> None:
    for value in GOOD[key]:
        policies_of(Policy("p", ".*", {key: value}))
    for value in BAD[key]:
        with pytest.raises(InvalidArgument, match=f"^{key} must be "):
            policies_of(Policy("p", ".*", {key: value}))


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ({}, "at least one key"),
        ({"max-priority": 5}, "unknown policy key 'max-priority'; valid keys: alternate-exchange, "),
        ({"x-max-length": 5}, "unknown policy key 'x-max-length', write it without x-"),
    ],
)
def test_a_definition_says_something_that_policies_can_say(definition: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        policies_of(Policy("p", ".*", definition))


def test_name_pattern_priority_and_kind_are_checked() -> None:
    policies = policies_of(Policy("p", ".*", SHORT))
    with pytest.raises(InvalidName):
        policies.set(Policy("", ".*", SHORT))
    with pytest.raises(InvalidPattern):
        policies.set(Policy("p", "(", SHORT))
    with pytest.raises(InvalidArgument, match="32-bit"):
        policies.set(Policy("p", ".*", SHORT, priority=2**31))
    with pytest.raises(InvalidArgument, match="apply-to 'streams'"):
        policies.set(Policy("p", ".*", SHORT, apply_to="streams"))
    assert policies.all() == [Policy("p", ".*", SHORT)]


def test_stored_policy_whose_pattern_cannot_be_matched_applies_to_nothing() -> None:
    policies = Policies()
    problem = policies.restore(Policy("p", "^(?!amq)", SHORT))
    assert problem is not None
    assert problem.pattern == "^(?!amq)"
    assert policies.for_queue("/", "orders") is None
    assert name_of(policies.find("/", "p")) == "p"
    assert policies.restore(Policy("p", "ord", SHORT)) is None
    assert name_of(policies.for_queue("/", "orders")) == "p"
