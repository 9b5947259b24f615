"""A real sshd on the loopback address with keys and configuration of its own; the system's are not touched."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import flyball

SSHD = "/usr/sbin/sshd"
TRIES = 5


@contextmanager
def sshd(folder: Path) -> Iterator[str]:
    """Run it; give out the address of a host for the lab, whose Python has this Flyball."""
    folder.mkdir(parents=True, exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder / 'user'}\nIdentitiesOnly yes\nUserKnownHostsFile {folder / 'known_hosts'}\n"
    )
    python = folder / "python"
    # A login has another environment than this process.
    source = Path(flyball.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{source}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    if os.geteuid() == 0:
        # Where sshd of root separates its privileges; the system's service makes it too.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server, port = _listening(folder)
    try:
        host_key = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        options = {"python": str(python), "folder": str(folder), "config": str(folder / "ssh_config")}
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}?{urlencode(options)}"
    finally:
        server.terminate()
        server.communicate()


def _listening(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start it on a free port; on another one, if that has just been taken."""
    said = ""
    for _ in range(TRIES):
        port = _free_port()
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n"
        )
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert server.stderr is not None
        for line in server.stderr:
            said += line
            if line.startswith("Server listening"):
                return server, port
        server.communicate()
    raise RuntimeError(f"sshd does not start: {said}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
