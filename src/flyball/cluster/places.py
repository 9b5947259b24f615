"""What a node of a domain answers over HTTP: where clients belong, and what the domain is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.cluster.facts import facts_of
from flyball.cluster.governor import DomainGovernor
from flyball.cluster.http import PlaceAnswer, PlaceQuery
from flyball.errors import ClusterError
from flyball.server.placement import NoPlaceYet, PlaceRequest, Role


class DomainPlaces:
    """Answers for whoever governs the node."""

    def __init__(self, governor: DomainGovernor) -> None:
        self._governor = governor
        self._placement = governor.placement

    async def place(self, query: PlaceQuery) -> PlaceAnswer:
        request = PlaceRequest(
            query.vhost,
            query.queue_name,
            Role[query.role.upper()],
            query.client_name,
            query.session_id,
            query.avoid,
        )
        place = await self._placement.place(request)
        if isinstance(place, NoPlaceYet):
            raise ClusterError(f"no place yet: {place.reason}; try again in {place.retry_s:g} s")
        return PlaceAnswer(place.node, place.addresses, place.session_id)

    async def ended(self, session_id: str) -> None:
        await self._placement.ended(session_id)

    async def domain(self) -> Mapping[str, Any]:
        return facts_of(await self._governor.view())
