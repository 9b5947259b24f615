"""Notices that a database has gone back in time: a replica that lagged behind was promoted, or a backup restored.

What was confirmed after that point is gone, and numbers that were given out may be given out again. A node must not
write there with what it remembers of the lost past: it joins again, with what the database knows.
"""

from __future__ import annotations

import logging

import asyncpg

from flyball.broker.store.postgres import statements
from flyball.errors import StoreRewound, StoreUnavailable

log = logging.getLogger(__name__)


class History:
    """The history of the database that this life of the node has seen, and how far."""

    def __init__(self) -> None:
        self._identity: tuple[object, ...] | None = None
        self._flushed = 0
        self._rewound: StoreRewound | None = None
        # By counter: the number after the last one that this node has reserved, in this life.
        self.reserved: dict[str, int] = {}

    @property
    def is_rewound(self) -> bool:
        return self._rewound is not None

    async def check(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Look at the database of a new session, before anything else is done there.

        Raises StoreRewound, from then on for every session, when it is not the one that was seen before or an
        earlier state of it; StoreUnavailable for a standby, which would answer with the past.
        """
        if self._rewound is not None:
            raise self._rewound
        row = await connection.fetchrow(statements.HISTORY)
        assert row is not None
        *identity, is_standby, flushed = row
        if is_standby:
            raise StoreUnavailable(
                "PostgreSQL is a standby: promote it, or name all servers in --store with"
                " target_session_attrs=read-write"
            )
        before, self._identity = self._identity, tuple(identity)
        if before is None or (before == self._identity and flushed >= self._flushed):
            self._flushed = flushed
            return
        lost = await self._pass_numbers(connection)
        self._rewound = StoreRewound(
            f"PostgreSQL continues from an earlier state (timeline {before[-1]}, then {self._identity[-1]}):"
            " a replica was promoted, or a backup restored"
        )
        log.error(
            "%s. What was confirmed and not replicated by then is lost where no node has it in memory%s; with"
            " synchronous_standby_names nothing is",
            self._rewound,
            f", and so are reservations of ids ({lost})" if lost else "",
        )
        raise self._rewound

    async def note(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Note how far the history has come that is durable: the database cannot be behind that later.

        Raises StoreRewound where another session has found out.
        """
        if self._rewound is not None:
            raise self._rewound
        self._flushed = max(self._flushed, await connection.fetchval(statements.FLUSHED))

    def rewind(self, error: StoreRewound) -> None:
        """Note that something stored shows that the database has gone back: every session has to hear it."""
        if self._rewound is None:
            log.error("%s", error)
            self._rewound = error

    async def _pass_numbers(self, connection: asyncpg.Connection[asyncpg.Record]) -> str:
        """See that no number is given out again; return which counters had gone back."""
        lost = []
        for counter, end in self.reserved.items():
            if await connection.execute(statements.PASS_NUMBER, counter, end - 1) == "UPDATE 1":
                lost.append(counter)
        return ", ".join(lost)
