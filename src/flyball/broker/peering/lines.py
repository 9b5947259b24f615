"""Actions that wait for congested nodes, in one line per node; an action for several nodes is in each of their lines.

So a stuck node delays only the actions for it. Independent of links and messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

from flyball.faults import Faults

EMPTY: Mapping[int, int] = {}


class Waiting:
    """An action to be run in order once none of its nodes is congested."""

    __slots__ = ("act", "drop", "nodes", "owner", "queues")

    def __init__(
        self,
        nodes: Collection[int],
        act: Callable[[], object],
        queues: Mapping[int, int] = EMPTY,
        owner: object = None,
        drop: Callable[[], object] | None = None,
    ) -> None:
        self.nodes = nodes
        # The nodes of its queues, by queue id: later actions for these queues wait until it has run.
        self.queues = queues
        self.act = act
        # The connection that it is charged to: see `Lines.forget`.
        self.owner = owner
        # Called in its place if the owner is closed, or if the action fails.
        self.drop = drop


class Lines:
    """The waiting actions by node, in order."""

    def __init__(self, is_congested: Callable[[int], bool], faults: Faults) -> None:
        """`is_congested` returns whether a node has too many unconfirmed puts."""
        self._is_congested = is_congested
        self._faults = faults
        # By node; never holds an empty line.
        self._lines: dict[int, deque[Waiting]] = {}
        # By queue, the line of its waiting actions and their number.
        self._queues: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len({id(waiting) for line in self._lines.values() for waiting in line})

    def __bool__(self) -> bool:
        return bool(self._lines)

    def nodes_of(self, queues: Mapping[int, int]) -> set[int]:
        """Return the nodes whose lines an action for these queues must join.

        While an action for a queue waits in a line, later ones join that line as well, even if the queue has moved.
        """
        nodes = set(queues.values())
        if self._queues:
            nodes.update(self._queues[queue_id][0] for queue_id in queues if queue_id in self._queues)
        return nodes

    def must_wait(self, nodes: Collection[int]) -> bool:
        """Whether one of the nodes is congested, or has waiting actions."""
        return any(node_id in self._lines or self._is_congested(node_id) for node_id in nodes)

    def join(self, waiting: Waiting) -> None:
        """Add an action at the end of the lines of its nodes."""
        for node_id in waiting.nodes:
            self._lines.setdefault(node_id, deque()).append(waiting)
        for queue_id, owner_id in waiting.queues.items():
            node_id, count = self._queues.get(queue_id, (owner_id, 0))
            self._queues[queue_id] = node_id, count + 1

    def forget(self, owner: object) -> bool:
        """Drop the actions of a closed owner; return whether this lets other actions run."""
        found = {id(each): each for line in self._lines.values() for each in line if each.owner is owner}
        if not found:
            return False
        for node_id, line in list(self._lines.items()):
            left = deque(each for each in line if each.owner is not owner)
            if left:
                self._lines[node_id] = left
            else:
                del self._lines[node_id]
        for waiting in found.values():
            self._leave_queues(waiting)
            self._give_up(waiting)
        return bool(self._lines)

    def go_on(self) -> None:
        """Run the actions that are first in all of their lines and whose nodes are not congested."""
        nodes = deque(self._lines)
        while nodes:
            node_id = nodes.popleft()
            while (line := self._lines.get(node_id)) and self._may_act(line[0]):
                waiting = line[0]
                self._leave(waiting)
                # Other actions may be first in those lines now.
                nodes.extend(other for other in waiting.nodes if other != node_id)
                try:
                    waiting.act()
                except Exception as error:
                    self._faults.note("end of congestion", error)
                    self._give_up(waiting)

    def _may_act(self, waiting: Waiting) -> bool:
        lines = self._lines
        return all(lines[node_id][0] is waiting and not self._is_congested(node_id) for node_id in waiting.nodes)

    def _leave(self, waiting: Waiting) -> None:
        for node_id in waiting.nodes:
            line = self._lines[node_id]
            line.popleft()
            if not line:
                del self._lines[node_id]
        self._leave_queues(waiting)

    def _leave_queues(self, waiting: Waiting) -> None:
        for queue_id in waiting.queues:
            node_id, count = self._queues.pop(queue_id)
            if count > 1:
                self._queues[queue_id] = node_id, count - 1

    def _give_up(self, waiting: Waiting) -> None:
        if waiting.drop is not None:
            self._faults.guard("put to another node", waiting.drop)
