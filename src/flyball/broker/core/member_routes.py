"""The members of clustered queues that serve a client which names queues by id.

Such a client knows one member and always names it. Any member of the clustered queue can serve it, so the node can
redirect its requests transparently.
"""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.core.placement import Role


class MemberRoutes:
    """The members that one connection uses, and redirections between them."""

    __slots__ = ("_homes", "_is_member", "counts")

    def __init__(self, is_member: Callable[[int], bool]) -> None:
        """`is_member` returns whether a queue id is a member of a clustered queue, here or on another node."""
        self._is_member = is_member
        # The member that serves the client, by the member that it names and its role.
        self._homes: dict[tuple[int, Role], int] = {}
        # Number of requests, by the member that serves them and the role.
        self.counts: dict[tuple[int, Role], int] = {}

    def home(self, queue_id: int, role: Role) -> int:
        """Return the queue that serves a request for this one."""
        home = self._homes.get((queue_id, role), queue_id) if self._homes else queue_id
        return home if home == queue_id or self._is_member(home) else queue_id

    def note(self, queue_id: int, role: Role) -> None:
        """Count a request of the client."""
        place = (queue_id, role)
        if place in self.counts or self._is_member(queue_id):
            self.counts[place] = self.counts.get(place, 0) + 1

    def move(self, queue_id: int, role: Role, home: int) -> None:
        """Redirect the client from the member that serves it to another."""
        moved = {
            place: home if (served, place[1]) == (queue_id, role) else served for place, served in self._homes.items()
        }
        moved[queue_id, role] = home
        self._homes = {place: served for place, served in moved.items() if place[0] != served}
        count = self.counts.pop((queue_id, role), None)
        if count is not None:
            self.counts[home, role] = count + self.counts.get((home, role), 0)

    def forget_gone(self) -> None:
        """Remove members that no longer exist."""
        for place in [place for place in self.counts if not self._is_member(place[0])]:
            del self.counts[place]
        gone = [place for place, home in self._homes.items() if not self._is_member(home)]
        for place in gone:
            del self._homes[place]
