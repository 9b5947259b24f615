"""The size of an auction site's database, and what depends on it: sellers of items, names of users.

Used to fill the database and to simulate its visitors. Does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows. Ids of generated rows start at 1 and have no gaps."""

    users: int
    # Items for sale.
    items: int
    # Items whose auction has ended: their ids follow those of the items for sale.
    old_items: int
    categories: int = 20
    regions: int = 62
    # Maximum number of bids for an item; the average is half of it.
    bids_per_item: int = 19
    # Maximum number of comments about a seller; the average is half of it.
    comments_per_user: int = 20
    # Maximum length of a description; the average is half of it.
    description_bytes: int = 8192
    # Whether foreign keys are indexed, as in RUBiS. Without indexes a small database has the load of a big one.
    has_all_indexes: bool = True

    @property
    def sellers(self) -> int:
        """Number of users who sell: those with the lowest ids."""
        return max(1, self.users // 10)


CATEGORIES = (
    *("Antiques & Art", "Books", "Business & Office", "Clothing & Shoes", "Coins", "Collectables", "Computers"),
    *("Dolls & Bears", "Home & Garden", "Jewellery & Watches", "Films & DVDs", "Music", "Photography"),
    *("Pottery & Glass", "Sports", "Stamps", "Tickets & Travel", "Toys & Games", "Electronics", "Everything else"),
)
REGIONS = (
    *("Aberdeen", "Athens", "Barcelona", "Basel", "Belfast", "Bergen", "Berlin", "Bern", "Bologna", "Bordeaux"),
    *("Bremen", "Bristol", "Brno", "Brussels", "Budapest", "Cardiff", "Cologne", "Copenhagen", "Cork", "Dresden"),
    *("Dublin", "Edinburgh", "Florence", "Gdańsk", "Geneva", "Ghent", "Glasgow", "Gothenburg", "Graz", "Hamburg"),
    *("Helsinki", "Kraków", "Leeds", "Leipzig", "Lille", "Linz", "Lisbon", "Liverpool", "Ljubljana", "London"),
    *("Lyon", "Madrid", "Malmö", "Manchester", "Marseille", "Milan", "Munich", "Nantes", "Naples", "Oslo", "Paris"),
    *("Porto", "Prague", "Riga", "Rome", "Rotterdam", "Seville", "Stockholm", "Tallinn", "Turin", "Vienna", "Zürich"),
)

SMALL = Sizes(
    users=50_000,
    items=24_000,
    old_items=20_000,
    description_bytes=1000,
    has_all_indexes=False,
)
RUBIS = Sizes(users=1_000_000, items=32_667, old_items=1_000_000)


def seller_of(item_id: int, sizes: Sizes) -> int:
    """Return the seller of a generated item."""
    # Neighbours have different sellers: 7919 is prime, and does not divide any usual number of sellers.
    return item_id * 7919 % sizes.sellers + 1


def category_name(category_id: int) -> str:
    """Return the name of a category."""
    return CATEGORIES[category_id - 1] if category_id <= len(CATEGORIES) else f"Category {category_id}"


def region_name(region_id: int) -> str:
    """Return the name of a region."""
    return REGIONS[region_id - 1] if region_id <= len(REGIONS) else f"Region {region_id}"


def nickname_of(user_id: int) -> str:
    """Return the name of a generated user."""
    return f"user{user_id}"


def password_of(user_id: int) -> str:
    """Return the password of a generated user. It is easy to guess: such users are for tests only."""
    return f"password{user_id}"
