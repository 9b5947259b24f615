"""The auction site's made-up data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import psycopg

from flyball.lab.auction.generate import generate
from flyball.lab.auction.sizes import RUBIS, SMALL, nickname_of, region_name, seller_of
from tests.lab.auction.shops import TINY

Ask = Callable[[str], list[tuple[object, ...]]]

ROWS = """
    SELECT users.nickname, items.name, items.description, items.initial_price, bids.amount, comments.comment
    FROM items JOIN bids ON bids.item_id = items.id JOIN users ON users.id = bids.user_id
    LEFT JOIN comments ON comments.to_user_id = items.seller_id
    ORDER BY bids.id, comments.id
"""


def rows_of(dsn: str, seed: int) -> list[tuple[object, ...]]:
    asyncio.run(generate(dsn, TINY, seed))
    with psycopg.connect(dsn) as connection:
        return connection.execute(ROWS.encode()).fetchall()


def indexes_of(dsn: str) -> set[object]:
    with psycopg.connect(dsn) as connection:
        return {
            name for (name,) in connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")
        }


def test_the_same_seed_gives_the_same_rows_and_another_one_does_not(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    first = rows_of(dsn, seed=1)
    assert len(first) > 100
    assert rows_of(dsn, seed=2) != first
    assert rows_of(dsn, seed=1) == first


def test_every_table_has_the_rows_that_its_size_asks_for(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    asyncio.run(generate(dsn, TINY))
    with psycopg.connect(dsn) as connection:

        def count(table: str) -> int:
            return int(connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()[0][0])

        assert [count(table) for table in ("users", "items", "old_items")] == [300, 120, 40]
        assert [count(table) for table in ("categories", "regions", "buy_now")] == [3, 4, 4]
        # No user has more than the maximum, and half of it is usual.
        assert 0.35 < count("bids") / (160 * TINY.bids_per_item) < 0.65
        assert 0.35 < count("comments") / (TINY.sellers * TINY.comments_per_user) < 0.65


def test_items_agree_with_their_bids(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    asyncio.run(generate(dsn, TINY))
    with psycopg.connect(dsn) as connection:
        wrong = connection.execute(
            """
            SELECT items.id FROM (SELECT * FROM items UNION ALL SELECT * FROM old_items) AS items
            LEFT JOIN bids ON bids.item_id = items.id
            GROUP BY items.id, items.bid_count, items.highest_bid
            HAVING count(bids.id) <> items.bid_count OR coalesce(max(bids.amount), 0) <> items.highest_bid
            """
        ).fetchall()
    assert wrong == []


def test_items_are_open_for_an_hour_at_least_and_old_ones_are_over(ask: Ask) -> None:
    assert ask("SELECT min(ends_at) > now() + interval '55 minutes' FROM items WHERE id <= 120") == [(True,)]
    assert ask("SELECT max(ends_at) <= now() FROM old_items") == [(True,)]


def test_who_sells_what_is_known_without_asking(ask: Ask) -> None:
    sellers = ask("SELECT id, seller_id FROM items WHERE id <= 120 UNION ALL SELECT id, seller_id FROM old_items")
    assert all(seller_of(int(str(item_id)), TINY) == seller_id for item_id, seller_id in sellers)
    assert len({seller_id for _, seller_id in sellers}) == TINY.sellers


def test_new_rows_are_numbered_after_the_made_up_ones(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    asyncio.run(generate(dsn, TINY))
    with psycopg.connect(dsn) as connection:
        number = connection.execute(
            "INSERT INTO items (name, description, initial_price, quantity, reserve_price, buy_now_price, ends_at,"
            " seller_id, category_id) VALUES ('', '', 1, 1, 1, 1, now(), 1, 1) RETURNING id"
        ).fetchall()
    assert number == [(161,)]


def test_only_the_small_database_goes_without_indexes_of_foreign_keys(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    asyncio.run(generate(dsn, TINY))
    assert "bids_by_item" in indexes_of(dsn)
    asyncio.run(generate(dsn, replace(TINY, has_all_indexes=False)))
    assert "bids_by_item" not in indexes_of(dsn)
    assert RUBIS.has_all_indexes
    assert not SMALL.has_all_indexes


def test_progress_rises_to_the_whole(new_database: Callable[[], str]) -> None:
    told: list[tuple[str, float]] = []
    asyncio.run(generate(new_database(), TINY, progress=lambda what, ratio: told.append((what, ratio))))
    ratios = [ratio for _, ratio in told]
    assert ratios == sorted(ratios)
    assert told[-1] == ("done", 1.0)
    assert {"users", "items", "bids", "comments", "indexes"} <= {what for what, _ in told}


def test_descriptions_stay_within_their_size(ask: Ask) -> None:
    [(longest,)] = ask("SELECT max(octet_length(description)) FROM items WHERE id <= 120")
    assert 200 < int(str(longest)) <= TINY.description_bytes


def test_there_are_names_for_any_number_of_regions() -> None:
    assert region_name(1) == "Aberdeen"
    assert region_name(62) == "Zürich"
    assert region_name(63) == "Region 63"
    assert nickname_of(7) == "user7"
