"""Health checks of RabbitMQ's API: 200 if the check passes, otherwise 503 with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from starlette.responses import Response

from flyball.broker.management import inspection
from flyball.broker.management.api import nodes
from flyball.broker.management.api.answers import Refused, answer
from flyball.broker.management.api.context import Call, Routes
from flyball.broker.management.api.direct_client import CHANNEL, channel
from flyball.broker.wire import amqp
from flyball.errors import SettingsError

TEST_QUEUE = "aliveness-test"
TEST_BODY = b"test_message"

# Aliases that tools use for listeners.
PROTOCOLS = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl", "amqp091/ssl": "amqp/ssl"}

UNITS_DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}


routes = Routes()


def _fine(**more: Any) -> Response:
    return answer({"status": "ok", **more})


def _failed(reason: str, **more: Any) -> Response:
    return answer({"status": "failed", "reason": reason, **more}, 503)


@routes.get("/aliveness-test/{vhost}")
async def test_aliveness(call: Call) -> Response:
    """Publish a message to a queue of a vhost and get it back."""
    async with channel(call, call.vhost) as inside:
        declare = amqp.QueueDeclare(CHANNEL, TEST_QUEUE, False, False, False, False, False, {})
        await inside.call(declare, amqp.QueueDeclareOk)
        await inside.publish("", TEST_QUEUE, amqp.NO_PROPERTIES, TEST_BODY)
        found = await inside.get(TEST_QUEUE, no_ack=True)
    return _fine() if found is not None else _failed(f"no message received from queue '{TEST_QUEUE}'")


@routes.get("/health/checks/alarms")
async def check_alarms(call: Call) -> Response:
    """Check that no node of the domain has an alarm."""
    return _alarms(await call.context.domain_nodes.ask_all("node"), "There are alarms in effect in the cluster")


@routes.get("/healthchecks/node")
@routes.get("/health/checks/local-alarms")
async def check_local_alarms(call: Call) -> Response:
    """Check that this node has no alarm."""
    here = {call.node.hub.peering.name: {"alarms": inspection.alarms(call.node)}}
    return _alarms(here, "There are alarms in effect on the node")


def _alarms(reported: Mapping[str, Mapping[str, Any]], reason: str) -> Response:
    found = [{"node": name, "resource": alarm} for name, facts in reported.items() for alarm in facts["alarms"]]
    return _failed(reason, alarms=found) if found else _fine()


@routes.get("/health/checks/port-listener/{port}")
async def check_port(call: Call) -> Response:
    """Check that this node listens on a port."""
    text = call.part("port")
    if not text.isdecimal() or len(text) > 5:
        raise Refused(400, f"invalid port {text!r}: use a number")
    port, ports = int(text), sorted(address.port for address in call.node.addresses.values())
    return _fine(port=port) if port in ports else _failed("No active listener", missing=port, ports=ports)


@routes.get("/health/checks/protocol-listener/{protocol}")
async def check_protocol(call: Call) -> Response:
    """Check that this node listens for a protocol: amqp091, amqp091/ssl, http, telesto, thorbang."""
    protocol = PROTOCOLS.get(call.part("protocol"), call.part("protocol"))
    known = [nodes.PROTOCOLS.get(name, name) for name in call.node.addresses]
    if protocol in known:
        return _fine(protocol=protocol)
    return _failed("No active listener", missing=protocol, protocols=known)


@routes.get("/health/checks/virtual-hosts")
async def check_vhosts(call: Call) -> Response:
    """Always passes: all vhosts are served."""
    return _fine()


@routes.get("/health/checks/node-is-quorum-critical")
@routes.get("/health/checks/node-is-mirror-sync-critical")
async def check_critical(call: Call) -> Response:
    """Always passes: there are no mirrors, and the store is durable."""
    return _fine() if call.node.membership.others else _fine(reason="single node cluster")


@routes.get("/health/checks/certificate-expiration/{within}/{unit}")
async def check_certificates(call: Call) -> Response:
    """Check that the TLS certificate stays valid for this many days, weeks, months or years."""
    within, unit = call.part("within"), call.part("unit")
    if unit not in UNITS_DAYS:
        raise Refused(400, f"Time unit not recognised: {unit}; use {', '.join(UNITS_DAYS)}")
    if not within.isdecimal() or len(within) > 4:
        raise Refused(400, f"Invalid expiration period: {within!r}; use a number up to 9999")
    settings = call.node.settings
    if settings.amqps is None or settings.tls_cert is None:
        return _fine()
    end = valid_until(settings.tls_cert)
    if end - datetime.now(UTC) > timedelta(days=int(within) * UNITS_DAYS[unit]):
        return _fine()
    address = call.node.addresses["amqps"]
    expired = {
        "node": call.node.hub.peering.name,
        "protocol": "amqp/ssl",
        "interface": address.host,
        "port": address.port,
        "cert_expires_on": [f"{end:%Y-%m-%d %H:%M:%S}"],
    }
    return _failed("Certificates expiring", expired=[expired])


def valid_until(path: Path) -> datetime:
    """Return the expiry of the first certificate in a PEM file. Raises SettingsError if there is none."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError) as error:
        raise SettingsError("--tls-cert", f"{path} has no readable certificate: {error}") from error
