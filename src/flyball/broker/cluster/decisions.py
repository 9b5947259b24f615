"""The manager's decisions as plain data, each with its reason. `executor` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.broker.cluster.options import Role


@dataclass(slots=True, frozen=True, kw_only=True)
class Decision:
    """An action, the clustered queue it concerns (its key, "" for the domain as a whole), and the reason."""

    cluster: str
    reason: str


@dataclass(slots=True, frozen=True, kw_only=True)
class Provision(Decision):
    """Start a node. It presents `request` when it joins."""

    request: str
    provisioner: str
    # The dead node whose name the new one may take.
    replaces: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class AddMember(Decision):
    """Create a member on a node."""

    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Mark(Decision):
    """Drain a member: it accepts no new clients and transfers its messages to the others."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Unmark(Decision):
    """Let a drained member accept clients again."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoveMember(Decision):
    """Delete a member without clients and messages. Its node checks once more, and refuses if it has any."""

    member: int
    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Release(Decision):
    """Stop a node that was started for a clustered queue and serves none any longer."""

    node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Move(Decision):
    """Ask a session to move to another member."""

    session: str
    role: Role
    from_member: int
    to_member: int
    to_node: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TakeOver(Decision):
    """Assign what a dead node served: queues to new owners, members' messages to other members."""

    node: int
    # Queue id to node id.
    assignments: Mapping[int, int] = field(default_factory=dict)
    # Member on the dead node to the member that gets its messages.
    merges: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True, kw_only=True)
class HandOver(Decision):
    """Placement cannot help, since the ratio of producers to consumers is wrong. Another loop has to act."""

    # admission (slow the producers), consumers (start some) or none.
    to: str


@dataclass(slots=True, frozen=True, kw_only=True)
class Failure(Decision):
    """A decision that failed. It is only recorded."""


@dataclass(slots=True, frozen=True)
class Record:
    """A decision, and when it was made."""

    at: float
    decision: Decision


@dataclass(slots=True, frozen=True)
class MemberPlacement:
    """The member chosen for a client."""

    cluster: str
    member: int
    node: int
    role: Role
    session: str


@dataclass(slots=True, frozen=True)
class Wait:
    """No member has room for the client yet: it may retry."""

    cluster: str
    retry_after_s: float
    reason: str


@dataclass(slots=True, frozen=True)
class SessionReport:
    """One session in a member's report."""

    session: str
    role: Role
    # Messages that it published or acked per second lately.
    rate_per_s: float | None = None
    # The node that its client is connected to; None for the member's own node.
    entry: int | None = None
