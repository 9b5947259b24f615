"""Detects that a database was rewound: a lagging replica was promoted, or a backup restored.

Messages confirmed after that state are lost, and ids reserved after it would be assigned again. A node must not write
from its memory of the lost state: it rejoins with the state of the database.
"""

from __future__ import annotations

import logging

import asyncpg

from flyball.broker.store.postgres import statements
from flyball.errors import StoreRewound, StoreUnavailable

log = logging.getLogger(__name__)


class History:
    """The timeline of the database seen by this epoch of the node, and its durable position."""

    def __init__(self) -> None:
        self._identity: tuple[object, ...] | None = None
        self._flushed = 0
        self._rewound: StoreRewound | None = None
        # End of this node's last reservation in this epoch, by counter.
        self.reserved: dict[str, int] = {}

    @property
    def is_rewound(self) -> bool:
        return self._rewound is not None

    async def check(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Check the database of a new session, before its first use.

        Raises StoreRewound, from then on for every session, if it is another database or an earlier state of it;
        StoreUnavailable for a standby, which may lag.
        """
        if self._rewound is not None:
            raise self._rewound
        row = await connection.fetchrow(statements.HISTORY)
        assert row is not None
        *identity, is_standby, flushed = row
        if is_standby:
            raise StoreUnavailable(
                "PostgreSQL is a standby: promote it, or list all servers in --store with"
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
            "%s; messages confirmed and not replicated by then are lost unless a node has them in memory%s; set"
            " synchronous_standby_names to prevent this",
            self._rewound,
            f", reservations of ids are lost ({lost})" if lost else "",
        )
        raise self._rewound

    async def note(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Record the durable position: the database must not return to an earlier one.

        Raises StoreRewound if another session detected it.
        """
        if self._rewound is not None:
            raise self._rewound
        self._flushed = max(self._flushed, await connection.fetchval(statements.FLUSHED))

    def rewind(self, error: StoreRewound) -> None:
        """Record that stored data reveals a rewound database: every session fails from now on."""
        if self._rewound is None:
            log.error("%s", error)
            self._rewound = error

    async def _pass_numbers(self, connection: asyncpg.Connection[asyncpg.Record]) -> str:
        """Advance counters past all reservations, so that no number is reused; return the advanced ones."""
        lost = []
        for counter, end in self.reserved.items():
            if await connection.execute(statements.PASS_NUMBER, counter, end - 1) == "UPDATE 1":
                lost.append(counter)
        return ", ".join(lost)
