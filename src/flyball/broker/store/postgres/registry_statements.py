"""The statements of the registry, by name. The session's search_path selects the schema."""

from __future__ import annotations

# A lease expires by the server's clock only, and not before every node has had time to renew it after a start of the
# server: a crash loses renewals that were not flushed, and restarts the checkpointer.
_LEASE_LEFT_S = """
extract(epoch FROM greatest(
    lease_until,
    make_interval(secs => lease_s) + greatest(
        pg_postmaster_start_time(),
        (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer')
    )
) - clock_timestamp())::double precision"""

NODES = f"""
SELECT id, name, epoch, state, generation, {_LEASE_LEFT_S} AS lease_left_s, addresses, report,
    known_generation, seen_version
FROM nodes ORDER BY id"""

# Live nodes with other names. A node that leaves has ended its lease.
LIVE_NODES = f"""
SELECT name FROM nodes WHERE name <> $1 AND state <> 'dead' AND {_LEASE_LEFT_S} > 0 ORDER BY name"""

END_EPOCHS = "UPDATE nodes SET epoch = epoch + 1 WHERE name <> $1"

END_SESSIONS_OF_SCHEMA = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name ~ '^flyball \\d+ \\d+ \\d+$'
  AND split_part(application_name, ' ', 4) = (SELECT oid::text FROM pg_namespace WHERE nspname = $1)"""

LEASE_LEFT_S = f"SELECT {_LEASE_LEFT_S}, epoch FROM nodes WHERE id = $1"

# The number of the join in the domain. The row is locked until the end of the transaction, so joins are serialized.
NEXT_GENERATION = "UPDATE counters SET value = value + 1 WHERE name = 'generation' RETURNING value - 1"

NEXT_NODE_ID = "UPDATE counters SET value = value + 1 WHERE name = 'node' RETURNING value - 1"

# A name keeps its id; each join starts a new epoch.
JOIN = """
INSERT INTO nodes (id, name, epoch, state, generation, lease_until, lease_s, known_generation, seen_version)
SELECT $1, $2, 1, 'joining', $3, clock_timestamp() + make_interval(secs => $4), $4, $3, value - 1
FROM counters WHERE counters.name = 'change'
ON CONFLICT (name) DO UPDATE SET epoch = nodes.epoch + 1, state = excluded.state, generation = excluded.generation,
    lease_until = excluded.lease_until, lease_s = excluded.lease_s, addresses = '{}', report = '{}',
    known_generation = excluded.known_generation, seen_version = excluded.seen_version
RETURNING id, epoch"""

NODE_ID = "SELECT id FROM nodes WHERE name = $1"

# Each epoch counts its transfers from 0.
RESET_TRANSFER_NUMBER = """
INSERT INTO transfer_numbers (node, number) VALUES ($1, 0) ON CONFLICT (node) DO UPDATE SET number = 0"""

SECRET = "SELECT secret FROM domain"

# Schemas of one database are distinguished by number, to keep the names of channels and sessions short.
SCHEMA_NUMBER = "SELECT oid::bigint FROM pg_namespace WHERE nspname = $1"

NAME_SESSION = "SELECT set_config('application_name', $1, false)"

EPOCH = "SELECT epoch FROM nodes WHERE id = $1"

# Includes the version: a node of a newer version may have migrated the tables since the last session.
EPOCH_AND_VERSION = """
SELECT (SELECT epoch FROM nodes WHERE id = $1), (SELECT version FROM schema_version)"""

# Held while a node joins, so that no migration starts before the node is visible as a user of the tables.
SHARED_MIGRATION_LOCK = "SELECT pg_advisory_xact_lock_shared($1, hashtext($2))"

# Not flushed: a renewal need not survive a crash, see _LEASE_LEFT_S.
RENEW = """
UPDATE nodes SET lease_until = clock_timestamp() + make_interval(secs => $3), lease_s = $3, state = $4,
    known_generation = $5, seen_version = $6, addresses = $7, report = $8
WHERE id = $1 AND epoch = $2 AND set_config('synchronous_commit', 'off', true) = 'off'"""

# A joining node has nothing else to report.
EXTEND_LEASE = """
UPDATE nodes SET lease_until = clock_timestamp() + make_interval(secs => $3), lease_s = $3
WHERE id = $1 AND epoch = $2 AND set_config('synchronous_commit', 'off', true) = 'off'"""

LEAVE = (
    "UPDATE nodes SET state = 'leaving', lease_until = clock_timestamp(), lease_s = 0 WHERE id = $1 AND epoch = $2"
)

# The payload is the id of the node that ignores the notification.
NOTIFY = "SELECT pg_notify($1, $2)"

CHANGES = "SELECT version, node, change FROM changes WHERE version > $1 ORDER BY version LIMIT $2"

# Held until the end of the transaction: changes become visible, and are applied, in the order of their versions.
CHANGES_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))"

ANNOUNCE_CHANGES = """
WITH place AS (
    UPDATE counters SET value = value + cardinality($2::jsonb[]) WHERE name = 'change'
    RETURNING value - cardinality($2::jsonb[]) AS first
), announced AS (
    INSERT INTO changes (version, node, change)
    SELECT first + number - 1, $1, change FROM place, unnest($2::jsonb[]) WITH ORDINALITY AS new (change, number)
)
SELECT pg_notify($3, $1::integer::text)"""

# Keeps the changes that a node may still need in its current epoch.
TRIM_CHANGES = f"""
DELETE FROM changes WHERE version <= least($1, (
    SELECT min(seen_version) FROM nodes
    WHERE NOT (state = 'dead' OR (state = 'leaving' AND {_LEASE_LEFT_S} <= 0))))"""

# The update has no effect, but without it the row of another node would not be returned.
CLAIM = """
INSERT INTO names (vhost, name, node) VALUES ($1, $2, $3)
ON CONFLICT (vhost, name) DO UPDATE SET node = names.node RETURNING node"""

CLAIM_ALL = """
INSERT INTO names (vhost, name, node) SELECT vhost, name, $3 FROM unnest($1::text[], $2::text[]) AS own (vhost, name)
ON CONFLICT (vhost, name) DO NOTHING"""

# A single node does not claim names. Only members of a clustered queue share one.
CLAIM_EXISTING = """
INSERT INTO names (vhost, name, node) SELECT DISTINCT vhost, name, CASE WHEN member THEN 0 ELSE owner END FROM queues
ON CONFLICT (vhost, name) DO NOTHING"""

# Claimed by a node that ended before it created the queues.
DROP_UNUSED_NAMES = """
DELETE FROM names WHERE node = $1 AND NOT EXISTS (
    SELECT FROM queues WHERE queues.vhost = names.vhost AND queues.name = names.name AND owner = $1)"""

TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended($1, $2))"

LOCK_HOLDER = """
SELECT activity.pid, activity.application_name, activity.client_addr::text
FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, $2)"""

END_SESSION = "SELECT pg_terminate_backend($1)"

# Terminates the sessions of a node's earlier epochs. Repeated until the result is 0: a session ends asynchronously.
END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database()
  AND CASE WHEN application_name ~ '^flyball \\d+ \\d+ \\d+$'
      THEN split_part(application_name, ' ', 2)::bigint = $1
          AND split_part(application_name, ' ', 3)::bigint < $2
          AND split_part(application_name, ' ', 4)::bigint = $3
      ELSE false END"""

# Sessions check the epoch when they start: earlier sessions are terminated after this statement, and no new one can
# start.
DECLARE_DEAD = f"""
UPDATE nodes SET epoch = epoch + 1, state = 'dead', lease_until = clock_timestamp(), lease_s = 0
WHERE id = $1 AND epoch = $2 AND state <> 'dead' AND {_LEASE_LEFT_S} <= 0 RETURNING epoch"""

DEAD_EPOCH = "SELECT CASE WHEN state = 'dead' THEN epoch END AS epoch FROM nodes WHERE id = $1"

# Locks the row: the node cannot join before the end of the transaction.
STATE_FOR_UPDATE = "SELECT state FROM nodes WHERE id = $1 FOR UPDATE"

IS_GONE = f"""
SELECT state = 'dead' OR (state = 'leaving' AND {_LEASE_LEFT_S} <= 0) FROM nodes WHERE id = $1 FOR UPDATE"""

OWNER = "SELECT owner FROM queues WHERE id = $1"

SERVES_ANY = "SELECT EXISTS (SELECT FROM queues WHERE owner = $1)"

# Queues that end with their node, and members whose messages were merged into others.
PASSING_QUEUES = """
SELECT id FROM queues WHERE owner = $1 AND id <> ALL($2::integer[]) AND (NOT durable OR exclusive OR (
    member AND NOT EXISTS (SELECT FROM messages WHERE queue_id = queues.id AND persistent)))"""

TRANSIENT_QUEUES = "SELECT id FROM queues WHERE owner = $1 AND (NOT durable OR exclusive)"

# The queue cannot be deleted before the end of the transaction.
LOCK_QUEUE = "SELECT id FROM queues WHERE id = $1 FOR KEY SHARE"

# In pieces, for short transactions, and in transfers of a size that the receiver can load.
MERGE_PIECE = """
WITH moved AS (
    UPDATE messages SET queue_id = $2 WHERE id IN (
        SELECT id FROM messages WHERE queue_id = $1 AND persistent ORDER BY id LIMIT $3) RETURNING id
), numbered AS (
    SELECT id, (row_number() OVER (ORDER BY id) - 1) / $4 AS place FROM moved
), recorded AS (
    INSERT INTO transfers (queue_id, message_ids)
    SELECT $2, array_agg(id ORDER BY id) FROM numbered GROUP BY place ORDER BY min(id)
)
SELECT count(*) FROM moved"""

FORGET_TRANSFER_NUMBER = "DELETE FROM transfer_numbers WHERE node = $1"

FORGET_NODE = "DELETE FROM nodes WHERE id = $1"
