"""When members of a clustered queue hand over messages, and how many: decided from what they report.

A member that holds more than it may gives the surplus to those that have room; a marked one gives all it has; an
empty one whose consumers wait asks the fullest. Members that are balanced exchange nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# So many messages go over in one transfer: it is one statement, and the receiver holds them in memory.
MAX_TRANSFER = 1000

# A member with fewer ready messages is not asked at once: its own consumers will have had them before.
WORTH_ASKING = 10

# Less than this part of what a member may hold is not handed over: it may be gone before it could be there.
WORTH_GIVING_RATIO = 0.1


@dataclass(slots=True, frozen=True)
class MemberLoad:
    """What is known of a member: its load factor is `ready` over what it may hold."""

    queue_id: int
    ready: int
    # How many of its consumers wait for a message.
    idle: int = 0
    consumers: int = 0
    is_marked: bool = False


@dataclass(slots=True, frozen=True)
class Transfer:
    """So many messages should go to that member."""

    destination: int
    count: int


def surplus(own: MemberLoad, others: Sequence[MemberLoad], may_hold: int) -> list[Transfer]:
    """Return what a member should hand to others now.

    Below what it may hold it keeps everything. Above, it gives to those that hold less than they may, and never so
    much that the receiver would have more than it: so no message comes straight back.
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
    """Return the member that should give some of its messages to this one, whose consumers wait at an empty queue.

    Where nobody consumes, or if ours have waited for long, what is ready is not served there: then every message is
    worth asking for.
    """
    if own.ready or not own.idle or own.is_marked:
        return None
    # Where consumers wait too, what is ready there will be gone before it could be here.
    able = [
        other
        for other in others
        if not other.idle and other.ready >= (1 if has_waited or not other.consumers else WORTH_ASKING)
    ]
    return max(able, key=lambda other: other.ready, default=None)


def share(own: MemberLoad, asked_for: int) -> int:
    """Return how many messages a member gives to one that asks: half of what it has, all if nobody consumes there."""
    available = own.ready if own.is_marked or not own.consumers else (own.ready + 1) // 2
    return min(available, asked_for, MAX_TRANSFER)


def _spread(count: int, receivers: Sequence[MemberLoad]) -> list[Transfer]:
    """Divide everything among the takers, those first whose consumers wait."""
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
