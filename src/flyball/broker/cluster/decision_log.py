"""The decision log: what this node decided as leader and why, with names instead of ids.

Entries are formatted when they are recorded, since names of nodes that have left cannot be looked up later. Bounded;
read-only for the manager.
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
from flyball.broker.models.history import Entry, History, shown

KEPT_DECISIONS = 500

# Decisions shown with a clustered queue.
SHOWN_DECISIONS = 50


class LoggedDecision(TypedDict):
    """A decision as shown to users."""

    number: int
    # Unix time.
    at: float
    kind: str
    # Vhost and name of the clustered queue it concerns; None for the domain as a whole.
    cluster: dict[str, str] | None
    # The object that changes, usually a node.
    target: str
    what: str
    reason: str


class DecisionLog:
    """The latest decisions of this node as leader, numbered for the lifetime of the process."""

    def __init__(self, overview: Overview, term: str) -> None:
        self._overview = overview
        # Numbers are only comparable within a term.
        self._term = term
        self._decisions: deque[LoggedDecision] = deque(maxlen=KEPT_DECISIONS)
        self._number = 0
        # Decisions by kind.
        self.counts: Counter[str] = Counter()

    def begin(self, name: str) -> None:
        """Record that this node became leader."""
        reason = "it holds the leader lease in the registry"
        self._add("Lead", "", name, f"Node '{name}' leads the domain", reason)

    def note(self, record: Record) -> None:
        """Record a decision or a failure."""
        decision = record.decision
        target, what = self._words_for(decision)
        self._add(type(decision).__name__, decision.cluster, target, what, self.named(decision.reason))

    def note_queue_move(self, move: MoveFacts) -> None:
        """Record the move of an ordinary queue in a rebalance."""
        what = f"Move queue '{move['name']}' from '{move['source']}' to '{move['destination']}'"
        self._add("MoveQueue", "", move["name"], what, f"a rebalance was requested: {move['reason']}")

    def note_model(self, model: History, entry: Entry) -> None:
        """Record a change of a version of a model."""
        what = (
            f"{model.kind.capitalize()} model for scope '{model.scope}': version {entry.version} {shown(entry.after)}"
        )
        by = f"by user '{entry.by}'"
        self._add("Model", "", model.scope, what, f"{entry.reason} ({by})" if entry.reason else by)

    def since(self, number: int, term: str) -> dict[str, Any]:
        """Return the entries after this number of this term; all entries if the term is another one."""
        after = number if term == self._term else 0
        newer = [decision for decision in self._decisions if decision["number"] > after]
        return {"term": self._term, "last": self._number, "decisions": newer}

    def facts_of(self, cluster: str) -> list[DecisionFacts]:
        """Return the latest decisions for a clustered queue, newest last."""
        place = _place_of(cluster)
        return [
            {
                "at": datetime.fromtimestamp(decision["at"], UTC).isoformat(timespec="seconds"),
                "what": decision["kind"],
                "reason": decision["reason"],
            }
            for decision in [decision for decision in self._decisions if decision["cluster"] == place][
                -SHOWN_DECISIONS:
            ]
        ]

    def named(self, reason: str) -> str:
        """Replace ids in a reason by names."""
        reason = re.sub(r"\bnode (\d+)\b", lambda found: f"node '{self._node(int(found[1]))}'", reason)
        return re.sub(r"\bmember (\d+)\b", lambda found: f"the member on {self._member(int(found[1]))}", reason)

    def _add(self, kind: str, cluster: str, target: str, what: str, reason: str) -> None:
        self._number += 1
        self.counts[kind] += 1
        self._decisions.append(
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
        """Return what changes, and a sentence that describes the change."""
        queue = title(decision.cluster) if decision.cluster else "the domain"
        match decision:
            case Provision(cluster="", provisioner=provisioner, replaces=int(node)):
                return self._node(node), f"Restart node '{self._node(node)}' with provisioner '{provisioner}'"
            case Provision(provisioner=provisioner, replaces=replaces):
                instead = "" if replaces is None else f", replacing '{self._node(replaces)}'"
                return queue, f"Start a node with provisioner '{provisioner}' for {queue}{instead}"
            case AddMember(node=node):
                return self._node(node), f"Add a member of {queue} on '{self._node(node)}'"
            case Mark(node=node):
                return self._node(node), f"Drain the member of {queue} on '{self._node(node)}': no new clients"
            case Unmark(node=node):
                return self._node(node), f"Keep the member of {queue} on '{self._node(node)}': it takes clients again"
            case RemoveMember(node=node):
                return self._node(node), f"Remove the member of {queue} on '{self._node(node)}'"
            case Release(node=node):
                return self._node(node), f"Stop node '{self._node(node)}'"
            case Move(session=session, role=role, from_member=origin, to_node=node):
                there = self._member(origin)
                return session, f"Ask a {role} of {queue} to move from {there} to '{self._node(node)}'"
            case TakeOver(node=node, assignments=assignments, merges=merges):
                count = len(assignments) + len(merges)
                return self._node(node), f"Move {count} queues of node '{self._node(node)}' to other nodes"
            case HandOver(to=to):
                return to, f"Moving clients of {queue} does not help; responsible: {to}"
            case Failure():
                return queue, f"A decision for {queue} failed"
        return queue, type(decision).__name__

    def _node(self, node_id: int) -> str:
        return self._overview.name_of(node_id)

    def _member(self, queue_id: int) -> str:
        owner = self._overview.owner_of(queue_id)
        return "a node that has left" if owner is None else f"'{self._node(owner)}'"


def _place_of(cluster: str) -> dict[str, str] | None:
    if not cluster:
        return None
    vhost, name = split_key(cluster)
    return {"vhost": vhost, "name": name}
