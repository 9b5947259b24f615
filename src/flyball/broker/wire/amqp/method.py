"""What the generated classes of AMQP's methods have in common."""

from __future__ import annotations

from typing import ClassVar


class Method:
    """What all methods have. Two are equal if they are the same method with the same fields."""

    __slots__ = ("channel",)

    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    # The attributes besides the channel, in the order of the constructor.
    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, channel: int) -> None:
        self.channel = channel

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> Method:
        """Return the method whose fields are `data[at:end]`; raises AmqpError if they are not exactly that."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the method frame. Content, if the method has it, goes into frames of its own."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Method)
            and type(other) is type(self)
            and other.channel == self.channel
            and all(getattr(other, name) == getattr(self, name) for name in self.FIELDS)
        )

    def __hash__(self) -> int:
        return hash((self.NAME, self.channel))

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.FIELDS])
        return f"<{self.NAME} on channel {self.channel}: {fields}>"
