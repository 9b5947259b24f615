"""The reasons of failed logins, for the log only: they must not be revealed to a peer."""

from __future__ import annotations

from flyball.broker.core.authority import Authority
from flyball.model import OWNER


def why_refused(authority: Authority, name: str, peer_is_loopback: bool) -> str:
    """Return the likely reason of a failed login."""
    if name == OWNER:
        return "wrong token" if peer_is_loopback else "the token is valid on the node's machine only"
    user = authority.access.find_user(name)
    if user is None:
        return "no such user"
    if not peer_is_loopback and name in authority.loopback_users:
        return "user may connect from the node's machine only (--loopback-users)"
    return "user has no password" if user.password_hash is None else "wrong password"
