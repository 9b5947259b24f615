"""A node whose external PostgreSQL is taken away in every way an operator can: it waits, says why, and serves on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Self
from urllib.parse import quote

import asyncpg
import pytest
import uvloop
from pika import spec

from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.nodes import ANSWER_LIMIT_S, ServeProcess, StartFailed

PASSWORD = "p4ss-of-the-role"
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'flyball'"


class Database:
    """A PostgreSQL with a role that needs its password, and a database that an administrator may break."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server = EmbeddedPostgres(data_dir)

    def start(self) -> None:
        uvloop.run(self._server.start())

    def stop(self) -> None:
        uvloop.run(self._server.stop())

    def make(self) -> None:
        rules = self._data_dir / "postgresql" / "pg_hba.conf"
        rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        self.execute("SELECT pg_reload_conf()", f"CREATE ROLE flyball LOGIN PASSWORD '{PASSWORD}'")
        self.make_database()

    def make_database(self) -> None:
        self.execute(
            "DROP DATABASE IF EXISTS app WITH (FORCE)",
            "CREATE DATABASE app",
            "GRANT CREATE ON DATABASE app TO flyball",
        )

    @property
    def url(self) -> str:
        host = quote(str(self._data_dir / "run"), safe="")
        return f"postgresql://flyball:{PASSWORD}@/app?host={host}"

    @contextmanager
    def shutting_down(self) -> Iterator[None]:
        """Begin a shutdown that waits for a session: meanwhile others are refused."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            session = runner.run(asyncpg.connect(self._server.dsn))
            assert self._server.pid is not None
            os.kill(self._server.pid, signal.SIGTERM)
            try:
                yield
            finally:
                runner.run(session.close())

    def execute(self, *statements: str, database: str = "postgres") -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self._server.dsn, database=database)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        uvloop.run(run())

    def rename(self, name: str, new_name: str) -> None:
        """Rename a database that a node connects to all the time: only one without sessions can be."""
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        while True:
            self.execute(END_SESSIONS)
            try:
                self.execute(f"ALTER DATABASE {name} RENAME TO {new_name}")
                break
            except asyncpg.ObjectInUseError:
                continue
        self.execute(f"ALTER DATABASE {new_name} ALLOW_CONNECTIONS true")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    found = Database(tmp_path_factory.mktemp("outages"))
    found.start()
    found.make()
    yield found
    found.stop()


@pytest.fixture
def database(server: Database) -> Database:
    server.make_database()
    return server


Break = Callable[[Database], None]


def sql(*statements: str, database: str = "postgres") -> Break:
    return lambda found: found.execute(*statements, database=database)


OUTAGES: dict[str, tuple[Break, str, Break]] = {
    "password changed": (
        sql("ALTER ROLE flyball PASSWORD 'another'", END_SESSIONS),
        "password authentication failed",
        sql(f"ALTER ROLE flyball PASSWORD '{PASSWORD}'"),
    ),
    "role may not log in": (
        sql("ALTER ROLE flyball NOLOGIN", END_SESSIONS),
        "is not permitted to log in",
        sql("ALTER ROLE flyball LOGIN"),
    ),
    "database renamed": (
        lambda found: found.rename("app", "renamed"),
        'database "app" does not exist',
        lambda found: found.rename("renamed", "app"),
    ),
    "read-only": (
        sql("ALTER DATABASE app SET default_transaction_read_only = on", END_SESSIONS),
        "read-only transaction",
        sql("ALTER DATABASE app RESET default_transaction_read_only", END_SESSIONS),
    ),
    "no right to connect": (
        sql("REVOKE CONNECT ON DATABASE app FROM PUBLIC", END_SESSIONS),
        'permission denied for database "app"',
        sql("GRANT CONNECT ON DATABASE app TO PUBLIC"),
    ),
    "no right to write": (
        sql("REVOKE INSERT ON flyball.messages FROM flyball", database="app"),
        "permission denied for table messages",
        sql("GRANT INSERT ON flyball.messages TO flyball", database="app"),
    ),
    "too many connections": (
        sql("ALTER ROLE flyball CONNECTION LIMIT 0", END_SESSIONS),
        "too many connections",
        sql("ALTER ROLE flyball CONNECTION LIMIT -1"),
    ),
    "table renamed": (
        sql("ALTER TABLE flyball.messages RENAME TO hidden", database="app"),
        'relation "messages" does not exist',
        sql("ALTER TABLE flyball.hidden RENAME TO messages", database="app"),
    ),
    "stopped": (Database.stop, "no such file or directory", Database.start),
}


def test_node_survives_every_outage_says_why_and_serves_on(database: Database, tmp_path: Path) -> None:
    with ExitStack() as stack, ServeProcess(tmp_path, store=database.url, http="127.0.0.1:0") as node:
        publisher = stack.enter_context(Publisher(node))
        expected: list[str] = []
        for outage, (break_it, reason, heal) in OUTAGES.items():
            publisher.publish_confirmed(f"before {outage}")
            break_it(database)
            try:
                publisher.publish(f"during {outage}")
                assert PASSWORD not in wait_for_alarm(node, reason)
            finally:
                heal(database)
            publisher.wait_for_confirms()
            wait_for_no_alarm(node)
            expected += [f"before {outage}", f"during {outage}"]
        code, complaints = node.stop()
        assert code == 0
        assert PASSWORD not in complaints
        assert "Traceback" not in complaints
        for _, reason, _ in OUTAGES.values():
            # Each part of the node says it once, however often it retried.
            lines = [line.partition(" ")[2].partition(" ")[2] for line in complaints.splitlines() if reason in line]
            assert lines, reason
            assert len(lines) == len(set(lines)), complaints
        node.start()
        assert stack.enter_context(Publisher(node)).drain() == expected


def test_ended_sessions_are_replaced_without_anybody_noticing(database: Database, tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store=database.url) as node, Publisher(node) as publisher:
        for number in range(5):
            publisher.publish_confirmed(str(number))
            database.execute(END_SESSIONS)
        publisher.publish_confirmed("last")
        assert publisher.drain() == ["0", "1", "2", "3", "4", "last"]


@pytest.mark.parametrize(
    ("break_it", "problem", "heal"),
    [
        OUTAGES["password changed"],
        (
            sql("REVOKE CREATE ON DATABASE app FROM flyball"),
            "permission denied for database app (42501); grant this role",
            sql("GRANT CREATE ON DATABASE app TO flyball"),
        ),
    ],
)
def test_node_that_cannot_start_says_in_one_line_what_to_do(
    break_it: Break, problem: str, heal: Break, database: Database, tmp_path: Path
) -> None:
    break_it(database)
    try:
        with pytest.raises(StartFailed) as failed:
            ServeProcess(tmp_path, store=database.url).start()
    finally:
        heal(database)
    assert failed.value.code == 1
    assert failed.value.complaints.count("\n") == 1, failed.value.complaints
    assert problem in failed.value.complaints
    assert PASSWORD not in failed.value.complaints


def test_node_waits_for_a_server_that_restarts(server: Database, tmp_path: Path) -> None:
    log_file = tmp_path / "node.log"
    with ExitStack() as stack:
        with server.shutting_down():
            node = ServeProcess(tmp_path / "data", store=server.url, log_file=log_file)
            starting = Thread(target=lambda: stack.enter_context(node))
            starting.start()
            deadline = time.monotonic() + ANSWER_LIMIT_S
            while not log_file.exists() or "waiting for the store" not in log_file.read_text():
                assert starting.is_alive()
                assert time.monotonic() < deadline
        server.stop()
        server.start()
        starting.join()
        assert "the database system is shutting down (57P03)" in log_file.read_text()
        stack.enter_context(Publisher(node)).publish_confirmed("kept")


def test_second_node_of_a_name_is_refused_with_exit_code_4(database: Database, tmp_path: Path) -> None:
    second = ServeProcess(tmp_path / "b", store=database.url, name="same")
    with ServeProcess(tmp_path / "a", store=database.url, name="same"), pytest.raises(StartFailed) as failed:
        second.start()
    assert failed.value.code == 4
    assert failed.value.complaints.count("\n") == 1, failed.value.complaints
    assert "stop it, or choose another --name" in failed.value.complaints


class Publisher:
    """Publishes persistent messages with confirms to one durable queue."""

    def __init__(self, node: ServeProcess) -> None:
        self._peer = Peer(*node.address("amqp")).open()
        self._peer.ask(spec.Queue.Declare(queue="kept", durable=True), spec.Queue.DeclareOk)
        self._peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        self._published = self._confirmed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.__exit__(None, None, None)

    def publish(self, body: str) -> None:
        self._published += 1
        self._peer.publish(body.encode(), routing_key="kept", properties=spec.BasicProperties(delivery_mode=2))

    def publish_confirmed(self, *bodies: str) -> None:
        for body in bodies:
            self.publish(body)
        self.wait_for_confirms()

    def wait_for_confirms(self) -> None:
        while self._confirmed < self._published:
            ack = self._peer.expect(spec.Basic.Ack)
            # Confirms of one queue come in the order of the messages.
            assert ack.delivery_tag > self._confirmed
            self._confirmed = ack.delivery_tag

    def drain(self) -> list[str]:
        found: list[str] = []
        while True:
            self._peer.send(spec.Basic.Get(queue="kept", no_ack=True))
            content = self._peer.try_content(spec.Basic.GetOk, spec.Basic.GetEmpty)
            if content is None:
                return found
            found.append(content.body.decode())


def ask_health(node: ServeProcess) -> tuple[int, str]:
    host, port = node.address("http")
    request = urllib.request.Request(f"http://{host}:{port}/api/health/checks/local-alarms")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for_alarm(node: ServeProcess, reason: str) -> str:
    told = ""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while time.monotonic() < deadline:
        status, told = ask_health(node)
        texts = [str(alarm["resource"]) for alarm in json.loads(told).get("alarms", [])]
        if status == 503 and any(reason in text for text in texts):
            return told
    raise AssertionError(f"no alarm says {reason!r}: {told}")


def wait_for_no_alarm(node: ServeProcess) -> None:
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while (answer := ask_health(node))[0] != 200:
        assert time.monotonic() < deadline, answer
