-- Version 2: AMQP's declarations, and the origin of its messages. Changes of `messages` affect only the catalogue, so
-- their duration does not depend on the number of rows.

ALTER TABLE messages ADD COLUMN origin bytea NOT NULL DEFAULT '';
ALTER TABLE messages ALTER COLUMN origin SET STORAGE EXTERNAL;

-- Only durable queues that are not exclusive are stored: neither property needs a column. Names are unique per vhost,
-- as before ensured only by the engine: a constraint would refuse whole batches.
ALTER TABLE queues ADD COLUMN vhost text NOT NULL DEFAULT '/';
ALTER TABLE queues ADD COLUMN auto_delete boolean NOT NULL DEFAULT false;
ALTER TABLE queues ADD COLUMN arguments jsonb NOT NULL DEFAULT '{}';

-- Names are escaped from now on, as values.py does it.
UPDATE queues SET name = replace(name, '\', '\005c') WHERE position('\' IN name) > 0;

-- Exchanges, bindings, users and so on. A key may exceed the maximum size of an index entry: `digest` is its SHA-256.
CREATE TABLE definitions (
    kind   text NOT NULL,
    digest bytea NOT NULL,
    key    text NOT NULL,
    value  jsonb NOT NULL,
    PRIMARY KEY (kind, digest)
);
