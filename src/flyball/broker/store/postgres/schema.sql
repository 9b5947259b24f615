-- Version 1 of Flyball's tables. They live in a schema of their own, so that a database can be shared;
-- store.py sets the search_path.

CREATE TABLE clients (
    id   bigint PRIMARY KEY,
    name text NOT NULL,
    mode smallint NOT NULL
);

-- Names are unique in the engine, which alone writes here. A constraint would break the second run of a batch
-- that creates, deletes and creates one name.
CREATE TABLE queues (
    id   integer PRIMARY KEY,
    name text NOT NULL
);

-- The next number of each kind. Numbers are never used twice, so no row can be taken for an earlier one.
CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO counters (name, value) VALUES ('client', 1), ('queue', 1), ('message', 1);

-- Rows are written once, never updated, and addressed by their id: dead rows that an old snapshot of another
-- session keeps alive have smaller ids than those in use, and cost nothing.
CREATE TABLE messages (
    id         bigint NOT NULL,
    arrived_us bigint NOT NULL,
    sender     bigint,
    receiver   bigint,
    context    bigint,
    expires_us bigint,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    persistent boolean NOT NULL,
    properties bytea NOT NULL,
    body       bytea NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (id)
) WITH (
    fillfactor = 100,
    -- Bodies stay in the row up to a page, so that most messages are one row in one place.
    toast_tuple_target = 8160,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.2
);

-- Compressing bodies would cost more time than it saves disk.
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE messages ALTER COLUMN properties SET STORAGE EXTERNAL;

-- Paging, and with the columns that recovery and an index ask for, so that neither reads any body.
CREATE INDEX messages_in_queue ON messages (queue_id, id) INCLUDE (receiver, sender, context, priority);

-- Few messages expire: the others pay nothing.
CREATE INDEX messages_expiring ON messages (expires_us) INCLUDE (queue_id, id) WHERE expires_us IS NOT NULL;

-- Empty as a rule: a message that need not survive is not written. Recovery drops what is here.
CREATE INDEX messages_passing ON messages (id) WHERE NOT persistent;
