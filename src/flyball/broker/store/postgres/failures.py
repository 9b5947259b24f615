"""What an error of PostgreSQL means to a node, and what an operator can do about it. One table, by SQLSTATE."""

from __future__ import annotations

import asyncpg

from flyball.errors import StoreError, StoreStarting, StoreUnavailable

# The classes of SQLSTATE that the contents of a batch can cause: the same batch fails again, another may succeed.
# They are permanent refusals: StoreError. Everything else is about the connection, the server, privileges or
# resources and may pass, or be put right by an operator while the node retries: StoreUnavailable. A class that is not
# listed is of that second kind, since waiting loses nothing that was confirmed.
REFUSED_CLASSES = {
    "21": "cardinality violation: one statement names a row twice",
    "22": "data exception: a value does not fit its column",
    "23": "integrity constraint violation: a row contradicts another one",
    "44": "WITH CHECK OPTION violation",
    "54": "program limit exceeded: a row or an index entry is too large",
}

# PostgreSQL reports that it must be vacuumed before it takes more transactions as class 54, too. Its texts may be
# translated; the names of its functions are not.
_OUT_OF_TRANSACTION_IDS = ("GetNewTransactionId", "GetNewMultiXactId")

# The next step for an operator, by SQLSTATE or its class. The node retries by itself in all of these cases.
NEXT_STEPS = {
    "08": "check that PostgreSQL runs and can be reached",
    "25006": (
        "it is read-only: promote it, end its read-only mode (default_transaction_read_only), or name all servers in"
        " --store with target_session_attrs=read-write"
    ),
    "28": "check the user in --store and the server's pg_hba.conf",
    "28P01": "check the password in --store, or set the role's password back",
    "3D": "check the name of the database in --store, or create it",
    "3F": "the schema is gone: restore it, or grant this role access to it",
    "42501": "grant this role CONNECT and CREATE on the database and the rights on Flyball's schema",
    "42": "Flyball's tables are not as it made them: restore them from a backup",
    "53": "the server is out of resources: see its log",
    "53100": "free disk space on the PostgreSQL server",
    "53200": "give the PostgreSQL server more memory",
    "53300": "end other sessions, or raise max_connections of the PostgreSQL server",
    "54": "vacuum the database: the server is out of transaction ids",
    "55000": "check that the database accepts connections",
    "57014": "something cancels Flyball's statements: see the server's log",
    "57P01": "it was shut down or ended this session",
    "57P03": "it starts, stops or recovers",
    "58": "the server cannot use its files: see its log",
    "XX": "see the server's log",
    "XX001": "its data is corrupted: see its log, and restore a backup",
    "XX002": "an index is corrupted: REINDEX it, see the server's log",
}

# What a server answers that is starting, stopping or recovering.
CANNOT_CONNECT_NOW = "57P03"


def translated(error: BaseException, *, is_connecting: bool = False) -> StoreError | None:
    """Return our error for what asyncpg reported. None for what is not the database's doing.

    While a session connects nothing depends on the contents of a batch: every error may pass.
    """
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL does not answer")
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(error, is_connecting)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailable(
            f"PostgreSQL is not available: {_one_line(error)}; no server in --store takes writes: promote one"
        )
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreUnavailable(f"PostgreSQL cannot be connected to: {_one_line(error)}; correct the URL in --store")
    if isinstance(error, asyncpg.InternalClientError):
        # asyncpg's own state after a session was ended under it: its words say nothing to an operator.
        return StoreUnavailable("PostgreSQL is not available: the connection was lost")
    if isinstance(error, asyncpg.InterfaceError | OSError):
        return StoreUnavailable(f"PostgreSQL is not available: {_one_line(error)}")
    if is_connecting and isinstance(error, ValueError):
        return StoreUnavailable(f"PostgreSQL cannot be connected to: {_one_line(error)}; correct the URL in --store")
    return None


def is_refusal(error: asyncpg.PostgresError) -> bool:
    """Tell whether the contents of a batch are the cause, so that the same batch never succeeds."""
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
    """Return the first line of what the server says: hints and details follow it, and a log entry is one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
