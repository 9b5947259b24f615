"""The statements of the store, by name. The session's search_path selects the schema."""

from __future__ import annotations

# The columns of a message, in the order of rows and arguments.
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

_COLUMN_LIST = ", ".join(COLUMNS)

_UNNEST = """unnest(
    $1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[],
    $7::bigint[], $8::bigint[], $9::bytea[], $10::boolean[], $11::bytea[], $12::bytea[])"""

# Idempotent: existing rows stay unchanged.
APPEND = f"INSERT INTO messages ({_COLUMN_LIST}) SELECT * FROM {_UNNEST} ON CONFLICT (id) DO NOTHING"

REMOVE = "DELETE FROM messages WHERE id = ANY($1::bigint[])"

# Both in one round trip. The halves of the statement do not see each other: no id may be in both.
APPEND_AND_REMOVE = f"WITH gone AS (DELETE FROM messages WHERE id = ANY($13::bigint[])) {APPEND}"

# Each of the following applies all changes of its kind in a batch: clients declare thousands of queues in a row.
CREATE_QUEUES = """
INSERT INTO queues (id, vhost, name, auto_delete, arguments, durable, exclusive, member, owner)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::boolean[], $5::jsonb[],
    $6::boolean[], $7::boolean[], $8::boolean[], $9::integer[])
ON CONFLICT (id) DO UPDATE SET vhost = excluded.vhost, name = excluded.name,
    auto_delete = excluded.auto_delete, arguments = excluded.arguments, durable = excluded.durable,
    exclusive = excluded.exclusive, member = excluded.member, owner = excluded.owner"""

# A name is released with its queue, or with the last member of a clustered queue. Returns the members.
DELETE_QUEUES = """
WITH gone AS (
    DELETE FROM queues WHERE id = ANY($1::integer[]) RETURNING id, vhost, name, owner, member
), free AS (
    DELETE FROM names USING gone
    WHERE names.vhost = gone.vhost AND names.name = gone.name AND (names.node = gone.owner OR (
        names.node = 0 AND gone.member AND NOT EXISTS (
            SELECT FROM queues AS other WHERE other.member AND other.vhost = gone.vhost AND other.name = gone.name
                AND other.id <> ALL($1::integer[]))))
)
SELECT id, vhost, name FROM gone WHERE member"""

# Redirects transfers to deleted members to another member, except messages that were moved together with the rest of
# the member, which must not arrive twice. Run after the deletion, which waits for transfers in progress: only then
# are all transfers visible.
REDIRECT_TRANSFERS = """
WITH heirs AS (
    SELECT gone.id AS member, min(queues.id) AS heir
    FROM unnest($1::integer[], $2::text[], $3::text[]) AS gone (id, vhost, name)
    JOIN queues ON queues.member AND queues.vhost = gone.vhost AND queues.name = gone.name
    GROUP BY gone.id
), moved AS (
    UPDATE messages SET queue_id = heir FROM transfers JOIN heirs ON transfers.queue_id = member
    WHERE messages.id = ANY(transfers.message_ids) AND messages.queue_id = member
    RETURNING transfers.id AS transfer, heir, messages.id AS message
), redirected AS (
    SELECT transfer, heir, array_agg(message ORDER BY message) AS message_ids FROM moved GROUP BY transfer, heir
)
UPDATE transfers SET queue_id = heir, message_ids = redirected.message_ids FROM redirected
WHERE transfers.id = transfer"""

# Returns the moved queues: on a retry a queue may already be on a third node, where it must stay.
MOVE_QUEUES = """
UPDATE queues SET owner = moved.owner FROM unnest($1::integer[], $2::integer[]) AS moved (id, owner)
WHERE queues.id = moved.id AND queues.owner = $3 RETURNING queues.id"""

# With several nodes: a queue that replaced one of the same name may have lost the name. Names of members belong to
# node 0.
NAME_CREATED = """
INSERT INTO names (vhost, name, node)
SELECT DISTINCT vhost, name, CASE WHEN member THEN 0 ELSE owner END FROM queues WHERE id = ANY($1::integer[])
ON CONFLICT (vhost, name) DO UPDATE SET node = 0 WHERE excluded.node = 0"""

# Releases names claimed for queues that were created and deleted in the same batch.
GIVE_NAMES_BACK = """
DELETE FROM names USING unnest($1::text[], $2::text[]) AS unmade (vhost, name)
WHERE names.vhost = unmade.vhost AND names.name = unmade.name AND node = $3 AND NOT EXISTS (
    SELECT FROM queues WHERE queues.vhost = names.vhost AND queues.name = names.name AND owner = $3)"""

NAME_MOVED = """
INSERT INTO names (vhost, name, node)
SELECT DISTINCT vhost, name, CASE WHEN member THEN 0 ELSE owner END FROM queues WHERE id = ANY($1::integer[])
ON CONFLICT (vhost, name) DO UPDATE SET node = excluded.node WHERE names.node <> 0"""

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

# Prevents a number from being assigned again, even after its owner was deleted.
PASS_NUMBER = "UPDATE counters SET value = $2 + 1 WHERE name = $1 AND value <= $2"

# Not below this node's earlier reservations: a rewound database would assign numbers again.
RESERVE_NUMBERS = """
UPDATE counters SET value = greatest(value, $3) + $2 WHERE name = $1 RETURNING value - $2"""

# The identity of the database, its timeline and its durable position. A promotion starts a new timeline.
HISTORY = """
SELECT (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    CASE WHEN NOT pg_is_in_recovery()
        THEN ('x' || substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8))::bit(32)::int END,
    pg_is_in_recovery(),
    CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::bigint END"""

FLUSHED = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint"

# The number of ids that belong to other messages in the store: they were assigned twice.
COUNT_OTHERS = f"""
SELECT count(*) FROM {_UNNEST} AS new ({_COLUMN_LIST}) JOIN messages USING (id)
WHERE messages.arrived_us <> new.arrived_us OR messages.properties <> new.properties OR messages.body <> new.body"""

# A backup may have been restored partially: new messages must not get the ids of stored ones.
PASS_STORED = """
UPDATE counters SET value = stored.last + 1 FROM (SELECT max(id) AS last FROM messages) AS stored
WHERE name = 'message' AND value <= stored.last"""

KNOWN_QUEUES = "SELECT id FROM queues WHERE id = ANY($1::integer[])"

# Only if no other reservation followed this node's last one.
RETURN_MESSAGE_IDS = "UPDATE counters SET value = $1 WHERE name = 'message' AND value = $2 AND $1 < $2"

COUNTERS = "SELECT name, value FROM counters"

CLIENTS = "SELECT id, name, mode FROM clients ORDER BY id"

QUEUES = """
SELECT id, vhost, name, auto_delete, arguments, durable, exclusive, member, owner FROM queues ORDER BY id"""

DEFINITIONS = "SELECT kind, key, value FROM definitions ORDER BY kind, key"

# Tables of an older version, with a single node, have queues without an owner.
OWN_UNOWNED = "UPDATE queues SET owner = $1 WHERE owner IS NULL"

DROP_PASSING = """
DELETE FROM messages WHERE NOT persistent AND queue_id IN (SELECT id FROM queues WHERE owner = $1)"""

# The summary of the backlog for recovery. An index-only scan of messages_in_queue.
_SUMMARY = """
SELECT queue_id, receiver, sender, count(*), max(id) FROM messages
WHERE queue_id IN (SELECT id FROM queues WHERE {}) GROUP BY queue_id, receiver, sender"""

SUMMARY = _SUMMARY.format("owner = $1")

ADOPTED_QUEUES = """
SELECT id, vhost, name, auto_delete, arguments, durable, exclusive, member, owner FROM queues
WHERE owner = $1 AND id = ANY($2::integer[]) ORDER BY id"""

ADOPTED_SUMMARY = _SUMMARY.format("owner = $1 AND id = ANY($2::integer[])")

DROP_ADOPTED_PASSING = """
DELETE FROM messages WHERE NOT persistent
    AND queue_id IN (SELECT id FROM queues WHERE owner = $1 AND id = ANY($2::integer[]))"""

# One index lookup per queue with messages, independent of the number of messages.
ORPHANS = """
WITH RECURSIVE holding (queue_id) AS (
    (SELECT queue_id FROM messages ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT messages.queue_id FROM messages WHERE messages.queue_id > holding.queue_id
        ORDER BY messages.queue_id LIMIT 1)
    FROM holding WHERE holding.queue_id IS NOT NULL
)
SELECT queue_id FROM holding WHERE queue_id IS NOT NULL AND queue_id NOT IN (SELECT id FROM queues)"""

# Their messages are in the summary that is read in the same transaction.
FORGET_TRANSFERS = "DELETE FROM transfers WHERE queue_id = ANY($1::integer[])"

# Atomic and idempotent: a completed transfer has a number up to that of the node. If the destination was deleted, the
# messages are not moved and the result is false. It cannot be deleted before the end of the transaction.
TRANSFER = """
WITH destination AS (
    SELECT id FROM queues WHERE id = $3 FOR KEY SHARE
), fresh AS (
    UPDATE transfer_numbers SET number = $5 WHERE node = $4 AND number < $5 AND EXISTS (SELECT FROM destination)
    RETURNING number
), moved AS (
    UPDATE messages SET queue_id = $3
    WHERE id = ANY($1::bigint[]) AND queue_id = $2 AND EXISTS (SELECT FROM fresh) RETURNING id
), recorded AS (
    INSERT INTO transfers (queue_id, message_ids, delivery_counts)
    SELECT $3, array_agg(id ORDER BY id), $6::jsonb FROM moved HAVING count(*) > 0
)
SELECT EXISTS (SELECT FROM destination) OR EXISTS (SELECT FROM transfer_numbers WHERE node = $4 AND number >= $5)"""

# Whole transfers up to a number of bytes, but at least one. Messages that have left the queue do not arrive. Only the
# oldest are examined: after the death of a node with a long member there may be thousands.
ARRIVALS = f"""
SELECT transfer_id, chosen.queue_id AS transferred_to,
    coalesce((chosen.delivery_counts ->> found.id::text)::integer, 0) AS delivery_count,
    {", ".join("found." + name for name in COLUMNS)} FROM (
    SELECT id AS transfer_id, message_ids, delivery_counts, queue_id, row_number() OVER (ORDER BY id) AS row_number,
        sum(size_bytes) OVER (ORDER BY id) AS so_far_bytes
    FROM (
        SELECT * FROM transfers WHERE queue_id = ANY($1::integer[]) ORDER BY id LIMIT $3
    ) AS oldest, LATERAL (
        SELECT coalesce(sum(octet_length(body) + octet_length(properties) + octet_length(origin)), 0) AS size_bytes
        FROM messages WHERE messages.id = ANY(oldest.message_ids)
    ) AS brought
) AS chosen LEFT JOIN messages AS found ON found.id = ANY(chosen.message_ids) AND found.queue_id = chosen.queue_id
WHERE row_number = 1 OR so_far_bytes <= $2 ORDER BY transfer_id, found.id"""

# Running total of sizes. octet_length does not read a TOASTed body.
_SO_FAR = """
    row_number() OVER (ORDER BY place) AS row_number,
    sum(octet_length(body) + octet_length(properties) + octet_length(origin)) OVER (ORDER BY place) AS so_far_bytes"""

# In the order requested, up to a number of bytes, but at least one.
LOAD = f"""
SELECT {_COLUMN_LIST} FROM (
    SELECT messages.*, {_SO_FAR}
    FROM unnest($1::bigint[]) WITH ORDINALITY AS asked (id, place) JOIN messages USING (id)
) AS found WHERE row_number = 1 OR so_far_bytes <= $2 ORDER BY id"""

# Excludes unconfirmed transfers to the queue, which are read as arrivals. NOT IN hashes the ids once, for any number
# of rows.
_RECEIVED_ONLY = """
    messages.id NOT IN (SELECT unnest(message_ids) FROM transfers WHERE transfers.queue_id = $1)"""

PAGE = f"""
SELECT {_COLUMN_LIST} FROM (
    SELECT *, {_SO_FAR} FROM (
        SELECT *, id AS place FROM messages WHERE queue_id = $1 AND id > $2 AND {_RECEIVED_ONLY} ORDER BY id LIMIT $3
    ) AS next
) AS found WHERE row_number = 1 OR so_far_bytes <= $4 ORDER BY id"""

# Reads every row of the queue, but no long bodies: used only for queues with a size limit in bytes.
BODY_BYTES = f"""
SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM messages
WHERE queue_id = $1 AND id <> ALL($2::bigint[]) AND {_RECEIVED_ONLY}"""

EXPIRING = """
SELECT queue_id, min(expires_us) FROM messages
WHERE expires_us IS NOT NULL AND queue_id IN (SELECT id FROM queues WHERE owner = $1)
GROUP BY queue_id"""

# Except transfers that have been redirected to another member.
RECEIVED = """
DELETE FROM transfers USING unnest($1::bigint[], $2::integer[]) AS taken (id, queue_id)
WHERE transfers.id = taken.id AND transfers.queue_id = taken.queue_id"""

# A piece of a queue, to be deleted by id.
QUEUE_IDS = f"""
SELECT id FROM messages WHERE queue_id = $1 AND id > $2 AND id <= $3 AND {_RECEIVED_ONLY} ORDER BY id LIMIT $4"""

# Returns free space at the end of the table to the volume, and makes the rest reusable.
VACUUM = "VACUUM (TRUNCATE, SKIP_LOCKED) messages"

# Removes WAL that recovery no longer needs.
CHECKPOINT = "CHECKPOINT"

MIGRATION_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext($2))"

# Held by nodes of versions without domains while they write.
TRY_OLD_WRITER_LOCK = "SELECT pg_try_advisory_xact_lock($1, hashtext($2))"


def index_round(*, receiver: bool, sender: bool, context: bool, priority: bool) -> str:
    """Return the statement that groups the next messages of a queue by the requested columns.

    The ids of a group are usually sorted; ORDER BY inside array_agg would guarantee it at four times the cost.
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
    WHERE queue_id = $1 AND id > $2 AND id <= $3 AND {_RECEIVED_ONLY} ORDER BY id LIMIT $4
) AS piece
GROUP BY receiver, sender, context, priority"""
