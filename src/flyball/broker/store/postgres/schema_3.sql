-- Version 3: several nodes share the tables. Each queue has one owner; existing queues belong to the first node that
-- opens the store. No row of `messages` is rewritten.

ALTER TABLE queues ADD COLUMN owner integer;
-- With several nodes, transient queues are stored as well, so that all nodes know them.
ALTER TABLE queues ADD COLUMN durable boolean NOT NULL DEFAULT true;
ALTER TABLE queues ADD COLUMN exclusive boolean NOT NULL DEFAULT false;
ALTER TABLE queues ADD COLUMN member boolean NOT NULL DEFAULT false;

-- Finds the members of a clustered queue. Other queues are not in the index.
CREATE INDEX queues_member ON queues (vhost, name) WHERE member;

INSERT INTO counters (name, value) VALUES ('node', 1), ('generation', 1), ('change', 1);

-- The shared secret with which the nodes authenticate to each other: all of them can read it.
CREATE TABLE domain (
    secret bytea NOT NULL
);

INSERT INTO domain (secret)
VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- Updated every second by each node.
CREATE TABLE nodes (
    id               integer PRIMARY KEY,
    name             text NOT NULL UNIQUE,
    epoch            bigint NOT NULL,
    state            text NOT NULL,
    generation       bigint NOT NULL,
    lease_until      timestamptz NOT NULL,
    lease_s          double precision NOT NULL,
    addresses        jsonb NOT NULL DEFAULT '{}',
    report           jsonb NOT NULL DEFAULT '{}',
    known_generation bigint NOT NULL,
    seen_version     bigint NOT NULL
) WITH (fillfactor = 50);

-- The owner of the name of a queue, 0 for a clustered one. A name may be claimed before its queue is created.
CREATE TABLE names (
    vhost text NOT NULL,
    name  text NOT NULL,
    node  integer NOT NULL,
    PRIMARY KEY (vhost, name)
);

-- The log of changes. Versions become visible in order, since a lock is held while they are written.
CREATE TABLE changes (
    version bigint PRIMARY KEY,
    node    integer NOT NULL,
    change  jsonb NOT NULL
);

-- Messages that were moved to a queue and not yet accepted by its owner.
CREATE TABLE transfers (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    integer NOT NULL,
    message_ids bigint[] NOT NULL
);

CREATE INDEX transfers_to_queue ON transfers (queue_id, id);

-- The last transfer done by a node, so that none is done twice. Not in `nodes`: a commit would block renewals.
CREATE TABLE transfer_numbers (
    node   integer PRIMARY KEY,
    number bigint NOT NULL
) WITH (fillfactor = 50);
