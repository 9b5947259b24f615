"""The base of the commands of an AMQP connection, and of the generated classes of its methods."""

from __future__ import annotations

from typing import ClassVar


class Command:
    """A decoded command. Two are equal if they are of the same class and have the same fields."""

    __slots__ = ("channel",)

    # The ids of the method that it is or belongs to; 0 if there is none.
    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    # The attributes besides the channel, in the order of the constructor.
    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, channel: int) -> None:
        self.channel = channel

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Command)
            and type(other) is type(self)
            and other.channel == self.channel
            and all(getattr(other, name) == getattr(self, name) for name in self.FIELDS)
        )

    def __hash__(self) -> int:
        return hash((self.NAME, self.channel))

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.FIELDS])
        return f"<{self.NAME} on channel {self.channel}: {fields}>"


class Method(Command):
    """The base of all methods."""

    __slots__ = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> Method:
        """Return the method whose fields are `data[at:end]`. Raises AmqpError for malformed or additional data."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the method frame. Content, if any, is sent in separate frames."""
        raise NotImplementedError
