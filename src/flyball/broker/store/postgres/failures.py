"""Translates PostgreSQL's errors into StoreErrors, with the next step for an operator, by SQLSTATE."""

from __future__ import annotations

import re

import asyncpg

from flyball.errors import StoreError, StoreStarting, StoreUnavailable

# The SQLSTATE classes that the contents of a batch can cause: a retry fails again, other batches may succeed. They
# are permanent refusals: StoreError. All others concern the connection, the server, privileges or resources, and may
# be temporary, or be fixed by an operator while the node retries: StoreUnavailable. Unlisted classes are treated as
# the latter, since waiting loses no confirmed message.
REFUSED_CLASSES = {
    "21": "cardinality violation: one statement names a row twice",
    "22": "data exception: a value does not fit its column",
    "23": "integrity constraint violation: a row contradicts another one",
    "44": "WITH CHECK OPTION violation",
    "54": "program limit exceeded: a row or an index entry is too large",
}

# PostgreSQL also reports a lack of transaction ids, which lasts until it is vacuumed, as class 54. Its texts may be
# translated; its function names are not.
_OUT_OF_TRANSACTION_IDS = ("GetNewTransactionId", "GetNewMultiXactId")

# The next step for an operator, by SQLSTATE or its class. The node retries in all of these cases.
NEXT_STEPS = {
    "08": "check that PostgreSQL runs and is reachable",
    "25006": (
        "it is read-only: promote it, end its read-only mode (default_transaction_read_only), or list all servers in"
        " --store with target_session_attrs=read-write"
    ),
    "28": "check the user in --store and the server's pg_hba.conf",
    "28P01": "check the password in --store, or reset the role's password",
    "3D": "check the name of the database in --store, or create it",
    "3F": "the schema is missing: restore it, or grant this role access to it",
    "42501": "grant this role CONNECT and CREATE on the database and the privileges on Flyball's schema",
    "42": "Flyball's tables were changed by another program: restore them from a backup",
    "53": "the server is out of resources: see its log",
    "53100": "free disk space on the PostgreSQL server",
    "53200": "give the PostgreSQL server more memory",
    "53300": "end other sessions, or raise max_connections of the PostgreSQL server",
    "54": "vacuum the database: the server is out of transaction ids",
    "55000": "check that the database accepts connections",
    "57014": "Flyball's statements are being cancelled: see the server's log",
    "57P01": "it was shut down or terminated this session",
    "57P03": "it is starting, stopping or recovering",
    "58": "the server cannot use its files: see its log",
    "XX": "see the server's log",
    "XX001": "its data is corrupted: see its log, and restore a backup",
    "XX002": "an index is corrupted: REINDEX it, see the server's log",
}

# The SQLSTATE of a server that is starting, stopping or recovering.
CANNOT_CONNECT_NOW = "57P03"


def translated(error: BaseException, *, is_connecting: bool = False) -> StoreError | None:
    """Translate an error of asyncpg; return None if the database did not cause it.

    While a session connects, no error depends on the contents of a batch: every one may be temporary.
    """
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL does not respond")
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(error, is_connecting)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailable(
            f"PostgreSQL is not available: {_one_line(error)}; no server in --store accepts writes: promote one"
        )
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreUnavailable(f"PostgreSQL cannot be connected to: {_one_line(error)}; correct the URL in --store")
    if isinstance(error, asyncpg.InternalClientError):
        # asyncpg's internal state after its session was terminated: the text is meaningless to an operator.
        return StoreUnavailable("PostgreSQL is not available: the connection was lost")
    if isinstance(error, OSError):
        # asyncpg and asyncio prefix the text with the error number: "[Errno 111] Connection refused".
        problem = re.sub(r"\[errno -?\d+\] ?", "", _one_line(error), flags=re.IGNORECASE)
        # Only the first letter: the text may name a socket or a host.
        problem = problem[:1].lower() + problem[1:]
        return StoreUnavailable(f"PostgreSQL is not available: {problem}; {NEXT_STEPS['08']}")
    if isinstance(error, asyncpg.InterfaceError):
        return StoreUnavailable(f"PostgreSQL is not available: {_one_line(error)}")
    if is_connecting and isinstance(error, ValueError):
        return StoreUnavailable(f"PostgreSQL cannot be connected to: {_one_line(error)}; correct the URL in --store")
    return None


def is_refusal(error: asyncpg.PostgresError) -> bool:
    """Whether the contents of a batch cause the error: a retry cannot succeed."""
    if getattr(error, "server_source_function", None) in _OUT_OF_TRANSACTION_IDS:
        return False
    return (error.sqlstate or "08")[:2] in REFUSED_CLASSES


def _of_server(error: asyncpg.PostgresError, is_connecting: bool) -> StoreError:
    if not is_connecting and is_refusal(error):
        return StoreError(f"PostgreSQL refuses: {_one_line(error)}")
    state = error.sqlstate or "08"
    step = NEXT_STEPS.get(state) or NEXT_STEPS.get(state[:2])
    text = f"PostgreSQL is not available: {_one_line(error)} ({state})"
    kind = StoreStarting if state == CANNOT_CONNECT_NOW else StoreUnavailable
    return kind(f"{text}; {step}" if step else text)


def _one_line(error: BaseException) -> str:
    """Return the first line of the server's message, without hints and details: a log entry is one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
