"""Decides from the reports of members when they transfer messages, and how many.

A member above its limit pushes the surplus to those with room; a marked one pushes everything; an empty one with idle
consumers pulls from the fullest. Balanced members transfer nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Maximum messages per transfer: it is one statement, and the receiver holds them in memory.
MAX_TRANSFER = 1000

# A member with fewer ready messages is not asked for messages at once: its own consumers will take them first.
WORTH_ASKING = 10

# Transfers below this share of a member's limit are skipped: the messages may be consumed before they arrive.
WORTH_GIVING_RATIO = 0.1


@dataclass(slots=True, frozen=True)
class MemberLoad:
    """Counts of a member; its load factor is `ready` divided by its limit."""

    queue_id: int
    ready: int
    # Consumers that wait for a message.
    idle: int = 0
    consumers: int = 0
    is_marked: bool = False


@dataclass(slots=True, frozen=True)
class Transfer:
    """Messages to transfer to a member."""

    destination: int
    count: int


def surplus(own: MemberLoad, others: Sequence[MemberLoad], may_hold: int) -> list[Transfer]:
    """Return the transfers that a member should push now.

    Below its limit it keeps everything. Above, it pushes to members below their limits, and only up to their limit,
    so that no message is transferred straight back.
    """
    receivers = [other for other in others if not other.is_marked and other.queue_id != own.queue_id]
    if own.is_marked:
        return _spread(own.ready, receivers)
    excess = own.ready - may_hold
    receivers = [other for other in receivers if other.ready < may_hold]
    if excess <= 0 or not receivers:
        return []
    mean = (own.ready + sum(receiver.ready for receiver in receivers)) // (1 + len(receivers))
    transfers: list[Transfer] = []
    for receiver in sorted(receivers, key=lambda receiver: (-receiver.idle, receiver.ready)):
        count = min(excess, mean - receiver.ready, MAX_TRANSFER)
        if count > 0 and count >= WORTH_GIVING_RATIO * may_hold:
            transfers.append(Transfer(receiver.queue_id, count))
            excess -= count
    return transfers


def choose_donor(own: MemberLoad, others: Sequence[MemberLoad], *, has_waited: bool = False) -> MemberLoad | None:
    """Return the member to pull from, for a member with idle consumers and an empty queue.

    If the donor has no consumers, or ours have been idle for long, its ready messages are not served there: then
    every message is worth pulling.
    """
    if own.ready or not own.idle or own.is_marked:
        return None
    # Idle consumers there will take its messages before they could arrive here.
    able = [
        other
        for other in others
        if not other.idle and other.ready >= (1 if has_waited or not other.consumers else WORTH_ASKING)
    ]
    return max(able, key=lambda other: other.ready, default=None)


def share(own: MemberLoad, asked_for: int) -> int:
    """Return how many messages to transfer to a member that asks: half, or all if this one has no consumers."""
    available = own.ready if own.is_marked or not own.consumers else (own.ready + 1) // 2
    return min(available, asked_for, MAX_TRANSFER)


def _spread(count: int, receivers: Sequence[MemberLoad]) -> list[Transfer]:
    """Divide all messages among the receivers, those with idle consumers first."""
    if not receivers or not count:
        return []
    each = min(-(-count // len(receivers)), MAX_TRANSFER)
    transfers: list[Transfer] = []
    for receiver in sorted(receivers, key=lambda receiver: (-receiver.idle, receiver.ready)):
        transfers.append(Transfer(receiver.queue_id, min(each, count)))
        count -= each
        if count <= 0:
            break
    return transfers
