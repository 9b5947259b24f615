-- Version 4: how often messages in transit to another queue were requeued, by id.
ALTER TABLE transfers ADD COLUMN delivery_counts jsonb NOT NULL DEFAULT '{}';
