-- What every size needs.

ALTER TABLE categories ADD PRIMARY KEY (id);
ALTER TABLE regions ADD PRIMARY KEY (id);
ALTER TABLE users ADD PRIMARY KEY (id);
ALTER TABLE users ADD UNIQUE (nickname);
ALTER TABLE items ADD PRIMARY KEY (id);
ALTER TABLE old_items ADD PRIMARY KEY (id);
ALTER TABLE bids ADD PRIMARY KEY (id);
ALTER TABLE buy_now ADD PRIMARY KEY (id);
ALTER TABLE comments ADD PRIMARY KEY (id);
CREATE INDEX items_by_category ON items (category_id, ends_at);
