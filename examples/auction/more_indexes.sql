-- The rest of RUBiS's indexes, for its sizes. The small database goes without: that is what makes its large requests
-- large, as a million users and ten million bids on a disk did for RUBiS.

CREATE INDEX users_by_region ON users (region_id);
CREATE INDEX items_by_seller ON items (seller_id);
CREATE INDEX old_items_by_seller ON old_items (seller_id);
CREATE INDEX bids_by_item ON bids (item_id);
CREATE INDEX bids_by_user ON bids (user_id);
CREATE INDEX buy_now_by_buyer ON buy_now (buyer_id);
CREATE INDEX comments_by_user ON comments (to_user_id);
