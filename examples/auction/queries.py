"""Queries of the auction site. Each takes a connection of the pool and returns it.

User info, bid history and storing a bid work like RUBiS's beans: they hold a connection while they acquire a second
one for each row. When all connections are held by requests that wait for a second one, no request makes progress
until the pool's timeout: this is how an application server without admission control collapses.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg.rows import DictRow

from flyball.errors import FlyballError
from flyball.lab.auction.database import Pool
from flyball.lab.auction.generate import password_hash

ROWS_PER_PAGE = 20


class NotFound(FlyballError):
    """The requested object does not exist."""


class WrongPassword(FlyballError):
    """The user does not exist, or has another password."""


class Refused(FlyballError):
    """The rules of the auction forbid the request, or another visitor was faster."""


LISTED = "items.id, items.name, items.initial_price, items.highest_bid, items.bid_count, items.ends_at"

CATEGORIES = "SELECT id, name FROM categories ORDER BY name"
CATEGORY = "SELECT id, name FROM categories WHERE id = %s"
REGIONS = "SELECT id, name FROM regions ORDER BY name"
REGION_NAMED = "SELECT id FROM regions WHERE name = %s"
REGION = "SELECT id, name FROM regions WHERE id = %s"
# A range scan of an index, in its order. One row more than a page shows whether another page follows. The number of
# distinct bidders is not stored: it is counted, and in the small database the bids have no index.
ITEMS_OF_CATEGORY = f"""
    SELECT {LISTED}, count(DISTINCT bids.user_id) AS bidders
    FROM (
        SELECT * FROM items WHERE category_id = %s AND ends_at > now() ORDER BY ends_at, id LIMIT %s OFFSET %s
    ) AS items LEFT JOIN bids ON bids.item_id = items.id
    GROUP BY {LISTED} ORDER BY items.ends_at, items.id
"""
# The same, but only the join with the seller shows whether an item belongs to the list.
ITEMS_OF_REGION = f"""
    SELECT {LISTED}, users.nickname AS seller, count(DISTINCT bids.user_id) AS bidders
    FROM items JOIN users ON users.id = items.seller_id LEFT JOIN bids ON bids.item_id = items.id
    WHERE items.category_id = %s AND users.region_id = %s AND items.ends_at > now()
    GROUP BY items.id, users.id ORDER BY items.ends_at, items.id LIMIT %s OFFSET %s
"""
ITEM = "SELECT *, ends_at > now() AS is_open FROM items WHERE id = %s"
OLD_ITEM = "SELECT *, false AS is_open FROM old_items WHERE id = %s"
# Concurrent bids and purchases of the item wait for this lock.
LOCKED_ITEM = "SELECT *, ends_at > now() AS is_open FROM items WHERE id = %s FOR UPDATE"
BIDS_OF_ITEM = "SELECT user_id, amount, quantity, made_at FROM bids WHERE item_id = %s ORDER BY amount DESC LIMIT %s"
INSERT_BID = "INSERT INTO bids (user_id, item_id, quantity, amount, most_amount) VALUES (%s, %s, %s, %s, %s)"
RAISE_ITEM = "UPDATE items SET highest_bid = %s, bid_count = bid_count + 1 WHERE id = %s"
INSERT_PURCHASE = "INSERT INTO buy_now (buyer_id, item_id, quantity) VALUES (%s, %s, %s)"
# The last one ends the auction.
TAKE_ITEM = """
    UPDATE items SET quantity = quantity - %(quantity)s,
        ends_at = CASE WHEN quantity = %(quantity)s THEN now() ELSE ends_at END
    WHERE id = %(item_id)s
"""
INSERT_ITEM = """
    INSERT INTO items (name, description, initial_price, quantity, reserve_price, buy_now_price, ends_at, seller_id,
        category_id)
    VALUES (%(name)s, %(description)s, %(initial_price)s, %(quantity)s, %(reserve_price)s, %(buy_now_price)s,
        now() + make_interval(days => %(days)s), %(seller_id)s, %(category_id)s)
    RETURNING id
"""
USER = """
    SELECT users.id, nickname, first_name, last_name, rating, created_at, regions.name AS region
    FROM users JOIN regions ON regions.id = users.region_id WHERE users.id = %s
"""
NICKNAME = "SELECT nickname FROM users WHERE id = %s"
LOG_IN = "SELECT id, nickname FROM users WHERE nickname = %s AND password_hash = %s"
INSERT_USER = """
    INSERT INTO users (first_name, last_name, nickname, password_hash, email, region_id)
    VALUES (%(first_name)s, %(last_name)s, %(nickname)s, %(password_hash)s, %(email)s, %(region_id)s) RETURNING id
"""
COMMENTS_ABOUT = """
    SELECT from_user_id, item_id, rating, written_at, comment FROM comments
    WHERE to_user_id = %s ORDER BY written_at DESC LIMIT %s
"""
INSERT_COMMENT = """
    INSERT INTO comments (from_user_id, to_user_id, item_id, rating, comment) VALUES (%s, %s, %s, %s, %s)
"""
RATE_USER = "UPDATE users SET rating = rating + %s WHERE id = %s"

# The six sections of "about me".
MY_BIDS = f"""
    SELECT {LISTED}, max(bids.amount) AS own_bid FROM bids JOIN items ON items.id = bids.item_id
    WHERE bids.user_id = %s AND items.ends_at > now() GROUP BY items.id ORDER BY items.ends_at LIMIT %s
"""
MY_WON_ITEMS = f"""
    SELECT {LISTED} FROM bids JOIN old_items AS items ON items.id = bids.item_id
    WHERE bids.user_id = %s AND bids.amount = items.highest_bid AND items.ends_at > now() - interval '30 days'
    ORDER BY items.ends_at DESC LIMIT %s
"""
MY_PURCHASES = f"""
    SELECT {LISTED}, buy_now.bought_at FROM buy_now
    JOIN (SELECT * FROM items UNION ALL SELECT * FROM old_items) AS items ON items.id = buy_now.item_id
    WHERE buy_now.buyer_id = %s AND buy_now.bought_at > now() - interval '30 days'
    ORDER BY buy_now.bought_at DESC LIMIT %s
"""
MY_SOLD_ITEMS = f"""
    SELECT {LISTED} FROM old_items AS items
    WHERE seller_id = %s AND ends_at > now() - interval '30 days' ORDER BY ends_at DESC LIMIT %s
"""
MY_ITEMS = f"SELECT {LISTED} FROM items WHERE seller_id = %s AND ends_at > now() ORDER BY ends_at LIMIT %s"
MY_COMMENTS = """
    SELECT users.nickname AS author, comments.from_user_id, comments.rating, comments.written_at, comments.comment
    FROM comments JOIN users ON users.id = comments.from_user_id
    WHERE comments.to_user_id = %s ORDER BY comments.written_at DESC LIMIT %s
"""

Parameters = tuple[object, ...] | dict[str, object]


class Shop:
    """The auctions, as used by the site's pages."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def categories(self) -> list[DictRow]:
        return await self._rows(CATEGORIES, ())

    async def regions(self) -> list[DictRow]:
        return await self._rows(REGIONS, ())

    async def category(self, category_id: int) -> DictRow:
        return await self._one(CATEGORY, category_id, "category")

    async def region(self, region_id: int) -> DictRow:
        return await self._one(REGION, region_id, "region")

    async def items_of_category(self, category_id: int, page: int) -> list[DictRow]:
        """Return a page of items, and one more if another page follows."""
        return await self._rows(ITEMS_OF_CATEGORY, (category_id, ROWS_PER_PAGE + 1, page * ROWS_PER_PAGE))

    async def items_of_region(self, region_id: int, category_id: int, page: int) -> list[DictRow]:
        """Return a page of items, and one more if another page follows."""
        limits = (ROWS_PER_PAGE + 1, page * ROWS_PER_PAGE)
        return await self._rows(ITEMS_OF_REGION, (category_id, region_id, *limits))

    async def item(self, item_id: int) -> DictRow:
        """Return an item, also if its auction has ended. Raises NotFound."""
        rows = await self._rows(ITEM, (item_id,)) or await self._rows(OLD_ITEM, (item_id,))
        if not rows:
            raise NotFound(f"There is no item {item_id}.")
        return rows[0]

    async def nickname(self, user_id: int) -> str:
        rows = await self._rows(NICKNAME, (user_id,))
        return str(rows[0]["nickname"]) if rows else "a former user who has left"

    async def log_in(self, nickname: str, password: str) -> DictRow:
        """Return the user's id. Raises WrongPassword."""
        rows = await self._rows(LOG_IN, (nickname, password_hash(nickname, password)))
        if not rows:
            raise WrongPassword("Unknown nickname or wrong password.")
        return rows[0]

    async def user_info(self, user_id: int) -> tuple[DictRow, list[DictRow]]:
        """Return a user and the latest comments about that user; uses a second connection for each author."""
        async with self._pool.connection() as connection:
            users = await _fetch(connection, USER, (user_id,))
            if not users:
                raise NotFound(f"There is no user {user_id}.")
            comments = await _fetch(connection, COMMENTS_ABOUT, (user_id, ROWS_PER_PAGE))
            for comment in comments:
                comment["author"] = await self.nickname(comment["from_user_id"])
        return users[0], comments

    async def bid_history(self, item_id: int) -> tuple[DictRow, list[DictRow]]:
        """Return an item and its highest bids; uses a second connection for the name of each bidder."""
        item = await self.item(item_id)
        async with self._pool.connection() as connection:
            bids = await _fetch(connection, BIDS_OF_ITEM, (item_id, ROWS_PER_PAGE))
            for bid in bids:
                bid["bidder"] = await self.nickname(bid["user_id"])
        return item, bids

    async def store_bid(
        self, item_id: int, nickname: str, password: str, amount: Decimal, most_amount: Decimal, quantity: int
    ) -> DictRow:
        """Store a bid and return the updated item. Raises Refused, NotFound or WrongPassword without storing
        anything.

        The bidder is looked up on a second connection, while the first one holds the lock on the item's row.
        """
        async with self._pool.connection() as connection, connection.transaction():
            item = await self._lock(connection, item_id)
            user = await self.log_in(nickname, password)
            if amount < least_bid(item):
                raise Refused(f"The least bid is {least_bid(item):.2f} by now.")
            if most_amount < amount:
                raise Refused("Your highest bid is lower than your bid.")
            _check_quantity(item, quantity)
            await connection.execute(INSERT_BID, (user["id"], item_id, quantity, amount, most_amount))
            await connection.execute(RAISE_ITEM, (amount, item_id))
        return {**item, "highest_bid": amount, "bid_count": item["bid_count"] + 1}

    async def store_purchase(self, item_id: int, nickname: str, password: str, quantity: int) -> DictRow:
        """Sell at the fixed price and return the item. Raises Refused, NotFound, WrongPassword."""
        user = await self.log_in(nickname, password)
        async with self._pool.connection() as connection, connection.transaction():
            item = await self._lock(connection, item_id)
            _check_quantity(item, quantity)
            await connection.execute(INSERT_PURCHASE, (user["id"], item_id, quantity))
            await connection.execute(TAKE_ITEM, {"item_id": item_id, "quantity": quantity})
        return item

    async def store_comment(self, item_id: int, nickname: str, password: str, rating: int, comment: str) -> DictRow:
        """Store a comment about an item's seller, update the seller's rating, and return the item."""
        user, item = await self.log_in(nickname, password), await self.item(item_id)
        async with self._pool.connection() as connection, connection.transaction():
            row = (user["id"], item["seller_id"], item_id, rating, comment)
            await connection.execute(INSERT_COMMENT, row)
            await connection.execute(RATE_USER, (rating, item["seller_id"]))
        return item

    async def store_item(self, nickname: str, password: str, fields: dict[str, object]) -> int:
        """Put an item up for auction and return its id."""
        user = await self.log_in(nickname, password)
        await self.category(int(str(fields["category_id"])))
        rows = await self._rows(INSERT_ITEM, {**fields, "seller_id": user["id"]})
        return int(rows[0]["id"])

    async def store_user(self, nickname: str, password: str, fields: dict[str, object]) -> int:
        """Register a user and return the id. Raises Refused if the nickname is taken."""
        regions = await self._rows(REGION_NAMED, (fields["region"],))
        if not regions:
            raise Refused(f"There is no region called {fields['region']}.")
        row = {
            **fields,
            "region_id": regions[0]["id"],
            "nickname": nickname,
            "password_hash": password_hash(nickname, password),
        }
        try:
            rows = await self._rows(INSERT_USER, row)
        except UniqueViolation as error:
            raise Refused(f"The nickname {nickname} is taken: choose another one.") from error
        return int(rows[0]["id"])

    async def about(self, user_id: int) -> dict[str, list[DictRow]]:
        """Return the six sections about a user."""
        sections: dict[str, LiteralString] = {
            "bids": MY_BIDS,
            "won": MY_WON_ITEMS,
            "bought": MY_PURCHASES,
            "sold": MY_SOLD_ITEMS,
            "selling": MY_ITEMS,
            "comments": MY_COMMENTS,
        }
        return {name: await self._rows(query, (user_id, ROWS_PER_PAGE)) for name, query in sections.items()}

    async def _lock(self, connection: AsyncConnection[DictRow], item_id: int) -> DictRow:
        """Return an item for sale, and lock its row until the transaction ends."""
        rows = await _fetch(connection, LOCKED_ITEM, (item_id,))
        if not rows:
            raise NotFound(f"There is no item {item_id} for sale.")
        if not rows[0]["is_open"]:
            raise Refused("This auction is over.")
        return rows[0]

    async def _one(self, query: LiteralString, number: int, kind: str) -> DictRow:
        rows = await self._rows(query, (number,))
        if not rows:
            raise NotFound(f"There is no {kind} {number}.")
        return rows[0]

    async def _rows(self, query: LiteralString, parameters: Parameters) -> list[DictRow]:
        async with self._pool.connection() as connection:
            return await _fetch(connection, query, parameters)


def least_bid(item: dict[str, Any]) -> Decimal:
    """Return the minimum bid for an item."""
    first: Decimal = item["initial_price"]
    highest: Decimal = item["highest_bid"]
    return highest + 1 if item["bid_count"] else first


def _check_quantity(item: DictRow, quantity: int) -> None:
    if quantity > item["quantity"]:
        raise Refused(f"Only {item['quantity']} of these are left.")


async def _fetch(connection: AsyncConnection[DictRow], query: LiteralString, parameters: Parameters) -> list[DictRow]:
    cursor = await connection.execute(query, parameters)
    return await cursor.fetchall()
