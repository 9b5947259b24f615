"""Balances messages among the members of a clustered queue: push a surplus, pull for members that are empty.

`transfer_policy` decides how many messages go where, from the members' reports; `members` moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from flyball.broker.cluster.members import Ask, Members
from flyball.broker.cluster.overview import Overview, key_of
from flyball.broker.cluster.transfer_policy import MAX_TRANSFER, MemberLoad, choose_donor, share, surplus
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.engine.queue import QueueState
from flyball.broker.node.node import Node
from flyball.broker.peering.membership import RENEW_S
from flyball.errors import ClusterError, Fenced, FlyballError, StoreError

log = logging.getLogger(__name__)

# Interval at which the members of a node are compared with the others.
PERIOD_S = 0.1

# Rounds in a row in which a member must be empty, with idle consumers, before it asks for messages.
EMPTY_ROUNDS = 3

# After this many rounds it asks for any message, even a single one.
ASK_ANY_ROUNDS = 20

# A node's report can be this old, and does not count messages that were transferred since.
REPORT_AGE_S = 2 * RENEW_S


class Balancer:
    """Transfers messages between the members of this node and those of others."""

    def __init__(self, node: Node, members: Members, overview: Overview, ask: Ask) -> None:
        self._node = node
        self._members = members
        self._overview = overview
        self._ask = ask
        self._empty_rounds: dict[int, int] = {}
        # Members with a transfer in progress.
        self._busy: set[int] = set()
        # Messages sent to each remote member lately, with the time: its last report may not count them yet.
        self._in_transit: dict[int, deque[tuple[float, int]]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        self._busy.clear()
        async with asyncio.TaskGroup() as tasks:
            supervisor = self._node.supervisor.within(tasks)
            while True:
                await asyncio.sleep(PERIOD_S)
                for state in self._members.local():
                    if state.queue.id not in self._busy:
                        try:
                            self._look(state, supervisor)
                        except Exception as error:
                            self._node.hub.faults.note("balancing a member", error)
                for twin in list(self._node.hub.broker.engine.twins.values()):
                    if twin.queue.id not in self._busy:
                        self._busy.add(twin.queue.id)
                        supervisor.spawn(self._merge(twin))

    async def give(self, source: int, destination: int, most: int) -> int:
        """Transfer up to `most` messages of a local member to a member that requested them; return how many."""
        state = self._node.hub.broker.engine.find_queue_by_id(source)
        definition = None if state is None else self._members.definition(state.queue)
        if state is None or definition is None or source in self._busy:
            return 0
        try:
            return await self._hand_over(source, destination, share(self._load_of(state, definition), most))
        except StoreError as error:
            raise ClusterError(f"no messages were transferred: {error}") from error

    # Internals

    def _look(self, state: QueueState, supervisor: Supervisor) -> None:
        """Transfer the surplus of a member, or ask for messages when its consumers are idle."""
        queue_id = state.queue.id
        definition = self._members.definition(state.queue)
        if definition is None:
            return
        own = self._load_of(state, definition)
        others = self._others(state, definition)
        transfers = surplus(own, others, self._overview.options(key_of(state.queue)).surplus)
        if transfers:
            # One transfer per round: the next round handles the rest.
            supervisor.spawn(self._give_surplus(queue_id, transfers[0].destination, transfers[0].count))
            self._busy.add(queue_id)
            return
        rounds = self._empty_rounds.get(queue_id, 0) + 1 if not own.ready and own.idle else 0
        self._empty_rounds.pop(queue_id, None)
        if rounds:
            self._empty_rounds[queue_id] = rounds
        if rounds < EMPTY_ROUNDS:
            return
        donor = choose_donor(own, others, has_waited=rounds >= ASK_ANY_ROUNDS)
        remote = None if donor is None else self._node.topology.directory.get(donor.queue_id)
        if remote is not None:
            self._empty_rounds[queue_id] = 0
            supervisor.spawn(self._ask_for_messages(remote.owner, remote.queue.id, queue_id))
            self._busy.add(queue_id)

    async def _give_surplus(self, source_id: int, destination_id: int, count: int) -> None:
        try:
            await self._hand_over(source_id, destination_id, count)
        except Fenced:
            # The node detects separately that it is fenced, and rejoins.
            return
        except FlyballError as error:
            log.warning("message transfer to another member failed: %s", error)

    async def _merge(self, twin: QueueState) -> None:
        try:
            await self._members.merge_twin(twin)
        except Fenced:
            # The node detects separately that it is fenced, and rejoins.
            return
        except FlyballError as error:
            log.warning("merging two members on this node failed: %s", error)
        finally:
            self._busy.discard(twin.queue.id)

    async def _hand_over(self, source_id: int, destination_id: int, count: int) -> int:
        self._busy.add(source_id)
        try:
            given = await self._members.give(source_id, destination_id, count)
        finally:
            self._busy.discard(source_id)
        if given:
            now_s = asyncio.get_running_loop().time()
            self._in_transit.setdefault(destination_id, deque()).append((now_s, given))
            for queue_id in list(self._in_transit):
                self._given_lately(queue_id)
        return given

    async def _ask_for_messages(self, node_id: int, source_id: int, queue_id: int) -> None:
        try:
            await self._ask(node_id, "member.give", source=source_id, destination=queue_id, most=MAX_TRANSFER)
        except FlyballError as error:
            log.info("asking another member for messages failed: %s", error)
        finally:
            self._busy.discard(queue_id)

    def _load_of(self, state: QueueState, definition: Mapping[str, Any]) -> MemberLoad:
        queue_id = state.queue.id
        is_marked = queue_id in definition.get("marked", ())
        return MemberLoad(queue_id, len(state), state.idle_consumers, len(state.consumers), is_marked)

    def _others(self, state: QueueState, definition: Mapping[str, Any]) -> list[MemberLoad]:
        """Return the estimated loads of the queue's other members on live nodes."""
        marked = definition.get("marked", ())
        loads: list[MemberLoad] = []
        for remote in self._node.topology.directory.members(state.queue.vhost, state.queue.name):
            owner = self._node.membership.node(remote.owner)
            reported = None if owner is None or not owner.is_live else owner.report.get("members", {})
            found = None if reported is None else reported.get(str(remote.queue.id))
            if found is not None:
                queue_id = remote.queue.id
                ready = found["ready"] + self._given_lately(queue_id)
                loads.append(MemberLoad(queue_id, ready, found["idle"], found["consumers"], queue_id in marked))
        return loads

    def _given_lately(self, queue_id: int) -> int:
        """Return the number of messages recently sent to a member that its last report may not count yet."""
        given = self._in_transit.get(queue_id)
        if given is None:
            return 0
        oldest_s = asyncio.get_running_loop().time() - REPORT_AGE_S
        while given and given[0][0] < oldest_s:
            given.popleft()
        if not given:
            del self._in_transit[queue_id]
        return sum(count for _, count in given)
