"""The meaning of each class of SQLSTATE: a refusal of a batch's contents, or a store that is unavailable."""

from __future__ import annotations

import logging

import asyncpg
import pytest

from flyball.broker.store.postgres.failures import CANNOT_CONNECT_NOW, NEXT_STEPS, translated
from flyball.broker.store.postgres.session import STALE_S, Outages
from flyball.errors import StoreError, StoreStarting, StoreUnavailable

# Every class of Appendix A of PostgreSQL 18 that is an error, where possible with a state that a node can meet.
REFUSED = ["21000", "22003", "22021", "22P05", "23502", "23505", "44000", "54000", "54001"]
UNAVAILABLE = [
    *("03000", "08006", "08P01", "09000", "0A000", "0B000", "0F000", "0L000", "0P000", "0Z000", "10608", "20000"),
    *("24000", "25006", "25P02", "26000", "27000", "28000", "28P01", "2B000", "2D000", "2F000", "34000", "38000"),
    *("39000", "3B000", "3D000", "3F000", "40001", "40P01", "42501", "42P01", "42703", "53100", "53200", "53300"),
    *("55000", "55006", "55P03", "57014", "57P01", "57P03", "57P05", "58030", "72000", "F0000", "HV000", "P0001"),
    *("XX000", "XX001", "XX002"),
]


def server_error(state: str, text: str = "something is wrong") -> asyncpg.PostgresError:
    error = asyncpg.PostgresError.new({"S": "ERROR", "C": state, "M": text})
    assert isinstance(error, asyncpg.PostgresError)
    return error


@pytest.mark.parametrize("state", REFUSED)
def test_contents_of_a_batch_are_refused_for_good(state: str) -> None:
    found = translated(server_error(state))
    assert type(found) is StoreError
    assert str(found) == "PostgreSQL refuses: something is wrong"


@pytest.mark.parametrize("state", UNAVAILABLE)
def test_state_of_the_server_is_retried(state: str) -> None:
    found = translated(server_error(state))
    assert type(found) is (StoreStarting if state == CANNOT_CONNECT_NOW else StoreUnavailable)
    assert f"({state})" in str(found)


@pytest.mark.parametrize("state", REFUSED)
def test_nothing_is_refused_for_good_while_connecting(state: str) -> None:
    assert type(translated(server_error(state), is_connecting=True)) is StoreUnavailable


def test_class_that_nobody_knows_is_retried() -> None:
    assert type(translated(server_error("ZZ999"))) is StoreUnavailable


def test_exhausted_transaction_ids_are_no_fault_of_the_batch() -> None:
    error = server_error("54000", "Datenbank nimmt keine Befehle an")
    error.server_source_function = "GetNewTransactionId"
    found = translated(error)
    assert isinstance(found, StoreUnavailable)
    assert "vacuum" in str(found)


@pytest.mark.parametrize(
    ("state", "step"),
    [("28P01", "check the password in --store"), ("53100", "free disk space"), ("3D000", "--store")],
)
def test_error_says_what_to_do(state: str, step: str) -> None:
    assert step in str(translated(server_error(state)))


def test_next_steps_belong_to_states_that_are_retried() -> None:
    assert {state[:2] for state in NEXT_STEPS} <= {state[:2] for state in UNAVAILABLE} | {"54"}


def test_error_is_one_line() -> None:
    assert "\n" not in str(translated(server_error("28000", "no entry in pg_hba.conf\nno encryption")))


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_lost_connection_is_retried(error: Exception) -> None:
    assert type(translated(error)) is StoreUnavailable


def test_refused_connection_has_no_error_number_and_a_next_step() -> None:
    error = translated(
        ConnectionRefusedError(111, "[Errno 111] Connect call failed ('127.0.0.1', 1)"), is_connecting=True
    )
    assert "errno" not in str(error).lower()
    assert str(error).endswith(NEXT_STEPS["08"])


def test_missing_socket_keeps_the_case_of_its_path() -> None:
    error = translated(FileNotFoundError(2, "No such file or directory", "/run/DB/.s.PGSQL.5432"), is_connecting=True)
    assert "no such file or directory: '/run/DB/.s.PGSQL.5432'" in str(error)


def test_bug_of_ours_is_not_translated() -> None:
    assert translated(KeyError("id")) is None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock, caplog: pytest.LogCaptureFixture) -> Outages:
    caplog.set_level(logging.INFO)
    found = Outages(clock)
    found.is_serving = True
    return found


def test_reason_is_logged_once_however_often_sessions_retry(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    for session in ("writer", "reader") * 3:
        outages.failed(session, StoreUnavailable("wrong password"))
        outages.failed(session, StoreUnavailable("starting up"))
    assert [record.message for record in caplog.records] == ["wrong password; retrying", "starting up; retrying"]
    assert outages.reason == "starting up"


def test_outage_is_over_when_every_session_that_failed_works(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outages.failed("writer", StoreUnavailable("read-only"))
    outages.worked("reader")
    assert outages.reason == "read-only"
    clock.now = 4.0
    outages.worked("writer")
    assert outages.reason is None
    assert caplog.records[-1].message == "PostgreSQL is available again after_s=4.0"
    outages.failed("writer", StoreUnavailable("read-only"))
    assert caplog.records[-1].message == "read-only; retrying"


def test_session_that_is_not_used_again_does_not_prolong_an_outage(outages: Outages, clock: Clock) -> None:
    outages.failed("reader", StoreUnavailable("gone"))
    clock.now = STALE_S + 1
    outages.worked("writer")
    assert outages.reason is None


def test_failures_before_the_node_serves_are_left_to_whoever_starts_it(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    outages.is_serving = False
    outages.failed("writer", StoreUnavailable("gone"))
    assert outages.reason is None
    assert not caplog.records
