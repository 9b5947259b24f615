"""Every statement that the store sends, by name. The search_path of the session says in which schema."""

from __future__ import annotations

COLUMNS = (
    "id",
    "queue_id",
    "sender",
    "receiver",
    "context",
    "priority",
    "arrived_us",
    "expires_us",
    "properties",
    "persistent",
    "origin",
    "body",
)
"""The columns of a message, in the order in which they travel."""

_COLUMN_LIST = ", ".join(COLUMNS)

_UNNEST = """unnest(
    $1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[],
    $7::bigint[], $8::bigint[], $9::bytea[], $10::boolean[], $11::bytea[], $12::bytea[])"""

# Safe to run twice: what is there already stays as it is.
APPEND = f"INSERT INTO messages ({_COLUMN_LIST}) SELECT * FROM {_UNNEST} ON CONFLICT (id) DO NOTHING"

REMOVE = "DELETE FROM messages WHERE id = ANY($1::bigint[])"

# Both in one statement and one round trip. The two halves do not see each other: no id may be in both.
APPEND_AND_REMOVE = f"WITH gone AS (DELETE FROM messages WHERE id = ANY($13::bigint[])) {APPEND}"

# Each of these carries all changes of its kind in a batch: clients declare thousands of queues in a row.
CREATE_QUEUES = """
INSERT INTO queues (id, vhost, name, auto_delete, arguments)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::boolean[], $5::jsonb[])
ON CONFLICT (id) DO UPDATE SET vhost = excluded.vhost, name = excluded.name,
    auto_delete = excluded.auto_delete, arguments = excluded.arguments"""

DELETE_QUEUES = "DELETE FROM queues WHERE id = ANY($1::integer[])"

CREATE_CLIENTS = """
INSERT INTO clients (id, name, mode) SELECT * FROM unnest($1::bigint[], $2::text[], $3::smallint[])
ON CONFLICT (id) DO UPDATE SET name = excluded.name, mode = excluded.mode"""

DELETE_CLIENTS = "DELETE FROM clients WHERE id = ANY($1::bigint[])"

PUT_DEFINITIONS = """
INSERT INTO definitions (kind, digest, key, value)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::jsonb[])
ON CONFLICT (kind, digest) DO UPDATE SET value = excluded.value"""

DELETE_DEFINITIONS = """
DELETE FROM definitions USING unnest($1::text[], $2::bytea[]) AS gone (kind, digest)
WHERE definitions.kind = gone.kind AND definitions.digest = gone.digest"""

# Keeps a number from being given out again, also when its owner is deleted.
PASS_NUMBER = "UPDATE counters SET value = $2 + 1 WHERE name = $1 AND value <= $2"

RESERVE_MESSAGE_IDS = "UPDATE counters SET value = value + $1 WHERE name = 'message' RETURNING value - $1"

# Only while the counter stands where our last reservation put it.
RETURN_MESSAGE_IDS = "UPDATE counters SET value = $1 WHERE name = 'message' AND value = $2 AND $1 < $2"

COUNTERS = "SELECT name, value FROM counters"

CLIENTS = "SELECT id, name, mode FROM clients ORDER BY id"

QUEUES = "SELECT id, vhost, name, auto_delete, arguments FROM queues ORDER BY id"

DEFINITIONS = "SELECT kind, key, value FROM definitions ORDER BY kind, key"

DROP_PASSING = "DELETE FROM messages WHERE NOT persistent"

# What recovery needs to know of the backlog. Everything is in the index messages_in_queue.
SUMMARY = """
SELECT queue_id, receiver, sender, count(*), max(id) FROM messages GROUP BY queue_id, receiver, sender"""

# How much the rows up to each one hold. The length of a body is known without reading it.
_SO_FAR = """
    row_number() OVER (ORDER BY place) AS row_number,
    sum(octet_length(body) + octet_length(properties) + octet_length(origin)) OVER (ORDER BY place) AS so_far_bytes"""

# In the order asked for up to so many bytes, but at least one.
LOAD = f"""
SELECT {_COLUMN_LIST} FROM (
    SELECT messages.*, {_SO_FAR}
    FROM unnest($1::bigint[]) WITH ORDINALITY AS asked (id, place) JOIN messages USING (id)
) AS found WHERE row_number = 1 OR so_far_bytes <= $2 ORDER BY id"""

PAGE = f"""
SELECT {_COLUMN_LIST} FROM (
    SELECT *, {_SO_FAR} FROM (
        SELECT *, id AS place FROM messages WHERE queue_id = $1 AND id > $2 ORDER BY id LIMIT $3
    ) AS next
) AS found WHERE row_number = 1 OR so_far_bytes <= $4 ORDER BY id"""

# Reads every row of the queue, but no long body: only queues with a limit on bytes are worth it.
BODY_BYTES = """
SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM messages WHERE queue_id = $1 AND id <> ALL($2::bigint[])"""

EXPIRING = """
SELECT expires_us, queue_id, id FROM messages
WHERE expires_us IS NOT NULL AND queue_id IN (SELECT id FROM queues)"""

# A piece of a queue, to be deleted by id.
QUEUE_IDS = "SELECT id FROM messages WHERE queue_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4"

# The writer holds it as long as its session lives: nothing it sent can still be under way once we have it.
TRY_WRITER_LOCK = "SELECT pg_try_advisory_lock($1, hashtext($2))"

WRITER_LOCK_HOLDER = """
SELECT activity.pid, activity.application_name, activity.client_addr::text
FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locktype = 'advisory' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid::bigint = $1 AND objid::bigint = (hashtext($2)::bigint & 4294967295)"""

END_SESSION = "SELECT pg_terminate_backend($1)"

MIGRATION_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext($2))"


def index_round(*, receiver: bool, sender: bool, context: bool, priority: bool) -> str:
    """Return the statement that groups the next messages of a queue by the columns asked for.

    The ids of a group come in their order as a rule; ORDER BY inside array_agg would promise it for four times
    the cost.
    """
    asked = [
        name if wanted else f"NULL::{kind} AS {name}"
        for name, kind, wanted in (
            ("receiver", "bigint", receiver),
            ("sender", "bigint", sender),
            ("context", "bigint", context),
            ("priority", "integer", priority),
        )
    ]
    return f"""
SELECT receiver, sender, context, priority, array_agg(id)
FROM (
    SELECT id, {", ".join(asked)} FROM messages
    WHERE queue_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4
) AS piece
GROUP BY receiver, sender, context, priority"""
