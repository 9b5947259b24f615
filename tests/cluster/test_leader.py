"""The leader goes on whatever the store says, but not when others have taken its node's place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from flyball.cluster import leader as leader_module
from flyball.cluster.leader import Leader
from flyball.errors import Fenced, StoreError, StoreUnavailable


class Stumbling(Leader):
    """A leader that meets these errors, one after the other."""

    def __init__(self, *errors: StoreError) -> None:
        self._errors = list(errors)
        self._agent: Any = SimpleNamespace(leads=True)
        self._errands: Any = SimpleNamespace(cancel=lambda: None)
        self.led: list[bool] = []

    async def step(self) -> None:
        self.led.append(self._agent.leads)
        raise self._errors.pop(0)


def test_a_node_that_joins_again_while_it_is_replaced_does_not_end_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_module, "PERIOD_S", 0.0)
    leader = Stumbling(StoreError("node 3 is not dead"), StoreUnavailable("the store is away"), Fenced("it is over"))
    with pytest.raises(Fenced):
        asyncio.run(leader.run())
    assert leader.led == [True, False, False]
