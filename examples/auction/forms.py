"""Parses and validates the forms of visitors. Independent of pages and of the database."""

from __future__ import annotations

import re
from decimal import Decimal
from urllib.parse import parse_qsl

from starlette.requests import Request

from flyball.errors import FlyballError

MOST_BYTES = 100_000
MOST_NUMBER = 2**31 - 1
MOST_PRICE = Decimal(1_000_000_000)


class BadForm(FlyballError):
    """A field is missing or invalid; the text is for the visitor."""


class Fields:
    """The fields of one form."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str, most: int = 100) -> str:
        """Return the text of a field, stripped of whitespace."""
        value = self._values.get(name, "").strip()
        if not value:
            raise BadForm(f"Please fill in: {_label(name)}.")
        if len(value) > most:
            raise BadForm(f"At most {most} characters, please: {_label(name)}.")
        if "\0" in value:
            raise BadForm(f"There is a character that cannot be stored in: {_label(name)}.")
        return value

    def number(self, name: str, least: int = 1, most: int = MOST_NUMBER) -> int:
        """Return an integer."""
        value = self.text(name)
        if not re.fullmatch(r"-?[0-9]{1,10}", value) or not least <= int(value) <= most:
            raise BadForm(f"This has to be a whole number from {least} to {most}: {_label(name)}.")
        return int(value)

    def price(self, name: str) -> Decimal:
        """Return an amount of money."""
        value = self.text(name)
        if not re.fullmatch(r"[0-9]{1,10}([.][0-9]{1,2})?", value) or not 0 < Decimal(value) < MOST_PRICE:
            raise BadForm(f"This has to be an amount like 12.50: {_label(name)}.")
        return Decimal(value)


async def read_form(request: Request) -> Fields:
    """Return the fields of a form that was sent as application/x-www-form-urlencoded."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise BadForm("This is more than the form takes.")
    return Fields(dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=None)))


def _label(name: str) -> str:
    return name.replace("_", " ").removesuffix(" id")
