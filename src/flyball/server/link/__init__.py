"""Connections between the nodes of a domain: those that others have opened to this one, and those that it opens."""

from flyball.server.link.peers import Connect, Link, Peers, connecting
from flyball.server.link.session import LinkSession

__all__ = ["Connect", "Link", "LinkSession", "Peers", "connecting"]
