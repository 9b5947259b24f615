"""Policies: the choice of the policy for a queue or exchange, and its merge with the declared arguments.

The semantics are RabbitMQ's. The caller applies the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flyball.broker.engine.patterns import NamePattern, check_name, compile_pattern, never_fits, unstorable
from flyball.errors import InvalidArgument, InvalidPattern, PolicyNotFound
from flyball.model import Arguments, Policy

ALL = "all"
QUEUES = "queues"
EXCHANGES = "exchanges"

# Settings for which the minimum of argument and policy applies.
LIMITS = frozenset({"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"})

# Maximum duration, as in the arguments of a declaration.
LONGEST_MS = 2**32 - 1

MOST = 2**63 - 1

_ARGUMENT_PREFIX = "x-"


class Policies:
    """The policies of all virtual hosts. `version` is incremented with every change."""

    __slots__ = ("_by_vhost", "version")

    def __init__(self) -> None:
        self.version = 0
        # In order of precedence.
        self._by_vhost: dict[str, list[tuple[Policy, NamePattern]]] = {}

    def for_queue(self, vhost: str, name: str) -> Policy | None:
        """Return the policy that applies to the queue."""
        return self._first(vhost, name, QUEUES)

    def for_exchange(self, vhost: str, name: str) -> Policy | None:
        """Return the policy that applies to the exchange."""
        return self._first(vhost, name, EXCHANGES)

    def of_vhost(self, vhost: str) -> list[Policy]:
        """Return the virtual host's policies, highest priority first."""
        return [policy for policy, _ in self._by_vhost.get(vhost, [])]

    def all(self) -> list[Policy]:
        return [policy for vhost in sorted(self._by_vhost) for policy in self.of_vhost(vhost)]

    def find(self, vhost: str, name: str) -> Policy | None:
        return next((policy for policy in self.of_vhost(vhost) if policy.name == name), None)

    def set(self, policy: Policy) -> None:
        """Add or replace the policy of this name. Raises InvalidName, InvalidPattern, InvalidArgument."""
        check_policy(policy)
        self._set(policy, compile_pattern(policy.pattern))

    def restore(self, policy: Policy) -> InvalidPattern | None:
        """Set a stored policy; return the error of an invalid pattern, which matches no name.

        Patterns were once compiled by Python's `re`, so a store may contain some that RE2 rejects.
        Raises InvalidName, InvalidArgument.
        """
        check_policy(policy)
        try:
            self._set(policy, compile_pattern(policy.pattern))
        except InvalidPattern as error:
            self._set(policy, never_fits())
            return error
        return None

    def _set(self, policy: Policy, pattern: NamePattern) -> None:
        others = [entry for entry in self._by_vhost.get(policy.vhost, []) if entry[0].name != policy.name]
        # Equal priorities are ordered by name, for a deterministic result.
        self._by_vhost[policy.vhost] = sorted(
            [*others, (policy, pattern)], key=lambda entry: (-entry[0].priority, entry[0].name)
        )
        self.version += 1

    def clear(self, vhost: str, name: str) -> Policy:
        """Remove the policy and return it. Raises PolicyNotFound."""
        found = self.find(vhost, name)
        if found is None:
            raise PolicyNotFound(name, vhost)
        self._by_vhost[vhost] = [entry for entry in self._by_vhost[vhost] if entry[0] is not found]
        self.version += 1
        return found

    def delete_vhost(self, vhost: str) -> list[Policy]:
        """Remove all policies of the virtual host and return them."""
        self.version += 1
        return [policy for policy, _ in self._by_vhost.pop(vhost, [])]

    def _first(self, vhost: str, name: str, kind: str) -> Policy | None:
        for policy, pattern in self._by_vhost.get(vhost, []):
            if policy.apply_to in (ALL, kind) and pattern.fits(name):
                return policy
        return None


def effective(arguments: Arguments, definition: Arguments | None) -> dict[str, Any]:
    """Return the effective settings of a queue or exchange: its arguments merged with the policy's definition.

    Keys are those of policies, without `x-`. For limits the smaller value applies; otherwise the argument wins.
    """
    found = dict(definition or {})
    for name, value in arguments.items():
        key = name.removeprefix(_ARGUMENT_PREFIX)
        found[key] = min(value, found[key]) if key in LIMITS and key in found else value
    return found


# Checks

Check = Callable[[Any], bool]


def _is_between(minimum: int, maximum: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode("utf-8", "replace")) <= 255 and not unstorable(value)


def _is_one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


# The settings of a policy: the check of a value, and a description of valid ones.
KEYS: dict[str, tuple[Check, str]] = {
    "message-ttl": (_is_between(0, LONGEST_MS), f"milliseconds, 0 to {LONGEST_MS}"),
    "expires": (_is_between(1, LONGEST_MS), f"milliseconds, 1 to {LONGEST_MS}"),
    "max-length": (_is_between(0, MOST), "a number of messages, 0 or more"),
    "max-length-bytes": (_is_between(0, MOST), "a number of bytes, 0 or more"),
    "delivery-limit": (_is_between(0, MOST), "a number of deliveries, 0 or more"),
    "overflow": (
        _is_one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        "drop-head, reject-publish or reject-publish-dlx",
    ),
    "dead-letter-exchange": (_is_name, "the name of an exchange"),
    "dead-letter-routing-key": (_is_name, "a routing key"),
    "alternate-exchange": (_is_name, "the name of an exchange"),
    "queue-mode": (_is_one_of("default", "lazy"), "default or lazy"),
}


def check_policy(policy: Policy) -> None:
    """Raise InvalidName or InvalidArgument unless the policy is valid. The pattern is not checked."""
    check_name("policy", policy.name)
    if policy.apply_to not in (ALL, QUEUES, EXCHANGES):
        raise InvalidArgument(f"invalid apply-to {policy.apply_to!r}: a policy applies to all, queues or exchanges")
    if isinstance(policy.priority, bool) or not -(2**31) <= policy.priority < 2**31:
        raise InvalidArgument(f"invalid priority {policy.priority!r}: it must be a 32-bit integer")
    if not policy.definition:
        raise InvalidArgument("the definition of a policy must have at least one key")
    for key, value in policy.definition.items():
        if key not in KEYS:
            hint = f", write it without {_ARGUMENT_PREFIX}" if key.startswith(_ARGUMENT_PREFIX) else ""
            raise InvalidArgument(f"unknown policy key {key!r}{hint}; valid keys: {', '.join(sorted(KEYS))}")
        check, expected = KEYS[key]
        if not check(value):
            raise InvalidArgument(f"{key} must be {expected}, not {value!r}")
