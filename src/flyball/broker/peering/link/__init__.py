"""Links between the nodes of a domain: those opened by other nodes, and those opened by this one."""

from flyball.broker.peering.link.handshake import Identity
from flyball.broker.peering.link.outgoing import Link
from flyball.broker.peering.link.peers import Connect, Peers, connecting
from flyball.broker.peering.link.session import LinkSession

__all__ = ["Connect", "Identity", "Link", "LinkSession", "Peers", "connecting"]
