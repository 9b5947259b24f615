"""Connections between the nodes of a domain: those that others have opened to this one, and those that it opens."""

from flyball.broker.peering.link.handshake import Identity
from flyball.broker.peering.link.outgoing import Link
from flyball.broker.peering.link.peers import Connect, Peers, connecting
from flyball.broker.peering.link.session import LinkSession

__all__ = ["Connect", "Identity", "Link", "LinkSession", "Peers", "connecting"]
