"""Creates the client of a task or planner, and explains its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flyball.client import ConnectionFailed
from flyball.client.sync import Client
from flyball.errors import FlyballError, NotPermitted, QueueNotFound
from flyball.spark_source.options import Access, InvalidOption


class SourceFailed(FlyballError):
    """The node is unreachable, or has no such queue."""


def new_client(access: Access) -> Client:
    """Return a client, not yet connected. Raises InvalidOption for an invalid address."""
    try:
        return Client.connect(
            access.address,
            user=access.user,
            password=access.password,
            vhost=access.vhost,
            http_url=access.http_url,
        )
    except FlyballError as error:
        raise InvalidOption(f"option 'address' or 'httpUrl': {error}") from None


@contextmanager
def explained(access: Access) -> Iterator[None]:
    """Translate errors of the client for users of Spark."""
    try:
        yield
    except ConnectionFailed as error:
        raise SourceFailed(
            f"{error}: check that `flyball serve` runs there, and that this is its AMQP address"
        ) from None
    except NotPermitted as error:
        raise SourceFailed(
            f"{error}: check the options 'user' and 'password', and `flyball permission list`"
        ) from None
    except QueueNotFound as error:
        raise SourceFailed(
            f"no queue {error.queue!r} at {access.shown}: create it with `flyball queue create`"
        ) from None


@contextmanager
def connected(access: Access) -> Iterator[Client]:
    """Connect for the duration of the block."""
    with explained(access), new_client(access) as client:
        yield client
