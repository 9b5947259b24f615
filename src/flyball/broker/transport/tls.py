"""TLS contexts for clients and between nodes, with errors that name the missing or invalid file."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from flyball.broker.settings import ServeSettings
from flyball.errors import SettingsError


@dataclass(frozen=True, slots=True)
class LinkTls:
    """The contexts of both ends of a link. Each presents its certificate and verifies the other's."""

    listener: ssl.SSLContext
    caller: ssl.SSLContext


def client_tls(settings: ServeSettings) -> ssl.SSLContext:
    """Return the context of TLS listeners. Raises SettingsError with the missing or invalid file."""
    if settings.tls_cert is None:
        raise SettingsError("--tls-cert", "is missing; --amqps needs a certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_certificate(context, "--tls", settings.tls_cert, settings.tls_key)
    if settings.tls_ca is not None:
        _read_certificates(context, "--tls-ca", settings.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def link_tls(settings: ServeSettings) -> LinkTls | None:
    """Return the contexts of links, or None if they do not use TLS. Raises SettingsError."""
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
        # Addresses of nodes change, and their CA signs only certificates of nodes: its signature is sufficient.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        _load_certificate(context, "--link-tls", cert, key)
        _read_certificates(context, "--link-tls-ca", ca)
    return LinkTls(*contexts)


def _load_certificate(context: ssl.SSLContext, flag: str, cert: Path, key: Path | None) -> None:
    # Checked separately: load_cert_chain raises the same error for an invalid certificate and an invalid key.
    _read_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), f"{flag}-cert", cert)
    try:
        # Without a password OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        if key is None:
            raise SettingsError(
                f"{flag}-key", f"is missing, and {cert} has no matching key: {_problem(error)}"
            ) from error
        raise SettingsError(f"{flag}-key", f"{key} cannot be used with {cert}: {_problem(error)}") from error


def _read_certificates(context: ssl.SSLContext, flag: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise SettingsError(flag, f"{path} cannot be used: {_problem(error)}; use a PEM file") from error


def _problem(error: OSError) -> str:
    """Return the text of an error without its number, OpenSSL's code and the position in C."""
    text = error.strerror or str(error)
    return re.sub(r"^\[[^\]]*\] |\s*\(_ssl\.c:\d+\)$", "", text).lower()
