"""Health checks answer 200 when all is well, and 503 with what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flyball.broker.management import inspection
from flyball.broker.management.part import console_part
from flyball.lab.rabbitmq import RabbitMq
from tests.broker.management.api.conftest import Api
from tests.nodes import RunningNode


def test_a_message_goes_through_a_queue(api: Api) -> None:
    assert api.get("/aliveness-test/%2F") == {"status": "ok"}
    assert api.get("/queues/%2F/aliveness-test")["messages"] == 0


def test_the_aliveness_test_needs_the_permissions_for_its_queue(api_of: Callable[..., Api]) -> None:
    found = api_of("unable", ["management"], {"/": ("", "", "")}).ask("/aliveness-test/%2F")
    assert found.status_code == 401
    assert "aliveness-test" in found.json()["reason"]


@pytest.mark.parametrize(
    "check",
    [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "protocol-listener/amqp091",
        "protocol-listener/telesto",
        "certificate-expiration/1/months",
    ],
)
def test_a_node_that_is_well_says_so(api: Api, check: str) -> None:
    assert api.get(f"/health/checks/{check}")["status"] == "ok"


@pytest.mark.parametrize(
    ("check", "status"),
    [
        ("alarms", 200),
        ("local-alarms", 200),
        ("virtual-hosts", 200),
        ("node-is-quorum-critical", 200),
        ("node-is-mirror-sync-critical", 200),
        ("protocol-listener/amqp091", 200),
        ("protocol-listener/amqp0.9.1", 200),
        ("protocol-listener/http", 200),
        ("protocol-listener/mqtt", 503),
        ("port-listener/1", 503),
        ("certificate-expiration/1/months", 200),
        ("certificate-expiration/1/eons", 400),
        ("certificate-expiration/x/days", 400),
    ],
)
def test_checks_answer_as_those_of_rabbitmq(api: Api, counting_rabbitmq: RabbitMq, check: str, status: int) -> None:
    theirs = Api(counting_rabbitmq.api_address)
    found, expected = api.ask(f"/health/checks/{check}"), theirs.ask(f"/health/checks/{check}")
    theirs.close()
    assert (found.status_code, expected.status_code) == (status, status), expected.text
    shared = {"status", "missing", "protocol", "reason"}
    if status != 400:
        assert {name: found.json().get(name) for name in shared} == {
            name: expected.json().get(name) for name in shared
        }, expected.text
        assert found.json().keys() == expected.json().keys()


@pytest.mark.parametrize("check", ["alarms", "virtual-hosts", "node-is-quorum-critical", "port-listener/1"])
def test_checks_of_rabbitmq_need_a_login(console_node: RunningNode, check: str) -> None:
    nobody = Api(console_node.address("http"), ("guest", "wrong"))
    assert nobody.ask(f"/health/checks/{check}").status_code == 401
    nobody.close()


def test_a_port_is_checked_for_a_listener(api: Api, console_node: RunningNode) -> None:
    port = console_node.address("amqp").port
    assert api.get(f"/health/checks/port-listener/{port}") == {"status": "ok", "port": port}
    answer = api.ask("/health/checks/port-listener/1")
    assert answer.status_code == 503
    assert answer.json()["status"] == "failed"
    assert answer.json()["missing"] == 1
    assert port in answer.json()["ports"]


def test_a_protocol_that_nobody_speaks_fails(api: Api) -> None:
    answer = api.ask("/health/checks/protocol-listener/mqtt")
    assert answer.status_code == 503
    assert (answer.json()["missing"], answer.json()["status"]) == ("mqtt", "failed")


@pytest.mark.parametrize(
    "check",
    [
        "port-listener/x",
        f"port-listener/{'9' * 5000}",
        "certificate-expiration/1/eons",
        "certificate-expiration/x/days",
    ],
)
def test_what_makes_no_sense_is_refused(api: Api, check: str) -> None:
    answer = api.ask(f"/health/checks/{check}")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


def test_alarms_fail_the_checks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "alarms", lambda *_: ["low on memory"])
    for check in ("alarms", "local-alarms"):
        answer = api.ask(f"/health/checks/{check}")
        assert answer.status_code == 503
        assert answer.json()["alarms"] == [{"node": "north", "resource": "low on memory"}]


def test_a_certificate_that_ends_soon_fails_its_check(
    tmp_path: Path, new_certificate: Callable[[int], tuple[Path, Path]]
) -> None:
    certificate, key = new_certificate(10)
    flags = {
        "store": "memory",
        "http": "127.0.0.1:0",
        "amqps": "127.0.0.1:0",
        "tls_cert": certificate,
        "tls_key": key,
    }
    with RunningNode(tmp_path / "data", parts=[console_part()], **flags) as node:
        api = Api(node.address("http"))
        assert api.get("/health/checks/certificate-expiration/1/weeks")["status"] == "ok"
        assert api.ask("/health/checks/certificate-expiration/9999/years").status_code == 503
        answer = api.ask("/health/checks/certificate-expiration/1/months")
        assert answer.status_code == 503
        assert answer.json()["expired"][0]["port"] == node.address("amqps").port
        api.close()
