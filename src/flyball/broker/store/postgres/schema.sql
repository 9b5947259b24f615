-- Version 1 of Flyball's tables. They are in a separate schema, so that a database can be shared; store.py sets the
-- search_path.

CREATE TABLE clients (
    id   bigint PRIMARY KEY,
    name text NOT NULL,
    mode smallint NOT NULL
);

-- The engine, the only writer, ensures unique names. A constraint would break the retry of a batch that creates,
-- deletes and creates the same name.
CREATE TABLE queues (
    id   integer PRIMARY KEY,
    name text NOT NULL
);

-- The next number of each kind. Numbers are never reused, so no row can be mistaken for an earlier one.
CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO counters (name, value) VALUES ('client', 1), ('queue', 1), ('message', 1);

-- Rows are written once, never updated, and accessed by id: dead rows kept by an old snapshot of another session have
-- smaller ids than live ones, and cost nothing.
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
    -- Bodies up to the size of a page are stored inline, so that most messages need no TOAST rows.
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

-- For paging; includes the columns that recovery and index builds read, so that neither reads bodies.
CREATE INDEX messages_in_queue ON messages (queue_id, id) INCLUDE (receiver, sender, context, priority);

-- Partial: messages without expiry have no overhead.
CREATE INDEX messages_expiring ON messages (expires_us) INCLUDE (queue_id, id) WHERE expires_us IS NOT NULL;

-- Usually empty: transient messages are not written. Recovery drops those that are.
CREATE INDEX messages_passing ON messages (id) WHERE NOT persistent;
