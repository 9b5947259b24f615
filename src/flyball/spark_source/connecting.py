"""A client for one task or one planner, and what goes wrong there in one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flyball.client import ConnectionFailed
from flyball.client.sync import Client
from flyball.errors import FlyballError, NotPermitted, QueueNotFound
from flyball.spark_source.options import Access, InvalidOption


class SourceFailed(FlyballError):
    """The node cannot be reached, or has no such queue."""


def new_client(access: Access) -> Client:
    """Return a client that is not connected yet. Raises InvalidOption if the address cannot be one."""
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
    """Turn what the client raises into a line for the user of Spark."""
    try:
        yield
    except ConnectionFailed as error:
        raise SourceFailed(f"{error}. Does `flyball serve` run there, and is it its AMQP address?") from None
    except NotPermitted as error:
        raise SourceFailed(f"{error}. See the options 'user' and 'password', and `flyball permission list`") from None
    except QueueNotFound as error:
        raise SourceFailed(
            f"no queue {error.queue!r} at {access.shown}: create it with `flyball queue create`"
        ) from None


@contextmanager
def connected(access: Access) -> Iterator[Client]:
    """Connect for the block."""
    with explained(access), new_client(access) as client:
        yield client
