"""The service manager of the node's process, such as systemd: notifications, watchdog and inherited sockets.

Its protocols are datagrams to a socket and descriptors from number 3 on, announced in the environment: sd_notify(3)
and sd_listen_fds(3). Without a service manager all methods do nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from flyball.errors import SettingsError

log = logging.getLogger(__name__)

# The first inherited descriptor.
FIRST_DESCRIPTOR = 3

# Number of notifications per watchdog interval; systemd recommends two.
BEATS = 2


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The settings that a service manager announced to this process."""

    # Its notification socket: a path, or a name in the abstract namespace, starting with @. Empty if missing.
    notify_address: str = ""
    # Timeout of notifications after which it restarts the process; 0 if disabled.
    watchdog_s: float = 0.0
    # Listening sockets, by the name of the listener that uses them.
    sockets: Mapping[str, socket.socket] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Read the settings announced to the process `pid`. Raises SettingsError."""
        return cls(
            environment.get("NOTIFY_SOCKET", ""),
            _watchdog_s(environment) if environment.get("WATCHDOG_PID", str(pid)) == str(pid) else 0.0,
            _inherited(environment) if environment.get("LISTEN_PID") == str(pid) else {},
        )

    def notify(self, state: str) -> None:
        """Send a notification, such as READY=1, without waiting for the service manager."""
        if not self.notify_address:
            return
        address = self.notify_address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            ) as sender:
                sender.sendto(state.encode(), address)
        except OSError as error:
            log.warning("cannot notify the service manager: %s", error.strerror)

    async def beat(self) -> None:
        """Notify the watchdog while the event loop runs."""
        while self.watchdog_s:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / BEATS)

    def inherited(self, name: str) -> socket.socket | None:
        """Return a duplicate of a listener's socket, or None. A node that rejoins its domain needs a new one."""
        found = self.sockets.get(name)
        return None if found is None else found.dup()

    def check_names(self, names: set[str]) -> None:
        """Raise SettingsError if a socket was inherited for a missing listener: its peers would wait forever."""
        for name in sorted(self.sockets.keys() - names):
            raise SettingsError(
                "LISTEN_FDNAMES",
                f"the service manager passed a socket named {name!r}, but the node has no such listener; set"
                f" FileDescriptorName= of the socket unit to one of: {', '.join(sorted(names))}",
            )


NO_MANAGER = ServiceManager()


def _watchdog_s(environment: Mapping[str, str]) -> float:
    text = environment.get("WATCHDOG_USEC", "0")
    if not text.isdecimal():
        raise SettingsError("WATCHDOG_USEC", f"{text!r} is not a valid interval: use a number of microseconds")
    return int(text) / 1e6


def _inherited(environment: Mapping[str, str]) -> dict[str, socket.socket]:
    text = environment.get("LISTEN_FDS", "0")
    if not text.isdecimal():
        raise SettingsError("LISTEN_FDS", f"{text!r} is not valid: use a number of sockets")
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, socket.socket] = {}
    for number in range(int(text)):
        name = names[number] if number < len(names) else ""
        try:
            inherited = socket.socket(fileno=FIRST_DESCRIPTOR + number)
        except OSError as error:
            raise SettingsError("LISTEN_FDS", f"descriptor {FIRST_DESCRIPTOR + number}: {error.strerror}") from error
        if name in found:
            raise SettingsError("LISTEN_FDNAMES", f"two sockets are named {name!r}: a listener has one")
        found[name] = inherited
        # Not inherited by child processes: embedded PostgreSQL would keep the port open.
        os.set_inheritable(inherited.fileno(), False)
        inherited.setblocking(False)
    return found
