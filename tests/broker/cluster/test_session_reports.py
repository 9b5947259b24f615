"""The leader learns from every node which sessions use members through it, and uses counts where it cannot."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flyball.broker.cluster.session_reports import SessionReports
from flyball.broker.cluster.sessions import MAX_SESSIONS_PER_REPORT
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import PeerLost


def node(number: int, epoch: int = 1, **clients: int) -> NodeRecord:
    """Return a node whose report says how many clients of each role use member 7 through it."""
    report = {"clients": {"7": clients}} if clients else {}
    return NodeRecord(number, f"n{number}", epoch, NodeState.UP, 1, 5.0, {}, report)


class Domain:
    """Nodes, the first of which leads, and their reports; a node without one does not answer."""

    def __init__(self, *nodes: NodeRecord) -> None:
        self.nodes = list(nodes)
        self.told: dict[int, list[Any]] = {}
        overview = SimpleNamespace(live=self.nodes, own_id=nodes[0].id)
        peers = SimpleNamespace(can_reach=lambda node_id: True)
        agent: Any = SimpleNamespace(overview=overview, node=SimpleNamespace(peers=peers), ask=self._ask)
        self.session_reports = SessionReports(agent)

    async def _ask(self, node_id: int, command: str, *, first: int, time_limit_s: float) -> list[Any]:
        if node_id not in self.told:
            raise PeerLost(node_id, "does not answer")
        return self.told[node_id][first : first + MAX_SESSIONS_PER_REPORT]

    def hear(self) -> list[list[str]]:
        """Ask all; return the sessions of each node."""
        asyncio.run(self.session_reports.ask_all())
        return [[report.session for _, report in self.session_reports.sessions(node)] for node in self.nodes]


def test_all_sessions_are_heard_however_many_there_are() -> None:
    for count in (0, 1, MAX_SESSIONS_PER_REPORT, 2 * MAX_SESSIONS_PER_REPORT + 1):
        domain = Domain(node(1))
        domain.told[1] = [[f"s{number}", "producer", 7, None] for number in range(count)]
        assert [len(told) for told in domain.hear()] == [count]


def test_of_a_node_that_has_not_answered_yet_the_numbers_count() -> None:
    domain = Domain(node(1), node(2, producer=2, consumer=1))
    domain.told[1] = [["s1", "consumer", 7, 5.0]]
    assert [len(told) for told in domain.hear()] == [1, 3]
    [(member, _), *_] = domain.session_reports.sessions(domain.nodes[1])
    assert (member, domain.session_reports.entry_of("s2")) == (7, None)
    domain.told[2] = [["s2", "producer", 7, None]]
    assert domain.hear() == [["s1"], ["s2"]]
    assert domain.session_reports.entry_of("s2") == 2


def test_what_a_node_has_told_holds_until_it_answers_again_or_is_gone() -> None:
    domain = Domain(node(1), node(2, producer=5))
    domain.told = {1: [], 2: [["s2", "producer", 7, None]]}
    assert domain.hear() == [[], ["s2"]]
    del domain.told[2]
    assert domain.hear() == [[], ["s2"]]
    domain.nodes[1] = node(2, epoch=2)
    assert domain.hear() == [[], []]
    domain.nodes[1] = node(2, epoch=1)
    assert domain.hear() == [[], []]
