"""Transition tables between pages of the auction site, one for each mix of interactions, and random walks on them.

The shares of the interactions are those of RUBiS's two mixes; sessions have about 50 pages. Does no I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from random import Random
from typing import Literal

Mix = Literal["bidding", "browsing"]
# Transition probabilities from each interaction. The remainder to 1 ends the session.
Table = Mapping[str, Mapping[str, float]]

START = "home"

# About 9 % of the interactions write.
BIDDING: Table = {
    "home": {"browse": 0.54, "register": 0.20, "sell": 0.11, "about_me_auth": 0.14},
    "register": {"register_user": 0.90, "home": 0.09},
    "register_user": {"home": 0.30, "browse": 0.69},
    "browse": {"browse_categories": 0.66, "browse_regions": 0.30, "home": 0.03},
    "browse_categories": {"search_in_category": 0.97, "browse": 0.02},
    "search_in_category": {"search_in_category": 0.32, "view_item": 0.52, "browse": 0.11, "home": 0.03},
    "browse_regions": {"browse_categories_in_region": 0.95, "browse": 0.04},
    "browse_categories_in_region": {"search_in_region": 0.97, "browse": 0.02},
    "search_in_region": {"search_in_region": 0.64, "view_item": 0.29, "browse": 0.05, "home": 0.01},
    "view_item": {
        "put_bid_auth": 0.41,
        "search_in_category": 0.12,
        "user_info": 0.17,
        "bid_history": 0.13,
        "buy_now_auth": 0.09,
        "view_item": 0.03,
        "browse": 0.03,
    },
    "bid_history": {"put_bid_auth": 0.20, "user_info": 0.35, "view_item": 0.20, "search_in_category": 0.23},
    "user_info": {"put_comment_auth": 0.29, "view_item": 0.25, "search_in_category": 0.34, "browse": 0.10},
    "put_bid_auth": {"put_bid": 0.98},
    "put_bid": {"store_bid": 0.75, "view_item": 0.14, "search_in_category": 0.09},
    "store_bid": {"view_item": 0.21, "search_in_category": 0.36, "browse": 0.17, "about_me_auth": 0.22},
    "buy_now_auth": {"buy_now": 0.97},
    "buy_now": {"store_buy_now": 0.80, "view_item": 0.18},
    "store_buy_now": {"about_me_auth": 0.40, "browse": 0.35, "home": 0.15},
    "put_comment_auth": {"put_comment": 0.97},
    "put_comment": {"store_comment": 0.92, "user_info": 0.07},
    "store_comment": {"user_info": 0.15, "browse": 0.45, "about_me_auth": 0.30},
    "sell": {"select_category": 0.97},
    "select_category": {"sell_item_form": 0.97},
    "sell_item_form": {"register_item": 0.92, "select_category": 0.06},
    "register_item": {"sell": 0.35, "about_me_auth": 0.35, "home": 0.25},
    "about_me_auth": {"about_me": 0.98},
    "about_me": {"view_item": 0.35, "browse": 0.33, "sell": 0.12, "put_comment_auth": 0.04, "home": 0.10},
}

# Read-only.
BROWSING: Table = {
    "home": {"browse": 0.99},
    "browse": {"browse_categories": 0.66, "browse_regions": 0.33},
    "browse_categories": {"search_in_category": 0.99},
    "search_in_category": {"search_in_category": 0.45, "view_item": 0.46, "browse": 0.07},
    "browse_regions": {"browse_categories_in_region": 0.99},
    "browse_categories_in_region": {"search_in_region": 0.99},
    "search_in_region": {"search_in_region": 0.56, "view_item": 0.37, "browse": 0.05},
    "view_item": {
        "view_item": 0.34,
        "search_in_category": 0.37,
        "search_in_region": 0.11,
        "user_info": 0.05,
        "bid_history": 0.05,
        "browse": 0.04,
    },
    "bid_history": {"view_item": 0.50, "search_in_category": 0.28, "user_info": 0.20},
    "user_info": {"view_item": 0.50, "search_in_category": 0.48},
}

MIXES: dict[str, Table] = {"bidding": BIDDING, "browsing": BROWSING}


class Walk:
    """A sequence of visitors: each `step` is the next page of a session, or the first of a new one."""

    def __init__(self, table: Table, random: Random, only: Collection[str] | None = None) -> None:
        """Walk on the table. With `only`, all other pages are skipped without taking time.

        Raises ValueError if the table has none of these pages.
        """
        if only is not None and not table.keys() & set(only):
            raise ValueError(f"none of {', '.join(only)} is in the table")
        self._table = {state: (tuple(row), tuple(itertools.accumulate(row.values()))) for state, row in table.items()}
        self._random = random
        self._only = only
        self._state: str | None = None

    def step(self) -> tuple[str, bool]:
        """Return the next interaction, and whether it starts a new session."""
        is_new = False
        while True:
            self._state = self._next()
            if self._state is None:
                self._state, is_new = START, True
            if self._only is None or self._state in self._only:
                return self._state, is_new

    def _next(self) -> str | None:
        """Return the next state; None at the end of a session, and before the first."""
        if self._state is None:
            return None
        states, bounds = self._table[self._state]
        drawn = self._random.random()
        return next((state for state, bound in zip(states, bounds, strict=True) if drawn < bound), None)
