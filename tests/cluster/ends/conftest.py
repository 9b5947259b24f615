"""Domains for tests: each on a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.ends.site import Site


@pytest.fixture
def new_site(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Callable[..., Site]]:
    """Start a domain with these nodes; they are ended after the test."""
    with ExitStack() as sites:

        def start(*names: str, **flags: object) -> Site:
            site = sites.enter_context(Site(tmp_path, new_database(), **flags))
            site.start(*names)
            return site

        yield start
