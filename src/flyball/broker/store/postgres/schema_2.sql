-- Version 2: what AMQP declares, and where its messages came from. Every change of `messages` is one of the
-- catalogue only, so that it takes no longer with millions of rows.

ALTER TABLE messages ADD COLUMN origin bytea NOT NULL DEFAULT '';
ALTER TABLE messages ALTER COLUMN origin SET STORAGE EXTERNAL;

-- Only durable queues are here, and exclusive ones never: neither needs a column. Names are unique in their vhost, and
-- as before the engine alone sees to that: a constraint would refuse whole batches.
ALTER TABLE queues ADD COLUMN vhost text NOT NULL DEFAULT '/';
ALTER TABLE queues ADD COLUMN auto_delete boolean NOT NULL DEFAULT false;
ALTER TABLE queues ADD COLUMN arguments jsonb NOT NULL DEFAULT '{}';

-- Names are escaped from now on, as values.py does it.
UPDATE queues SET name = replace(name, '\', '\005c') WHERE position('\' IN name) > 0;

-- Exchanges, bindings, users and so on. A key may be longer than an index takes: `digest` is its SHA-256.
CREATE TABLE definitions (
    kind   text NOT NULL,
    digest bytea NOT NULL,
    key    text NOT NULL,
    value  jsonb NOT NULL,
    PRIMARY KEY (kind, digest)
);
