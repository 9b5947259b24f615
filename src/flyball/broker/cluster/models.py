"""Changes of models in a domain: made by the leader, one after the other, and noted in its decision log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.decision_log import DecisionLog
from flyball.broker.models.registry import Changed

# Time limit of a change, which waits for two commits at most.
CHANGE_S = 30.0


class ModelChanges:
    """Sends changes of models to the leader, and makes them while this node leads."""

    def __init__(self, agent: Agent, decisions: DecisionLog) -> None:
        self._agent = agent
        self._models = agent.node.models
        self._models.decided.subscribe(decisions.note_model)
        agent.answer_while_leading({"model.change": self._change})
        agent.node.hub.commands["model"] = self.run

    async def run(self, command: str, by: str, arguments: Mapping[str, Any]) -> Changed:
        """Run a command of `Models` on the leader. Raises FlyballError."""
        found: Changed = await self._agent.ask_leader(
            "model.change", name=command, by=by, arguments=dict(arguments), time_limit_s=CHANGE_S
        )
        return found

    async def _change(self, name: str, by: str, arguments: Mapping[str, Any]) -> Changed:
        return await self._models.run(name, by, arguments)
