-- Version 4: how often messages on their way to another queue came back from a consumer, by id: nobody else has to be told.
ALTER TABLE transfers ADD COLUMN delivery_counts jsonb NOT NULL DEFAULT '{}';
