"""Flow control: the credit of publishers, in bytes.

Without pressure a publisher receives credit on request, and no timer runs. Under pressure a controller computes a
rate
every 20 ms, and publishers share the bytes that it allows in turns: a publisher without credit waits with its next
message, and its connection is not read. Only messages need credit; other commands on the connection, such as acks,
are not delayed.

The credit law: within a sample, all publishers together get no more than the rate allows. Unused credit is revoked at
the next sample (`_revoke`), so it cannot be saved up for a burst. A message larger than the credit is accepted whole,
since it has been received already, and the excess is a debt deducted from the publisher's next shares.
Shares do not depend on the size of messages
(test_publishers_share_what_may_be_sent_whatever_the_size_of_their_messages), and neither kind of protocol starves the
other (test_amqp_and_other_protocols_do_not_starve_each_other).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from flyball.broker.core.broker import CONGESTED_BYTES, Broker
from flyball.broker.core.flow_controller import (
    JOURNAL_CERTIFICATE,
    JOURNAL_KI_PER_S,
    JOURNAL_KP,
    MAX_RATE,
    MEMORY_CERTIFICATE,
    MEMORY_KP,
    SAMPLE_S,
    Tank,
)
from flyball.broker.core.flow_samples import TankSamples
from flyball.broker.core.loops import Reading
from flyball.control.loop import Sample
from flyball.control.tuning import tuning_of

log = logging.getLogger("flyball.server")

# Minimum share: the overhead of granting less would exceed its use.
MIN_SHARE_BYTES = 2048

# Maximum debt of a publisher whose message exceeded its credit.
MAX_DEBT_BYTES = 256 * 1024

# Time without any credit after which publishers are notified (connection.blocked).
BLOCK_AFTER_S = 1.0

# The loops stop after this number of consecutive samples without pressure and without waiting publishers.
CALM_SAMPLES = 10

NO_STORE = "the store does not keep up"
NO_MEMORY = "low on memory"
NO_DISK = "low on disk"


class CreditedSession(Protocol):
    """A publishing connection."""

    credit: int

    def go_on(self) -> None:
        """Retry the message that waits for credit."""

    def block(self, reason: str) -> None:
        """Notify the peer that it cannot publish at present."""

    def unblock(self) -> None:
        """Notify the peer that it can publish again."""

    def crash(self, error: Exception) -> None:
        """Close the connection after an unexpected error."""


class Flow:
    """Grants credit to publishers."""

    def __init__(self, broker: Broker, memory_bytes: int) -> None:
        """`memory_bytes` is the setpoint of the ledger's level."""
        self._broker = broker
        self._journal = Tank(NO_STORE, CONGESTED_BYTES, JOURNAL_KP, JOURNAL_KI_PER_S)
        self._memory = Tank(NO_MEMORY, memory_bytes, MEMORY_KP)
        # Runs only under pressure.
        self._timer: asyncio.TimerHandle | None = None
        # Waiting publishers, in order of arrival.
        self._line: dict[CreditedSession, None] = {}
        # Publishers that may have credit left.
        self._holders: set[CreditedSession] = set()
        self._blocked: set[CreditedSession] = set()
        # The share of the publisher that is being served; 0 otherwise.
        self._share = 0
        self._is_serving_soon = False
        # Whether a publisher had to wait since the last sample.
        self._has_kept_waiting = False
        self._calm = 0
        # Time at which the rate became zero.
        self._still_since: float | None = None
        # Recorders of the samples of both loops; None if samples are not recorded.
        self._samples: tuple[TankSamples, TankSamples] | None = None

    def record_with(self, record: Callable[[Sample], None], commit_queue: str, memory: str) -> None:
        """Record the samples of the loops from now on, under these names."""
        self._samples = (
            TankSamples(
                commit_queue,
                self._journal,
                tuning_of(JOURNAL_CERTIFICATE.law, lowest=0.0, highest=MAX_RATE),
                record,
            ),
            TankSamples(
                memory, self._memory, tuning_of(MEMORY_CERTIFICATE.law, lowest=0.0, highest=MAX_RATE), record
            ),
        )

    # For sessions

    def grant(self, session: CreditedSession, wanted: int) -> bool:
        """Grant up to `wanted` bytes of credit to a connection without credit. False if it must wait for `go_on`.

        Under pressure a debt from an earlier message is deducted, and the credit expires at the next sample.
        """
        if self._timer is None:
            if not self._is_scarce():
                self._holders.add(session)
                session.credit = wanted
                return True
            self._begin()
        if self._share or (not self._line and self._room_bytes() > 0):
            share, self._share = self._share or self._fair_share(), 0
            session.credit = max(session.credit, -MAX_DEBT_BYTES) + min(wanted, share)
            if session.credit > 0:
                self._holders.add(session)
                return True
        self._line[session] = None
        self._has_kept_waiting = True
        if self._still_for(BLOCK_AFTER_S):
            self._block(session)
        self._serve_soon()
        return False

    def forget(self, session: CreditedSession) -> None:
        """Remove a closed connection."""
        self._line.pop(session, None)
        self._holders.discard(session)
        self._blocked.discard(session)

    # Reports

    def report(self) -> dict[str, Any]:
        """Return the state of the loops as plain values."""
        return {
            "under_pressure": self._timer is not None,
            "waiting_connections": len(self._line),
            "blocked_connections": len(self._blocked),
            "is_low_on_disk": self._broker.is_low_on_disk,
            "commit_queue": self._report_of(self._journal, self._broker.journal.pending_bytes),
            "memory": self._report_of(self._memory, self._broker.ledger.level_bytes),
        }

    def read_commit_queue(self) -> Reading:
        """Return the reading of the loop that controls the commit queue."""
        return self._reading_of(self._journal, self._broker.journal.pending_bytes)

    def read_memory(self) -> Reading:
        """Return the reading of the loop that controls the memory."""
        return self._reading_of(self._memory, self._broker.ledger.level_bytes)

    def _reading_of(self, tank: Tank, level_bytes: int) -> Reading:
        return Reading(tank.setpoint_bytes, level_bytes, None if self._timer is None else tank.rate_per_s)

    def _report_of(self, tank: Tank, level_bytes: int) -> dict[str, Any]:
        is_limited = self._timer is not None
        return {
            "setpoint_bytes": tank.setpoint_bytes,
            "level_bytes": level_bytes,
            "fill_ratio": round(level_bytes / tank.setpoint_bytes, 4),
            "drain_bytes_per_s": round(tank.drain_per_s) if is_limited else None,
            "rate_bytes_per_s": round(tank.rate_per_s) if is_limited else None,
        }

    # Sensors

    def _is_scarce(self) -> bool:
        return (
            self._journal.is_pressed(self._broker.journal.pending_bytes)
            or self._memory.is_pressed(self._broker.ledger.level_bytes)
            or self._broker.is_low_on_disk
            or not self._broker.has_message_ids
        )

    def _room_bytes(self) -> float:
        journal = self._broker.journal
        if self._broker.is_low_on_disk or not self._broker.has_message_ids:
            return 0.0
        return min(
            self._journal.room_bytes(journal.pending_bytes, journal.bytes_committed),
            self._memory.room_bytes(self._broker.ledger.level_bytes, 0),
        )

    # Under pressure

    def _begin(self) -> None:
        """Start the loops under pressure, and revoke the credit granted without limit."""
        journal = self._broker.journal
        loop = asyncio.get_running_loop()
        now = loop.time()
        drain_per_s = journal.last_commit_bytes / journal.last_commit_s if journal.last_commit_s > 0 else 0.0
        self._journal.begin(journal.pending_bytes, journal.bytes_committed, drain_per_s, now)
        self._memory.begin(self._broker.ledger.level_bytes, 0, 0.0, now)
        self._calm = 0
        self._still_since = None
        self._revoke()
        self._timer = loop.call_later(SAMPLE_S, self._tick)

    def _tick(self) -> None:
        """Compute the next rate and grant the credit that it allows."""
        journal = self._broker.journal
        loop = asyncio.get_running_loop()
        # Scheduled first: after an error below, waiting publishers are still served at the next sample.
        self._timer = loop.call_later(SAMPLE_S, self._tick)
        now = loop.time()
        is_open = not (self._has_kept_waiting or self._line)
        self._has_kept_waiting = False
        self._revoke()
        self._journal.sample(journal.pending_bytes, journal.bytes_committed, now, is_open=is_open)
        self._memory.sample(self._broker.ledger.level_bytes, 0, now, is_open=is_open)
        if self._samples is not None:
            self._note_samples(self._samples, now, was_limited=not is_open)
        self._calm = 0 if self._is_scarce() or not is_open else self._calm + 1
        if self._calm >= CALM_SAMPLES:
            self._timer.cancel()
            self._timer = None
            self._journal.rest()
            self._memory.rest()
            return
        self._log_standstill(now)
        self._serve()

    def _note_samples(self, samples: tuple[TankSamples, TankSamples], now: float, *, was_limited: bool) -> None:
        journal, memory = samples
        rates = journal.rate_per_s, memory.rate_per_s
        writes, level_bytes = self._broker.journal, self._broker.ledger.level_bytes
        journal.note(writes.pending_bytes, writes.bytes_committed, now, was_limited=was_limited, other_per_s=rates[1])
        memory.note(level_bytes, None, now, was_limited=was_limited, other_per_s=rates[0])

    def _revoke(self) -> None:
        """Revoke unused credit; debts stay."""
        holders, self._holders = self._holders, set()
        for session in holders:
            session.credit = min(session.credit, 0)

    def _serve(self) -> None:
        """Grant each waiting publisher its share while there is room; those that need more wait again."""
        self._is_serving_soon = False
        for session in list(self._line):
            if self._room_bytes() <= 0:
                return
            share = self._fair_share()
            if session in self._line:  # else it was closed meanwhile
                del self._line[session]
                self._share = share
                session.go_on()
                self._share = 0
        self._serve_soon()

    def _serve_soon(self) -> None:
        """Serve waiting publishers again in this sample if there is room, in another turn of the event loop."""
        if self._line and not self._is_serving_soon and self._room_bytes() > 0:
            self._is_serving_soon = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _fair_share(self) -> int:
        return max(MIN_SHARE_BYTES, int(self._room_bytes() / max(1, len(self._line))))

    # Standstill

    def _still_for(self, seconds: float) -> bool:
        return self._still_since is not None and asyncio.get_running_loop().time() - self._still_since >= seconds

    def _log_standstill(self, now: float) -> None:
        if self._reason() is None:
            self._still_since = None
            blocked, self._blocked = self._blocked, set()
            if blocked:
                log.warning("publishing connections unblocked connections=%d", len(blocked))
            for session in blocked:
                try:
                    session.unblock()
                except Exception as error:
                    session.crash(error)
            return
        if self._still_since is None:
            self._still_since = now
        if self._still_for(BLOCK_AFTER_S):
            for session in list(self._line):
                try:
                    self._block(session)
                except Exception as error:
                    session.crash(error)

    def _reason(self) -> str | None:
        """Return why the rate is zero; None if it is not."""
        if self._broker.is_low_on_disk:
            return NO_DISK
        if self._memory.rate_per_s <= 0:
            return self._memory.reason
        if self._journal.rate_per_s <= 0 or not self._broker.has_message_ids:
            return self._journal.reason
        return None

    def _block(self, session: CreditedSession) -> None:
        if session not in self._blocked:
            reason = self._reason() or self._journal.reason
            if not self._blocked:
                log.warning("publishing connections blocked: %s", reason)
            self._blocked.add(session)
            session.block(reason)
