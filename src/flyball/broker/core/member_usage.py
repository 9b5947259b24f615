"""What a client that names queues by their ids does with members of clustered queues, and where it is served instead.

Such a client knows one member and goes on naming it. Any other of the same clustered queue is as good: its node may
let it use another one without its noticing.
"""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.core.placement import Role


class MemberUsage:
    """The members that one connection uses."""

    __slots__ = ("_homes", "_is_member", "counts")

    def __init__(self, is_member: Callable[[int], bool]) -> None:
        """`is_member` tells whether the queue of an id is a member of a clustered queue, here or elsewhere."""
        self._is_member = is_member
        # By the member that the client names, and by what it does there, the one that serves it.
        self._homes: dict[tuple[int, Role], int] = {}
        # How many requests there were, by the member that serves them and by what they do.
        self.counts: dict[tuple[int, Role], int] = {}

    def home(self, queue_id: int, role: Role) -> int:
        """Return the queue that a request is for which names this one."""
        home = self._homes.get((queue_id, role), queue_id) if self._homes else queue_id
        return home if home == queue_id or self._is_member(home) else queue_id

    def note(self, queue_id: int, role: Role) -> None:
        """The client has used a queue."""
        place = (queue_id, role)
        if place in self.counts or self._is_member(queue_id):
            self.counts[place] = self.counts.get(place, 0) + 1

    def move(self, queue_id: int, role: Role, home: int) -> None:
        """Let the client use another member instead of the one that serves it."""
        moved = {
            place: home if (served, place[1]) == (queue_id, role) else served for place, served in self._homes.items()
        }
        moved[queue_id, role] = home
        self._homes = {place: served for place, served in moved.items() if place[0] != served}
        count = self.counts.pop((queue_id, role), None)
        if count is not None:
            self.counts[home, role] = count + self.counts.get((home, role), 0)

    def forget_gone(self) -> None:
        """Forget members that are there no more."""
        for place in [place for place in self.counts if not self._is_member(place[0])]:
            del self.counts[place]
        gone = [place for place, home in self._homes.items() if not self._is_member(home)]
        for place in gone:
            del self._homes[place]
