"""Messages over plain Telesto, for servers that do not know the extension: what it has, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.model import Order
from tests.telesto_client.errors import NotSupported
from tests.telesto_client.link import Link, expect
from tests.telesto_client.messages import (
    MAX_INT,
    Draft,
    ReceivedMessage,
    check_nonzero,
    from_plain,
    to_plain,
)

_READ_MODES = {None: wire.ReadMode.PRIORITY, Order.PRIORITY: wire.ReadMode.PRIORITY, Order.NEWEST: wire.ReadMode.TIME}


def is_refusal(answer: wire.Packet, code: ErrorCode) -> bool:
    """Whether the answer is that error."""
    return isinstance(answer, wire.Error) and answer.code == code


async def put(link: Link, queue_ids: Sequence[int], draft: Draft, subject: int | str) -> None:
    """Put the message into all the queues."""
    packet = wire.PutMessage(0, to_plain(draft, queue_ids[0]), list(queue_ids[1:]))
    expect(await link.exchange(packet, "put"), wire.Success, subject)


def reading_packet(queue_id: int, selector: wire.WireSelector, order: Order | None) -> wire.Packet:
    """Return the packet that takes one message so selected. Raises NotSupported if there is none."""
    if selector.context is not None:
        if selector.unaddressed or selector.sender is not None:
            raise NotSupported("reading by context, unless only what is addressed to this client is read")
        return wire.ReadResponse(0, queue_id, check_nonzero("context", selector.context, MAX_INT))
    if not selector.unaddressed:
        raise NotSupported("reading only what is addressed to this client, without a context")
    mode = _READ_MODES.get(order)
    if mode is None:
        raise NotSupported("reading the oldest message first")
    return wire.ReadMessage(0, queue_id, selector.sender or 0, mode)


async def read(link: Link, packet: wire.Packet, *, repeatable: bool = False) -> ReceivedMessage | None:
    """Take one message, None if there is none."""
    answer = await link.exchange(packet, "take", repeatable=repeatable)
    if is_refusal(answer, ErrorCode.NO_MESSAGES_RETRIEVED):
        return None
    return from_plain(expect(answer, wire.ReadMessageResponse).message)
