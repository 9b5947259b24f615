"""Connections between the nodes of a domain: those that others have opened to this one, and those that it opens."""

from flyball.broker.peering.link.peers import Connect, Link, Peers, connecting
from flyball.broker.peering.link.session import LinkSession

__all__ = ["Connect", "Link", "LinkSession", "Peers", "connecting"]
