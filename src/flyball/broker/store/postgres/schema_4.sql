-- Version 4: the number of requeues of messages in transit to another queue, by id.
ALTER TABLE transfers ADD COLUMN delivery_counts jsonb NOT NULL DEFAULT '{}';
