"""Those who wait for messages: consumers, which lease many, and waiting readers, which take one and are done."""

from __future__ import annotations

from collections import OrderedDict

from flyball.engine.credit import Credit
from flyball.model import Message, Selector

_ANYBODY = -1
"""Stands for every receiver; no client has this id."""

_Place = tuple[int | None, int | None, int | None]
"""What the consumers that stand there wait for: receiver (None: addressed to nobody), sender, context."""


class Consumer:
    """One who is sent messages of a queue as they come, up to its credit.

    A consumer that `takes` removes messages instead of leasing them, gets one and is done.
    """

    __slots__ = ("credit", "id", "is_cancelled", "leases", "owner", "queue_id", "selector", "takes", "turn")

    def __init__(
        self, consumer_id: int, queue_id: int, selector: Selector, credit: Credit, owner: object, takes: bool
    ) -> None:
        self.id = consumer_id
        self.queue_id = queue_id
        self.selector = selector
        self.credit = credit
        self.owner = owner
        """Whoever asked; the engine only hands it back."""
        self.takes = takes
        self.leases: dict[int, Message] = {}
        self.is_cancelled = False
        self.turn = 0
        """When it joined the line of those who found nothing to take; 0 while it does not stand there."""

    def wants(self, now_us: int) -> bool:
        return not self.is_cancelled and len(self.leases) < self.credit.window(now_us)


class Line:
    """The consumers of a queue that found nothing to take, in the order of their turn.

    They stand where the messages that they may see come by, so that thousands who wait for something else do
    not slow an arrival down.
    """

    __slots__ = ("_last_turn", "_places")

    def __init__(self) -> None:
        self._places: dict[_Place, OrderedDict[int, Consumer]] = {}
        """None of them is empty."""
        self._last_turn = 0

    def __bool__(self) -> bool:
        return bool(self._places)

    def join(self, consumer: Consumer) -> None:
        """Let the consumer wait at the end; where it is if it waits already."""
        if consumer.turn:
            return
        self._last_turn += 1
        consumer.turn = self._last_turn
        for place in _places_of(consumer.selector):
            standing = self._places.get(place)
            if standing is None:
                standing = self._places[place] = OrderedDict()
            standing[consumer.id] = consumer

    def leave(self, consumer: Consumer) -> None:
        if not consumer.turn:
            return
        consumer.turn = 0
        for place in _places_of(consumer.selector):
            standing = self._places[place]
            del standing[consumer.id]
            if not standing:
                del self._places[place]

    def match(self, message: Message, now_us: int) -> Consumer | None:
        """Take the next consumer out of the line that may see the message and wants one."""
        best: Consumer | None = None
        for receiver in (None,) if message.receiver is None else (message.receiver, _ANYBODY):
            for sender in (None,) if message.sender is None else (message.sender, None):
                for context in (None,) if message.context is None else (message.context, None):
                    consumer = self._head((receiver, sender, context), now_us)
                    if consumer is not None and (best is None or consumer.turn < best.turn):
                        best = consumer
        if best is not None:
            self.leave(best)
        return best

    def _head(self, place: _Place, now_us: int) -> Consumer | None:
        while place in self._places:
            consumer = next(iter(self._places[place].values()))
            if consumer.wants(now_us):
                return consumer
            # It is full or gone; it joins again when it has room.
            self.leave(consumer)
        return None


def _places_of(selector: Selector) -> list[_Place]:
    reader = _ANYBODY if selector.reader is None else selector.reader
    places: list[_Place] = [(reader, selector.sender, selector.context)]
    if selector.reader is None or selector.unaddressed:
        places.append((None, selector.sender, selector.context))
    return places
