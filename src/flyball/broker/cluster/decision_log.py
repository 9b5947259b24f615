"""What a leader has decided lately and why, in words that people understand: names instead of numbers.

Told on the spot: later nobody may know any more what a node was called. Bounded; carries nothing out.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any, TypedDict

from flyball.broker.cluster.decisions import (
    AddMember,
    Decision,
    Failure,
    HandOver,
    Mark,
    Move,
    Provision,
    Record,
    Release,
    RemoveMember,
    TakeOver,
    Unmark,
)
from flyball.broker.cluster.facts import DecisionFacts, MoveFacts
from flyball.broker.cluster.names import split_key, title
from flyball.broker.cluster.overview import Overview

KEPT_DECISIONS = 500

# Decisions that are shown with a clustered queue.
SHOWN_DECISIONS = 50


class ToldDecision(TypedDict):
    """A decision as it is shown."""

    number: int
    # Unix time.
    at: float
    kind: str
    # The clustered queue that it is for, as vhost and name; None if it is for the domain as a whole.
    cluster: dict[str, str] | None
    # What is changed: a node, mostly.
    target: str
    what: str
    reason: str


class DecisionLog:
    """The last decisions of a node as a leader, numbered as long as it lives."""

    def __init__(self, overview: Overview, term: str) -> None:
        self._overview = overview
        # Numbers of other terms have nothing to do with these.
        self._term = term
        self._told: deque[ToldDecision] = deque(maxlen=KEPT_DECISIONS)
        self._number = 0
        # How many there were of each kind.
        self.counts: Counter[str] = Counter()

    def begin(self, name: str) -> None:
        """The node leads from now on."""
        reason = "nobody else does: the node holds the lead in the registry that all share"
        self._add("Lead", "", name, f"Node '{name}' leads the domain", reason)

    def note(self, record: Record) -> None:
        """Something was decided, or did not come about."""
        decision = record.decision
        target, what = self._words_for(decision)
        self._add(type(decision).__name__, decision.cluster, target, what, self.named(decision.reason))

    def note_queue_move(self, move: MoveFacts) -> None:
        """An ordinary queue is to move, since somebody wanted the queues spread."""
        what = f"Move queue '{move['name']}' from '{move['source']}' to '{move['destination']}'"
        self._add("MoveQueue", "", move["name"], what, f"somebody asked for a rebalance: {move['reason']}")

    def since(self, number: int, term: str) -> dict[str, Any]:
        """Return what came after that number of that term; all of it if the term is another one."""
        after = number if term == self._term else 0
        told = [decision for decision in self._told if decision["number"] > after]
        return {"term": self._term, "last": self._number, "decisions": told}

    def facts_of(self, cluster: str) -> list[DecisionFacts]:
        """Return the last decisions for a clustered queue; newest last."""
        place = _place_of(cluster)
        return [
            {
                "at": datetime.fromtimestamp(decision["at"], UTC).isoformat(timespec="seconds"),
                "what": decision["kind"],
                "reason": decision["reason"],
            }
            for decision in [decision for decision in self._told if decision["cluster"] == place][-SHOWN_DECISIONS:]
        ]

    def named(self, reason: str) -> str:
        """Return a reason with names instead of numbers."""
        reason = re.sub(r"\bnode (\d+)\b", lambda found: f"node '{self._node(int(found[1]))}'", reason)
        return re.sub(r"\bmember (\d+)\b", lambda found: f"the member on {self._member(int(found[1]))}", reason)

    def _add(self, kind: str, cluster: str, target: str, what: str, reason: str) -> None:
        self._number += 1
        self.counts[kind] += 1
        self._told.append(
            {
                "number": self._number,
                "at": time.time(),
                "kind": kind,
                "cluster": _place_of(cluster),
                "target": target,
                "what": what,
                "reason": reason,
            }
        )

    def _words_for(self, decision: Decision) -> tuple[str, str]:
        """Return what is changed, and a sentence on what is done to it."""
        queue = title(decision.cluster) if decision.cluster else "the domain"
        match decision:
            case Provision(cluster="", provisioner=provisioner, replaces=int(node)):
                return self._node(node), f"Have node '{self._node(node)}' started again by '{provisioner}'"
            case Provision(provisioner=provisioner, replaces=replaces):
                instead = "" if replaces is None else f", instead of '{self._node(replaces)}'"
                return queue, f"Have a node started by '{provisioner}' for {queue}{instead}"
            case AddMember(node=node):
                return self._node(node), f"Add a member of {queue} on '{self._node(node)}'"
            case Mark(node=node):
                return self._node(node), f"Drain the member of {queue} on '{self._node(node)}': no new clients"
            case Unmark(node=node):
                return self._node(node), f"Keep the member of {queue} on '{self._node(node)}': it takes clients again"
            case RemoveMember(node=node):
                return self._node(node), f"Remove the member of {queue} on '{self._node(node)}'"
            case Release(node=node):
                return self._node(node), f"Have node '{self._node(node)}' stopped"
            case Move(session=session, role=role, from_member=origin, to_node=node):
                there = self._member(origin)
                return session, f"Ask a {role} of {queue} to move from {there} to '{self._node(node)}'"
            case TakeOver(node=node, assignments=assignments, merges=merges):
                count = len(assignments) + len(merges)
                return self._node(node), f"Give {count} queues of node '{self._node(node)}' to others"
            case HandOver(to=to):
                return to, f"Nothing that moving clients of {queue} could cure: it is up to {to}"
            case Failure():
                return queue, f"Something that was decided for {queue} did not come about"
        return queue, type(decision).__name__

    def _node(self, node_id: int) -> str:
        return self._overview.name_of(node_id)

    def _member(self, queue_id: int) -> str:
        owner = self._overview.owner_of(queue_id)
        return "a node that is gone" if owner is None else f"'{self._node(owner)}'"


def _place_of(cluster: str) -> dict[str, str] | None:
    if not cluster:
        return None
    vhost, name = split_key(cluster)
    return {"vhost": vhost, "name": name}
