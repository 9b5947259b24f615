"""Fills an auction site's database with generated users, items, bids and comments. The same seed gives the same rows.

Only times depend on when it runs: auctions end between an hour and a week from now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import islice
from random import Random

import psycopg

from flyball.lab.auction.sizes import (
    SMALL,
    Sizes,
    category_name,
    nickname_of,
    password_of,
    region_name,
    seller_of,
)

# Called with the current step and the completed share of the work, 0 to 1.
Progress = Callable[[str, float], None]

ROWS_AT_ONCE = 2000
HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
WEEK = timedelta(days=7)
FIRST_NAMES = (
    "Ada",
    "Alan",
    "Barbara",
    "Claude",
    "Donald",
    "Edsger",
    "Frances",
    "Grace",
    "James",
    "Karen",
    "Niklaus",
)
LAST_NAMES = ("Archer", "Baker", "Carter", "Dyer", "Fisher", "Glover", "Hunter", "Mason", "Miller", "Smith", "Weaver")
KINDS = ("lamp", "clock", "chair", "radio", "camera", "book", "bicycle", "vase", "watch", "coat", "guitar", "map")
LOOKS = ("Old", "New", "Blue", "Small", "Rare", "Plain", "Fine", "Brass", "Wooden", "Broken", "Golden", "Signed")
SENTENCES = (
    *("Never used.", "One owner only.", "It works, most of the time.", "Found in my grandmother's cellar."),
    *("No scratches to speak of.", "Comes in its original box.", "The box is missing.", "Sold as seen."),
    *("Please ask before you bid.", "Sent within three days.", "A cat has slept on it.", "Worth every penny."),
    *("I have two of them and need one.", "My loss is your gain.", "There will not be another one like this."),
    *("It was a present, and I never liked it.", "Ask your dentist about it.", "As good as new."),
)
COMMENTS = (
    *((5, "Gladly again!"), (4, "Quick and friendly."), (3, "Came as described."), (0, "It is what it is.")),
    *((-3, "Not what I had hoped."), (-5, "I am still waiting.")),
)
# Number of users interested in an item; they outbid each other.
CIRCLE = 8


async def generate(dsn: str, sizes: Sizes = SMALL, seed: int = 1, progress: Progress | None = None) -> None:
    """Create the site's tables, replacing existing ones, and fill them, in one transaction."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(_sql("schema.sql"))
        meter = _Meter(_row_counts(sizes), progress)
        for table, columns, rows in _tables(sizes, seed, datetime.now(UTC)):
            await _copy(connection, table, columns, rows, meter)
        meter.tell("indexes")
        await connection.execute(_sql("indexes.sql"))
        if sizes.has_all_indexes:
            await connection.execute(_sql("more_indexes.sql"))
        await _number_on(connection, sizes)
        meter.tell("statistics")
        await connection.execute("ANALYZE")
        meter.tell("writing to disk")
    meter.end()


def password_hash(nickname: str, password: str) -> bytes:
    """Return the stored hash of a password. Cheap, since every login of a benchmark computes it."""
    return hashlib.sha256(f"{nickname}:{password}".encode()).digest()


def _sql(name: str) -> bytes:
    return files("flyball.lab.auction").joinpath(name).read_bytes()


def _row_counts(sizes: Sizes) -> dict[str, int]:
    """Return the approximate number of rows of each table."""
    items = sizes.items + sizes.old_items
    return {
        "users": sizes.users,
        "items": sizes.items,
        "old_items": sizes.old_items,
        "bids": items * sizes.bids_per_item // 2,
        "buy_now": sizes.old_items // 10,
        "comments": sizes.sellers * sizes.comments_per_user // 2,
    }


@dataclass(slots=True)
class _Meter:
    """Counts generated rows and reports progress."""

    counts: dict[str, int]
    progress: Progress | None
    done: int = field(default=0, init=False)

    def add(self, table: str, rows: int) -> None:
        self.done += rows
        self.tell(table)

    def tell(self, what: str) -> None:
        if self.progress is not None:
            # The steps after the rows take about a fifth of the time.
            self.progress(what, min(0.8, 0.8 * self.done / sum(self.counts.values())))

    def end(self) -> None:
        if self.progress is not None:
            self.progress("done", 1.0)


# Name, columns, and rows in the format of COPY.
Table = tuple[str, str, Iterator[str]]


def _tables(sizes: Sizes, seed: int, now: datetime) -> Iterator[Table]:
    def random(table: str) -> Random:
        """Return a table's random generator: its rows do not depend on the number of rows of another table."""
        return Random(f"{seed} {table}")

    item_columns = (
        "id, name, description, initial_price, quantity, reserve_price, buy_now_price, bid_count, highest_bid,"
        " starts_at, ends_at, seller_id, category_id"
    )
    user_columns = "id, first_name, last_name, nickname, password_hash, email, rating, created_at, region_id"
    first_old = sizes.items + 1
    live, old = range(1, first_old), range(first_old, first_old + sizes.old_items)
    auctions = _Auctions(sizes, now)
    yield "categories", "id, name", _named(sizes.categories, category_name)
    yield "regions", "id, name", _named(sizes.regions, region_name)
    yield "users", user_columns, _users(random("users"), sizes, now)
    yield "items", item_columns, auctions.rows(random("items"), live, is_over=False)
    yield "old_items", item_columns, auctions.rows(random("old items"), old, is_over=True)
    yield "bids", "user_id, item_id, quantity, amount, most_amount, made_at", auctions.bids(random("bids"))
    yield "buy_now", "buyer_id, item_id, quantity, bought_at", _purchases(random("buy_now"), sizes, old, now)
    comment_columns = "from_user_id, to_user_id, item_id, rating, written_at, comment"
    yield "comments", comment_columns, _comments(random("comments"), sizes, now)


async def _copy(
    connection: psycopg.AsyncConnection, table: str, columns: str, rows: Iterator[str], meter: _Meter
) -> None:
    statement = f"COPY {table} ({columns}) FROM STDIN WITH (FREEZE)"
    async with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            await copy.write("".join(chunk))
            meter.add(table, len(chunk))


async def _number_on(connection: psycopg.AsyncConnection, sizes: Sizes) -> None:
    """Set the sequences to continue after the ids of the copied rows."""
    next_numbers = {"users": sizes.users + 1, "items": sizes.items + sizes.old_items + 1}
    for table, number in next_numbers.items():
        await connection.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s, false)", (table, number))


def _named(count: int, name_of: Callable[[int], str]) -> Iterator[str]:
    for number in range(1, count + 1):
        yield f"{number}\t{name_of(number)}\n"


def _users(random: Random, sizes: Sizes, now: datetime) -> Iterator[str]:
    days = [(now - timedelta(days=day)).isoformat() for day in range(1, 1000)]
    for number in range(1, sizes.users + 1):
        nickname = nickname_of(number)
        hashed = password_hash(nickname, password_of(number)).hex()
        first, last = FIRST_NAMES[int(random.random() * 11)], LAST_NAMES[int(random.random() * 11)]
        rating, region_id = int(random.random() * 100), 1 + int(random.random() * sizes.regions)
        created_at = days[int(random.random() * len(days))]
        yield (
            f"{number}\t{first}\t{last}\t{nickname}\t\\\\x{hashed}\t{nickname}@example.org\t{rating}\t{created_at}"
            f"\t{region_id}\n"
        )


@dataclass(slots=True)
class _Auctions:
    """Generates items, and then bids that match them."""

    sizes: Sizes
    now: datetime
    # By item.
    bid_counts: list[int] = field(default_factory=list, init=False)
    prices: list[int] = field(default_factory=list, init=False)

    def rows(self, random: Random, numbers: range, is_over: bool) -> Iterator[str]:
        sizes, prose = self.sizes, _Prose(self.sizes.description_bytes)
        for number in numbers:
            price, bid_count = 1 + int(random.random() * 1000), int(random.random() * (sizes.bids_per_item + 1))
            self.bid_counts.append(bid_count)
            self.prices.append(price)
            ends_s = -4 * WEEK_S * random.random() if is_over else HOUR_S + (WEEK_S - HOUR_S) * random.random()
            ends_at = self.now + timedelta(seconds=int(ends_s))
            starts_at = min(self.now, ends_at) - timedelta(seconds=int(WEEK_S * random.random()))
            name = f"{LOOKS[int(random.random() * 12)]} {KINDS[int(random.random() * 12)]} no. {number}"
            yield (
                f"{number}\t{name}\t{prose.piece(random)}\t{price}\t{1 + int(random.random() * 10)}"
                f"\t{price * 1.2:.2f}\t{price * 3}\t{bid_count}\t{price + bid_count if bid_count else 0}"
                f"\t{starts_at.isoformat()}\t{ends_at.isoformat()}\t{seller_of(number, sizes)}"
                f"\t{1 + int(random.random() * sizes.categories)}\n"
            )

    def bids(self, random: Random) -> Iterator[str]:
        """Yield bids, each higher than the item's previous one. Bids of an item are interleaved with others', as in
        reality.
        """
        users, turns = self.sizes.users, self.sizes.bids_per_item
        for turn in range(1, turns + 1):
            made_at = (self.now - WEEK * (1 - turn / (turns + 1))).isoformat()
            for item_id, (bid_count, price) in enumerate(zip(self.bid_counts, self.prices, strict=True), 1):
                if turn <= bid_count:
                    user_id = 1 + (item_id * 31 + int(random.random() * CIRCLE) * 6271) % users
                    amount = price + turn
                    yield f"{user_id}\t{item_id}\t1\t{amount}\t{2 * amount}\t{made_at}\n"


def _purchases(random: Random, sizes: Sizes, old: range, now: datetime) -> Iterator[str]:
    for item_id in old[::10]:
        bought_at = now - timedelta(days=1 + int(random.random() * 27))
        yield f"{1 + int(random.random() * sizes.users)}\t{item_id}\t1\t{bought_at.isoformat()}\n"


def _comments(random: Random, sizes: Sizes, now: datetime) -> Iterator[str]:
    days = [(now - timedelta(days=day)).isoformat() for day in range(1, 1000)]
    items = sizes.items + sizes.old_items
    for seller_id in range(1, sizes.sellers + 1):
        for _ in range(int(random.random() * (sizes.comments_per_user + 1))):
            from_id, item_id = 1 + int(random.random() * sizes.users), 1 + int(random.random() * items)
            (rating, comment), day = COMMENTS[int(random.random() * 6)], days[int(random.random() * len(days))]
            yield f"{from_id}\t{seller_id}\t{item_id}\t{rating}\t{day}\t{comment}\n"


class _Prose:
    """Descriptions: pieces of one long text without characters that need escaping."""

    def __init__(self, most_bytes: int) -> None:
        random = Random(0)
        self._most_bytes = most_bytes
        self._text = ""
        self._starts: list[int] = []
        while len(self._text) < 2 * most_bytes:
            if len(self._text) <= most_bytes:
                self._starts.append(len(self._text))
            self._text += random.choice(SENTENCES) + " "

    def piece(self, random: Random) -> str:
        """Return some whole sentences, or a part of one if it does not fit."""
        start = self._starts[int(random.random() * len(self._starts))]
        end = start + int(random.random() * self._most_bytes)
        return self._text[start : self._text.rfind(".", start, end) + 1 or end]
