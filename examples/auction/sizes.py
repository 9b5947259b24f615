"""How big an auction site's database is, and what follows from it: sellers of items, names of users.

Used to fill the database and to simulate its visitors. Does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows there are. Numbers (ids) of generated rows begin at 1 and have no gaps."""

    users: int
    # Those that are for sale.
    items: int
    # Those whose auction is over: their numbers come after those of the items.
    old_items: int
    categories: int = 20
    regions: int = 62
    # The most bids an item has; half as many is usual.
    bids_per_item: int = 19
    # Maximum number of comments about a seller; half of it is usual.
    comments_per_user: int = 20
    # The longest description; half as long is usual.
    description_bytes: int = 8192
    # Whether foreign keys have an index each, as in RUBiS. Without, a small database works as hard as a big one.
    has_all_indexes: bool = True

    @property
    def sellers(self) -> int:
        """How many of the users sell: the first ones."""
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
    # Neighbours have different sellers: 7919 is prime, and divides no usual number of sellers.
    return item_id * 7919 % sizes.sellers + 1


def category_name(category_id: int) -> str:
    """Return what a category is called."""
    return CATEGORIES[category_id - 1] if category_id <= len(CATEGORIES) else f"Category {category_id}"


def region_name(region_id: int) -> str:
    """Return what a region is called."""
    return REGIONS[region_id - 1] if region_id <= len(REGIONS) else f"Region {region_id}"


def nickname_of(user_id: int) -> str:
    """Return what a generated user is called."""
    return f"user{user_id}"


def password_of(user_id: int) -> str:
    """Return the password of a generated user. It is easy to guess: such users are for tests only."""
    return f"password{user_id}"
