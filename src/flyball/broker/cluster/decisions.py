"""What the manager of a domain decides, each with its reason in words. Plain data: somebody else carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.broker.cluster.options import Role


@dataclass(slots=True, frozen=True, kw_only=True)
class Decision:
    """Something to do, for which clustered queue (its key, "" for the domain as a whole), and why."""

    cluster: str
    reason: str


@dataclass(slots=True, frozen=True, kw_only=True)
class Provision(Decision):
    """Have a node started. It says `request` when it joins."""

    request: str
    provisioner: str
    # The node that is gone and whose name the new one may have.
    replaces: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class AddMember(Decision):
    """Create a member on a node."""

    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Mark(Decision):
    """The member takes no new clients and hands its messages to the others."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Unmark(Decision):
    """The member takes clients again."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoveMember(Decision):
    """Delete a member that has no client and no message. Its node looks once more, and refuses if it has."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Release(Decision):
    """Have a node stopped that was started for a clustered queue and serves none any more."""

    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Move(Decision):
    """Ask a session to go to another member."""

    session: str
    role: Role
    from_member: int
    to_member: int
    to_node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TakeOver(Decision):
    """Give what a dead node served to others: queues to new owners, members' messages to other members."""

    node: int
    # Queue to node.
    assignments: Mapping[int, int] = field(default_factory=dict)
    # Member whose node is dead to member that gets its messages.
    merges: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True, kw_only=True)
class HandOver(Decision):
    """Nothing that placement could do: the ratio of producers and consumers is wrong. Another loop has to act."""

    # admission (slow the producers), consumers (start some) or nobody.
    to: str


@dataclass(slots=True, frozen=True, kw_only=True)
class Failure(Decision):
    """Something that was decided did not come about. It stands only in the history."""


@dataclass(slots=True, frozen=True)
class Record:
    """A decision, and when it was made."""

    at: float
    decision: Decision


@dataclass(slots=True, frozen=True)
class MemberPlacement:
    """Where a client goes."""

    cluster: str
    member: int
    node: int
    role: Role
    session: str


@dataclass(slots=True, frozen=True)
class Wait:
    """There is no place for a client yet: it may ask again."""

    cluster: str
    retry_after_s: float
    reason: str


@dataclass(slots=True, frozen=True)
class SessionReport:
    """What a member says of one of its sessions."""

    session: str
    role: Role
    # Messages that it published or settled lately.
    rate_per_s: float | None = None
    # The node that its client is connected to, None for the member's own.
    entry: int | None = None
