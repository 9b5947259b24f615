"""TLS, for clients and between nodes: makes contexts of files, and says which file is missing or wrong."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from flyball.broker.settings import ServeSettings
from flyball.errors import SettingsError


@dataclass(frozen=True, slots=True)
class LinkTls:
    """What the two ends of a link need. Each shows its certificate, and verifies that of the other."""

    listener: ssl.SSLContext
    caller: ssl.SSLContext


def client_tls(settings: ServeSettings) -> ssl.SSLContext:
    """Return what TLS listeners need. Raises SettingsError, which names the file that is missing or wrong."""
    if settings.tls_cert is None:
        raise SettingsError("--tls-cert", "is missing; --amqps needs a certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_certificate(context, "--tls", settings.tls_cert, settings.tls_key)
    if settings.tls_ca is not None:
        _read_certificates(context, "--tls-ca", settings.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def link_tls(settings: ServeSettings) -> LinkTls | None:
    """Return what links need, None if they go without TLS. Raises SettingsError."""
    cert, key, ca = settings.link_tls_cert, settings.link_tls_key, settings.link_tls_ca
    if cert is None and key is None and ca is None:
        return None
    if cert is None:
        raise SettingsError("--link-tls-cert", "is missing; links over TLS need a certificate for the node")
    if ca is None:
        raise SettingsError("--link-tls-ca", "is missing; nodes trust only what it has signed")
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nodes have addresses that change, and an authority of their own: who it has signed is a node of the domain.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        _load_certificate(context, "--link-tls", cert, key)
        _read_certificates(context, "--link-tls-ca", ca)
    return LinkTls(*contexts)


def _load_certificate(context: ssl.SSLContext, flag: str, cert: Path, key: Path | None) -> None:
    # What loads a certificate with its key does not tell which of them is wrong.
    _read_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), f"{flag}-cert", cert)
    try:
        # Without a password it would ask for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        if key is None:
            raise SettingsError(f"{flag}-key", f"is missing, and {cert} holds no key that fits: {error}") from error
        raise SettingsError(f"{flag}-key", f"{key} cannot be used with {cert}: {error}") from error


def _read_certificates(context: ssl.SSLContext, flag: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise SettingsError(flag, f"{path} cannot be used: {error}") from error
