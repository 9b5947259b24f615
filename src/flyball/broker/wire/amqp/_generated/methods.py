"""The methods of AMQP 0-9-1 and of RabbitMQ's extensions, one class each.

Made by scripts/generate-wire from protocol.txt: change that, not this.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from flyball.broker.wire.amqp.fields import (
    method_frame,
    read_longstr,
    read_shortstr,
    skip_longstr,
    skip_shortstr,
    write_longstr,
    write_shortstr,
    wrong_size,
)
from flyball.broker.wire.amqp.method import Method
from flyball.broker.wire.amqp.tables import Value, read_table, write_table

_U16: Final = struct.Struct(">H")
_U16_U16: Final = struct.Struct(">HH")
_U16_U16_U16: Final = struct.Struct(">HHH")
_U16_U16_U16_U32_U16: Final = struct.Struct(">HHHIH")
_U16_U16_U32: Final = struct.Struct(">HHI")
_U16_U16_U32_U16_U8: Final = struct.Struct(">HHIHB")
_U16_U16_U64_U8: Final = struct.Struct(">HHQB")
_U16_U16_U8: Final = struct.Struct(">HHB")
_U16_U16_U8_U8: Final = struct.Struct(">HHBB")
_U16_U32_U16: Final = struct.Struct(">HIH")
_U32: Final = struct.Struct(">I")
_U32_U16_U8: Final = struct.Struct(">IHB")
_U32_U32: Final = struct.Struct(">II")
_U64_U8: Final = struct.Struct(">QB")
_U8: Final = struct.Struct(">B")
_U8_U8: Final = struct.Struct(">BB")


class ConnectionStart(Method):
    __slots__ = ("locales", "mechanisms", "server_properties", "version_major", "version_minor")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "connection.start"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "version_major",
        "version_minor",
        "server_properties",
        "mechanisms",
        "locales",
    )

    def __init__(
        self,
        channel: int,
        version_major: int,
        version_minor: int,
        server_properties: dict[str, Value],
        mechanisms: bytes,
        locales: bytes,
    ) -> None:
        self.channel = channel
        self.version_major = version_major
        self.version_minor = version_minor
        self.server_properties = server_properties
        self.mechanisms = mechanisms
        self.locales = locales

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionStart:
        if end - at < 2:
            raise wrong_size(2, at, end)
        version_major, version_minor = _U8_U8.unpack_from(data, at)
        at += 2
        server_properties, at = read_table(data, at, end)
        mechanisms, at = read_longstr(data, at, end)
        locales, at = read_longstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionStart(channel, version_major, version_minor, server_properties, mechanisms, locales)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            _U16_U16_U8_U8.pack(10, 10, self.version_major, self.version_minor)
            + write_table(self.server_properties)
            + write_longstr(self.mechanisms)
            + write_longstr(self.locales),
        )


class ConnectionStartOk(Method):
    __slots__ = ("client_properties", "locale", "mechanism", "response")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "connection.start-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("client_properties", "mechanism", "response", "locale")

    def __init__(
        self, channel: int, client_properties: dict[str, Value], mechanism: str, response: bytes, locale: str
    ) -> None:
        self.channel = channel
        self.client_properties = client_properties
        self.mechanism = mechanism
        self.response = response
        self.locale = locale

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionStartOk:
        client_properties, at = read_table(data, at, end)
        mechanism, at = read_shortstr(data, at, end)
        response, at = read_longstr(data, at, end)
        locale, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionStartOk(channel, client_properties, mechanism, response, locale)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x0a\x00\x0b"
            + write_table(self.client_properties)
            + write_shortstr(self.mechanism)
            + write_longstr(self.response)
            + write_shortstr(self.locale),
        )


class ConnectionSecure(Method):
    __slots__ = ("challenge",)

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "connection.secure"
    FIELDS: ClassVar[tuple[str, ...]] = ("challenge",)

    def __init__(self, channel: int, challenge: bytes) -> None:
        self.channel = channel
        self.challenge = challenge

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionSecure:
        challenge, at = read_longstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionSecure(channel, challenge)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x14" + write_longstr(self.challenge))


class ConnectionSecureOk(Method):
    __slots__ = ("response",)

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "connection.secure-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("response",)

    def __init__(self, channel: int, response: bytes) -> None:
        self.channel = channel
        self.response = response

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionSecureOk:
        response, at = read_longstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionSecureOk(channel, response)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x15" + write_longstr(self.response))


class ConnectionTune(Method):
    __slots__ = ("channel_max", "frame_max", "heartbeat")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "connection.tune"
    FIELDS: ClassVar[tuple[str, ...]] = ("channel_max", "frame_max", "heartbeat")

    def __init__(self, channel: int, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self.channel = channel
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionTune:
        if end - at != 8:
            raise wrong_size(8, at, end)
        channel_max, frame_max, heartbeat = _U16_U32_U16.unpack_from(data, at)
        return ConnectionTune(channel, channel_max, frame_max, heartbeat)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, _U16_U16_U16_U32_U16.pack(10, 30, self.channel_max, self.frame_max, self.heartbeat)
        )


class ConnectionTuneOk(Method):
    __slots__ = ("channel_max", "frame_max", "heartbeat")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "connection.tune-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("channel_max", "frame_max", "heartbeat")

    def __init__(self, channel: int, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self.channel = channel
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionTuneOk:
        if end - at != 8:
            raise wrong_size(8, at, end)
        channel_max, frame_max, heartbeat = _U16_U32_U16.unpack_from(data, at)
        return ConnectionTuneOk(channel, channel_max, frame_max, heartbeat)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, _U16_U16_U16_U32_U16.pack(10, 31, self.channel_max, self.frame_max, self.heartbeat)
        )


class ConnectionOpen(Method):
    __slots__ = ("virtual_host",)

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "connection.open"
    FIELDS: ClassVar[tuple[str, ...]] = ("virtual_host",)

    def __init__(self, channel: int, virtual_host: str) -> None:
        self.channel = channel
        self.virtual_host = virtual_host

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionOpen:
        virtual_host, at = read_shortstr(data, at, end)
        at = skip_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        return ConnectionOpen(channel, virtual_host)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x28" + write_shortstr(self.virtual_host) + b"\x00\x00")


class ConnectionOpenOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "connection.open-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionOpenOk:
        at = skip_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionOpenOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x29\x00")


class ConnectionClose(Method):
    __slots__ = ("class_id", "method_id", "reply_code", "reply_text")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "connection.close"
    FIELDS: ClassVar[tuple[str, ...]] = ("reply_code", "reply_text", "class_id", "method_id")

    def __init__(self, channel: int, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        self.channel = channel
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionClose:
        if end - at < 2:
            raise wrong_size(2, at, end)
        reply_code: int = _U16.unpack_from(data, at)[0]
        at += 2
        reply_text, at = read_shortstr(data, at, end)
        if end - at != 4:
            raise wrong_size(4, at, end)
        class_id, method_id = _U16_U16.unpack_from(data, at)
        return ConnectionClose(channel, reply_code, reply_text, class_id, method_id)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            _U16_U16_U16.pack(10, 50, self.reply_code)
            + write_shortstr(self.reply_text)
            + _U16_U16.pack(self.class_id, self.method_id),
        )


class ConnectionCloseOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "connection.close-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionCloseOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionCloseOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x33")


class ConnectionBlocked(Method):
    __slots__ = ("reason",)

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 60
    NAME: ClassVar[str] = "connection.blocked"
    FIELDS: ClassVar[tuple[str, ...]] = ("reason",)

    def __init__(self, channel: int, reason: str) -> None:
        self.channel = channel
        self.reason = reason

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionBlocked:
        reason, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionBlocked(channel, reason)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x3c" + write_shortstr(self.reason))


class ConnectionUnblocked(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 61
    NAME: ClassVar[str] = "connection.unblocked"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionUnblocked:
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionUnblocked(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x3d")


class ConnectionUpdateSecret(Method):
    __slots__ = ("new_secret", "reason")

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 70
    NAME: ClassVar[str] = "connection.update-secret"
    FIELDS: ClassVar[tuple[str, ...]] = ("new_secret", "reason")

    def __init__(self, channel: int, new_secret: bytes, reason: str) -> None:
        self.channel = channel
        self.new_secret = new_secret
        self.reason = reason

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionUpdateSecret:
        new_secret, at = read_longstr(data, at, end)
        reason, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionUpdateSecret(channel, new_secret, reason)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, b"\x00\x0a\x00\x46" + write_longstr(self.new_secret) + write_shortstr(self.reason)
        )


class ConnectionUpdateSecretOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 71
    NAME: ClassVar[str] = "connection.update-secret-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConnectionUpdateSecretOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ConnectionUpdateSecretOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x0a\x00\x47")


class ChannelOpen(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "channel.open"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelOpen:
        at = skip_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ChannelOpen(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x14\x00\x0a\x00")


class ChannelOpenOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "channel.open-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelOpenOk:
        at = skip_longstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ChannelOpenOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x14\x00\x0b\x00\x00\x00\x00")


class ChannelFlow(Method):
    __slots__ = ("active",)

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "channel.flow"
    FIELDS: ClassVar[tuple[str, ...]] = ("active",)

    def __init__(self, channel: int, active: bool) -> None:
        self.channel = channel
        self.active = active

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelFlow:
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        active = bits_0 & 1 != 0
        return ChannelFlow(channel, active)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U8.pack(20, 20, self.active))


class ChannelFlowOk(Method):
    __slots__ = ("active",)

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "channel.flow-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("active",)

    def __init__(self, channel: int, active: bool) -> None:
        self.channel = channel
        self.active = active

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelFlowOk:
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        active = bits_0 & 1 != 0
        return ChannelFlowOk(channel, active)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U8.pack(20, 21, self.active))


class ChannelClose(Method):
    __slots__ = ("class_id", "method_id", "reply_code", "reply_text")

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "channel.close"
    FIELDS: ClassVar[tuple[str, ...]] = ("reply_code", "reply_text", "class_id", "method_id")

    def __init__(self, channel: int, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        self.channel = channel
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelClose:
        if end - at < 2:
            raise wrong_size(2, at, end)
        reply_code: int = _U16.unpack_from(data, at)[0]
        at += 2
        reply_text, at = read_shortstr(data, at, end)
        if end - at != 4:
            raise wrong_size(4, at, end)
        class_id, method_id = _U16_U16.unpack_from(data, at)
        return ChannelClose(channel, reply_code, reply_text, class_id, method_id)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            _U16_U16_U16.pack(20, 40, self.reply_code)
            + write_shortstr(self.reply_text)
            + _U16_U16.pack(self.class_id, self.method_id),
        )


class ChannelCloseOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "channel.close-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ChannelCloseOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ChannelCloseOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x14\x00\x29")


class AccessRequest(Method):
    __slots__ = ("active", "exclusive", "passive", "read", "realm", "write")

    CLASS_ID: ClassVar[int] = 30
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "access.request"
    FIELDS: ClassVar[tuple[str, ...]] = ("realm", "exclusive", "passive", "active", "write", "read")

    def __init__(
        self, channel: int, realm: str, exclusive: bool, passive: bool, active: bool, write: bool, read: bool
    ) -> None:
        self.channel = channel
        self.realm = realm
        self.exclusive = exclusive
        self.passive = passive
        self.active = active
        self.write = write
        self.read = read

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> AccessRequest:
        realm, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        exclusive = bits_0 & 1 != 0
        passive = bits_0 & 2 != 0
        active = bits_0 & 4 != 0
        write = bits_0 & 8 != 0
        read = bits_0 & 16 != 0
        return AccessRequest(channel, realm, exclusive, passive, active, write, read)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x1e\x00\x0a"
            + write_shortstr(self.realm)
            + _U8.pack(self.exclusive | self.passive << 1 | self.active << 2 | self.write << 3 | self.read << 4),
        )


class AccessRequestOk(Method):
    __slots__ = ("ticket",)

    CLASS_ID: ClassVar[int] = 30
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "access.request-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("ticket",)

    def __init__(self, channel: int, ticket: int) -> None:
        self.channel = channel
        self.ticket = ticket

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> AccessRequestOk:
        if end - at != 2:
            raise wrong_size(2, at, end)
        ticket: int = _U16.unpack_from(data, at)[0]
        return AccessRequestOk(channel, ticket)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U16.pack(30, 11, self.ticket))


class ExchangeDeclare(Method):
    __slots__ = ("arguments", "auto_delete", "durable", "exchange", "internal", "no_wait", "passive", "type")

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "exchange.declare"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "exchange",
        "type",
        "passive",
        "durable",
        "auto_delete",
        "internal",
        "no_wait",
        "arguments",
    )

    def __init__(
        self,
        channel: int,
        exchange: str,
        type: str,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        no_wait: bool,
        arguments: dict[str, Value],
    ) -> None:
        self.channel = channel
        self.exchange = exchange
        self.type = type
        self.passive = passive
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeDeclare:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        exchange, at = read_shortstr(data, at, end)
        type, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        passive = bits_0 & 1 != 0
        durable = bits_0 & 2 != 0
        auto_delete = bits_0 & 4 != 0
        internal = bits_0 & 8 != 0
        no_wait = bits_0 & 16 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeDeclare(channel, exchange, type, passive, durable, auto_delete, internal, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x28\x00\x0a\x00\x00"
            + write_shortstr(self.exchange)
            + write_shortstr(self.type)
            + _U8.pack(
                self.passive | self.durable << 1 | self.auto_delete << 2 | self.internal << 3 | self.no_wait << 4
            )
            + write_table(self.arguments),
        )


class ExchangeDeclareOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "exchange.declare-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeDeclareOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeDeclareOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x28\x00\x0b")


class ExchangeDelete(Method):
    __slots__ = ("exchange", "if_unused", "no_wait")

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "exchange.delete"
    FIELDS: ClassVar[tuple[str, ...]] = ("exchange", "if_unused", "no_wait")

    def __init__(self, channel: int, exchange: str, if_unused: bool, no_wait: bool) -> None:
        self.channel = channel
        self.exchange = exchange
        self.if_unused = if_unused
        self.no_wait = no_wait

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeDelete:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        exchange, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        if_unused = bits_0 & 1 != 0
        no_wait = bits_0 & 2 != 0
        return ExchangeDelete(channel, exchange, if_unused, no_wait)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x28\x00\x14\x00\x00"
            + write_shortstr(self.exchange)
            + _U8.pack(self.if_unused | self.no_wait << 1),
        )


class ExchangeDeleteOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "exchange.delete-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeDeleteOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeDeleteOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x28\x00\x15")


class ExchangeBind(Method):
    __slots__ = ("arguments", "destination", "no_wait", "routing_key", "source")

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "exchange.bind"
    FIELDS: ClassVar[tuple[str, ...]] = ("destination", "source", "routing_key", "no_wait", "arguments")

    def __init__(
        self,
        channel: int,
        destination: str,
        source: str,
        routing_key: str,
        no_wait: bool,
        arguments: dict[str, Value],
    ) -> None:
        self.channel = channel
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeBind:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        destination, at = read_shortstr(data, at, end)
        source, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        no_wait = bits_0 & 1 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeBind(channel, destination, source, routing_key, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x28\x00\x1e\x00\x00"
            + write_shortstr(self.destination)
            + write_shortstr(self.source)
            + write_shortstr(self.routing_key)
            + _U8.pack(self.no_wait)
            + write_table(self.arguments),
        )


class ExchangeBindOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "exchange.bind-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeBindOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeBindOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x28\x00\x1f")


class ExchangeUnbind(Method):
    __slots__ = ("arguments", "destination", "no_wait", "routing_key", "source")

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "exchange.unbind"
    FIELDS: ClassVar[tuple[str, ...]] = ("destination", "source", "routing_key", "no_wait", "arguments")

    def __init__(
        self,
        channel: int,
        destination: str,
        source: str,
        routing_key: str,
        no_wait: bool,
        arguments: dict[str, Value],
    ) -> None:
        self.channel = channel
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeUnbind:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        destination, at = read_shortstr(data, at, end)
        source, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        no_wait = bits_0 & 1 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeUnbind(channel, destination, source, routing_key, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x28\x00\x28\x00\x00"
            + write_shortstr(self.destination)
            + write_shortstr(self.source)
            + write_shortstr(self.routing_key)
            + _U8.pack(self.no_wait)
            + write_table(self.arguments),
        )


class ExchangeUnbindOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "exchange.unbind-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ExchangeUnbindOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ExchangeUnbindOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x28\x00\x33")


class QueueDeclare(Method):
    __slots__ = ("arguments", "auto_delete", "durable", "exclusive", "no_wait", "passive", "queue")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "queue.declare"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "queue",
        "passive",
        "durable",
        "exclusive",
        "auto_delete",
        "no_wait",
        "arguments",
    )

    def __init__(
        self,
        channel: int,
        queue: str,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        no_wait: bool,
        arguments: dict[str, Value],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.passive = passive
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueDeclare:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        passive = bits_0 & 1 != 0
        durable = bits_0 & 2 != 0
        exclusive = bits_0 & 4 != 0
        auto_delete = bits_0 & 8 != 0
        no_wait = bits_0 & 16 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return QueueDeclare(channel, queue, passive, durable, exclusive, auto_delete, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x32\x00\x0a\x00\x00"
            + write_shortstr(self.queue)
            + _U8.pack(
                self.passive | self.durable << 1 | self.exclusive << 2 | self.auto_delete << 3 | self.no_wait << 4
            )
            + write_table(self.arguments),
        )


class QueueDeclareOk(Method):
    __slots__ = ("consumer_count", "message_count", "queue")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "queue.declare-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "message_count", "consumer_count")

    def __init__(self, channel: int, queue: str, message_count: int, consumer_count: int) -> None:
        self.channel = channel
        self.queue = queue
        self.message_count = message_count
        self.consumer_count = consumer_count

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueDeclareOk:
        queue, at = read_shortstr(data, at, end)
        if end - at != 8:
            raise wrong_size(8, at, end)
        message_count, consumer_count = _U32_U32.unpack_from(data, at)
        return QueueDeclareOk(channel, queue, message_count, consumer_count)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x32\x00\x0b" + write_shortstr(self.queue) + _U32_U32.pack(self.message_count, self.consumer_count),
        )


class QueueBind(Method):
    __slots__ = ("arguments", "exchange", "no_wait", "queue", "routing_key")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "queue.bind"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "exchange", "routing_key", "no_wait", "arguments")

    def __init__(
        self, channel: int, queue: str, exchange: str, routing_key: str, no_wait: bool, arguments: dict[str, Value]
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueBind:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        no_wait = bits_0 & 1 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return QueueBind(channel, queue, exchange, routing_key, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x32\x00\x14\x00\x00"
            + write_shortstr(self.queue)
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key)
            + _U8.pack(self.no_wait)
            + write_table(self.arguments),
        )


class QueueBindOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "queue.bind-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueBindOk:
        if at != end:
            raise wrong_size(0, at, end)
        return QueueBindOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x32\x00\x15")


class QueuePurge(Method):
    __slots__ = ("no_wait", "queue")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "queue.purge"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "no_wait")

    def __init__(self, channel: int, queue: str, no_wait: bool) -> None:
        self.channel = channel
        self.queue = queue
        self.no_wait = no_wait

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueuePurge:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        no_wait = bits_0 & 1 != 0
        return QueuePurge(channel, queue, no_wait)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, b"\x00\x32\x00\x1e\x00\x00" + write_shortstr(self.queue) + _U8.pack(self.no_wait)
        )


class QueuePurgeOk(Method):
    __slots__ = ("message_count",)

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "queue.purge-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("message_count",)

    def __init__(self, channel: int, message_count: int) -> None:
        self.channel = channel
        self.message_count = message_count

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueuePurgeOk:
        if end - at != 4:
            raise wrong_size(4, at, end)
        message_count: int = _U32.unpack_from(data, at)[0]
        return QueuePurgeOk(channel, message_count)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U32.pack(50, 31, self.message_count))


class QueueDelete(Method):
    __slots__ = ("if_empty", "if_unused", "no_wait", "queue")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "queue.delete"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "if_unused", "if_empty", "no_wait")

    def __init__(self, channel: int, queue: str, if_unused: bool, if_empty: bool, no_wait: bool) -> None:
        self.channel = channel
        self.queue = queue
        self.if_unused = if_unused
        self.if_empty = if_empty
        self.no_wait = no_wait

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueDelete:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        if_unused = bits_0 & 1 != 0
        if_empty = bits_0 & 2 != 0
        no_wait = bits_0 & 4 != 0
        return QueueDelete(channel, queue, if_unused, if_empty, no_wait)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x32\x00\x28\x00\x00"
            + write_shortstr(self.queue)
            + _U8.pack(self.if_unused | self.if_empty << 1 | self.no_wait << 2),
        )


class QueueDeleteOk(Method):
    __slots__ = ("message_count",)

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "queue.delete-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("message_count",)

    def __init__(self, channel: int, message_count: int) -> None:
        self.channel = channel
        self.message_count = message_count

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueDeleteOk:
        if end - at != 4:
            raise wrong_size(4, at, end)
        message_count: int = _U32.unpack_from(data, at)[0]
        return QueueDeleteOk(channel, message_count)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U32.pack(50, 41, self.message_count))


class QueueUnbind(Method):
    __slots__ = ("arguments", "exchange", "queue", "routing_key")

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "queue.unbind"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "exchange", "routing_key", "arguments")

    def __init__(
        self, channel: int, queue: str, exchange: str, routing_key: str, arguments: dict[str, Value]
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueUnbind:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return QueueUnbind(channel, queue, exchange, routing_key, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x32\x00\x32\x00\x00"
            + write_shortstr(self.queue)
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key)
            + write_table(self.arguments),
        )


class QueueUnbindOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "queue.unbind-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> QueueUnbindOk:
        if at != end:
            raise wrong_size(0, at, end)
        return QueueUnbindOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x32\x00\x33")


class BasicQos(Method):
    __slots__ = ("global_", "prefetch_count", "prefetch_size")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "basic.qos"
    FIELDS: ClassVar[tuple[str, ...]] = ("prefetch_size", "prefetch_count", "global_")

    def __init__(self, channel: int, prefetch_size: int, prefetch_count: int, global_: bool) -> None:
        self.channel = channel
        self.prefetch_size = prefetch_size
        self.prefetch_count = prefetch_count
        self.global_ = global_

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicQos:
        if end - at != 7:
            raise wrong_size(7, at, end)
        prefetch_size, prefetch_count, bits_2 = _U32_U16_U8.unpack_from(data, at)
        global_ = bits_2 & 1 != 0
        return BasicQos(channel, prefetch_size, prefetch_count, global_)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, _U16_U16_U32_U16_U8.pack(60, 10, self.prefetch_size, self.prefetch_count, self.global_)
        )


class BasicQosOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "basic.qos-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicQosOk:
        if at != end:
            raise wrong_size(0, at, end)
        return BasicQosOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x3c\x00\x0b")


class BasicConsume(Method):
    __slots__ = ("arguments", "consumer_tag", "exclusive", "no_ack", "no_local", "no_wait", "queue")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "basic.consume"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "queue",
        "consumer_tag",
        "no_local",
        "no_ack",
        "exclusive",
        "no_wait",
        "arguments",
    )

    def __init__(
        self,
        channel: int,
        queue: str,
        consumer_tag: str,
        no_local: bool,
        no_ack: bool,
        exclusive: bool,
        no_wait: bool,
        arguments: dict[str, Value],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.no_local = no_local
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.no_wait = no_wait
        self.arguments = arguments

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicConsume:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        consumer_tag, at = read_shortstr(data, at, end)
        if end - at < 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        at += 1
        no_local = bits_0 & 1 != 0
        no_ack = bits_0 & 2 != 0
        exclusive = bits_0 & 4 != 0
        no_wait = bits_0 & 8 != 0
        arguments, at = read_table(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicConsume(channel, queue, consumer_tag, no_local, no_ack, exclusive, no_wait, arguments)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x3c\x00\x14\x00\x00"
            + write_shortstr(self.queue)
            + write_shortstr(self.consumer_tag)
            + _U8.pack(self.no_local | self.no_ack << 1 | self.exclusive << 2 | self.no_wait << 3)
            + write_table(self.arguments),
        )


class BasicConsumeOk(Method):
    __slots__ = ("consumer_tag",)

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "basic.consume-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("consumer_tag",)

    def __init__(self, channel: int, consumer_tag: str) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicConsumeOk:
        consumer_tag, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicConsumeOk(channel, consumer_tag)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x3c\x00\x15" + write_shortstr(self.consumer_tag))


class BasicCancel(Method):
    __slots__ = ("consumer_tag", "no_wait")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "basic.cancel"
    FIELDS: ClassVar[tuple[str, ...]] = ("consumer_tag", "no_wait")

    def __init__(self, channel: int, consumer_tag: str, no_wait: bool) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.no_wait = no_wait

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicCancel:
        consumer_tag, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        no_wait = bits_0 & 1 != 0
        return BasicCancel(channel, consumer_tag, no_wait)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, b"\x00\x3c\x00\x1e" + write_shortstr(self.consumer_tag) + _U8.pack(self.no_wait)
        )


class BasicCancelOk(Method):
    __slots__ = ("consumer_tag",)

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "basic.cancel-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ("consumer_tag",)

    def __init__(self, channel: int, consumer_tag: str) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicCancelOk:
        consumer_tag, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicCancelOk(channel, consumer_tag)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x3c\x00\x1f" + write_shortstr(self.consumer_tag))


class BasicPublish(Method):
    __slots__ = ("body", "exchange", "immediate", "mandatory", "properties", "routing_key")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "basic.publish"
    FIELDS: ClassVar[tuple[str, ...]] = ("exchange", "routing_key", "mandatory", "immediate", "properties", "body")

    def __init__(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        properties: bytes = b"\x00\x00",
        body: bytes = b"",
    ) -> None:
        self.channel = channel
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate
        self.properties = properties
        self.body = body

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicPublish:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        mandatory = bits_0 & 1 != 0
        immediate = bits_0 & 2 != 0
        return BasicPublish(channel, exchange, routing_key, mandatory, immediate)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x3c\x00\x28\x00\x00"
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key)
            + _U8.pack(self.mandatory | self.immediate << 1),
        )


class BasicReturn(Method):
    __slots__ = ("body", "exchange", "properties", "reply_code", "reply_text", "routing_key")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "basic.return"
    FIELDS: ClassVar[tuple[str, ...]] = ("reply_code", "reply_text", "exchange", "routing_key", "properties", "body")

    def __init__(
        self,
        channel: int,
        reply_code: int,
        reply_text: str,
        exchange: str,
        routing_key: str,
        properties: bytes = b"\x00\x00",
        body: bytes = b"",
    ) -> None:
        self.channel = channel
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicReturn:
        if end - at < 2:
            raise wrong_size(2, at, end)
        reply_code: int = _U16.unpack_from(data, at)[0]
        at += 2
        reply_text, at = read_shortstr(data, at, end)
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicReturn(channel, reply_code, reply_text, exchange, routing_key)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            _U16_U16_U16.pack(60, 50, self.reply_code)
            + write_shortstr(self.reply_text)
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key),
        )


class BasicDeliver(Method):
    __slots__ = ("body", "consumer_tag", "delivery_tag", "exchange", "properties", "redelivered", "routing_key")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 60
    NAME: ClassVar[str] = "basic.deliver"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "consumer_tag",
        "delivery_tag",
        "redelivered",
        "exchange",
        "routing_key",
        "properties",
        "body",
    )

    def __init__(
        self,
        channel: int,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        properties: bytes = b"\x00\x00",
        body: bytes = b"",
    ) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicDeliver:
        consumer_tag, at = read_shortstr(data, at, end)
        if end - at < 9:
            raise wrong_size(9, at, end)
        delivery_tag, bits_1 = _U64_U8.unpack_from(data, at)
        at += 9
        redelivered = bits_1 & 1 != 0
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicDeliver(channel, consumer_tag, delivery_tag, redelivered, exchange, routing_key)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            b"\x00\x3c\x00\x3c"
            + write_shortstr(self.consumer_tag)
            + _U64_U8.pack(self.delivery_tag, self.redelivered)
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key),
        )


class BasicGet(Method):
    __slots__ = ("no_ack", "queue")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 70
    NAME: ClassVar[str] = "basic.get"
    FIELDS: ClassVar[tuple[str, ...]] = ("queue", "no_ack")

    def __init__(self, channel: int, queue: str, no_ack: bool) -> None:
        self.channel = channel
        self.queue = queue
        self.no_ack = no_ack

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicGet:
        if end - at < 2:
            raise wrong_size(2, at, end)
        at += 2
        queue, at = read_shortstr(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        no_ack = bits_0 & 1 != 0
        return BasicGet(channel, queue, no_ack)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, b"\x00\x3c\x00\x46\x00\x00" + write_shortstr(self.queue) + _U8.pack(self.no_ack)
        )


class BasicGetOk(Method):
    __slots__ = ("body", "delivery_tag", "exchange", "message_count", "properties", "redelivered", "routing_key")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 71
    NAME: ClassVar[str] = "basic.get-ok"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "delivery_tag",
        "redelivered",
        "exchange",
        "routing_key",
        "message_count",
        "properties",
        "body",
    )

    def __init__(
        self,
        channel: int,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        message_count: int,
        properties: bytes = b"\x00\x00",
        body: bytes = b"",
    ) -> None:
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.message_count = message_count
        self.properties = properties
        self.body = body

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicGetOk:
        if end - at < 9:
            raise wrong_size(9, at, end)
        delivery_tag, bits_1 = _U64_U8.unpack_from(data, at)
        at += 9
        redelivered = bits_1 & 1 != 0
        exchange, at = read_shortstr(data, at, end)
        routing_key, at = read_shortstr(data, at, end)
        if end - at != 4:
            raise wrong_size(4, at, end)
        message_count: int = _U32.unpack_from(data, at)[0]
        return BasicGetOk(channel, delivery_tag, redelivered, exchange, routing_key, message_count)

    def encode(self) -> bytes:
        return method_frame(
            self.channel,
            _U16_U16_U64_U8.pack(60, 71, self.delivery_tag, self.redelivered)
            + write_shortstr(self.exchange)
            + write_shortstr(self.routing_key)
            + _U32.pack(self.message_count),
        )


class BasicGetEmpty(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 72
    NAME: ClassVar[str] = "basic.get-empty"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicGetEmpty:
        at = skip_shortstr(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return BasicGetEmpty(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x3c\x00\x48\x00")


class BasicAck(Method):
    __slots__ = ("delivery_tag", "multiple")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 80
    NAME: ClassVar[str] = "basic.ack"
    FIELDS: ClassVar[tuple[str, ...]] = ("delivery_tag", "multiple")

    def __init__(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.multiple = multiple

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicAck:
        if end - at != 9:
            raise wrong_size(9, at, end)
        delivery_tag, bits_1 = _U64_U8.unpack_from(data, at)
        multiple = bits_1 & 1 != 0
        return BasicAck(channel, delivery_tag, multiple)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U64_U8.pack(60, 80, self.delivery_tag, self.multiple))


class BasicReject(Method):
    __slots__ = ("delivery_tag", "requeue")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 90
    NAME: ClassVar[str] = "basic.reject"
    FIELDS: ClassVar[tuple[str, ...]] = ("delivery_tag", "requeue")

    def __init__(self, channel: int, delivery_tag: int, requeue: bool) -> None:
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.requeue = requeue

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicReject:
        if end - at != 9:
            raise wrong_size(9, at, end)
        delivery_tag, bits_1 = _U64_U8.unpack_from(data, at)
        requeue = bits_1 & 1 != 0
        return BasicReject(channel, delivery_tag, requeue)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U64_U8.pack(60, 90, self.delivery_tag, self.requeue))


class BasicRecoverAsync(Method):
    __slots__ = ("requeue",)

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 100
    NAME: ClassVar[str] = "basic.recover-async"
    FIELDS: ClassVar[tuple[str, ...]] = ("requeue",)

    def __init__(self, channel: int, requeue: bool) -> None:
        self.channel = channel
        self.requeue = requeue

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicRecoverAsync:
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        requeue = bits_0 & 1 != 0
        return BasicRecoverAsync(channel, requeue)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U8.pack(60, 100, self.requeue))


class BasicRecover(Method):
    __slots__ = ("requeue",)

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 110
    NAME: ClassVar[str] = "basic.recover"
    FIELDS: ClassVar[tuple[str, ...]] = ("requeue",)

    def __init__(self, channel: int, requeue: bool) -> None:
        self.channel = channel
        self.requeue = requeue

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicRecover:
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        requeue = bits_0 & 1 != 0
        return BasicRecover(channel, requeue)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U8.pack(60, 110, self.requeue))


class BasicRecoverOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 111
    NAME: ClassVar[str] = "basic.recover-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicRecoverOk:
        if at != end:
            raise wrong_size(0, at, end)
        return BasicRecoverOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x3c\x00\x6f")


class BasicNack(Method):
    __slots__ = ("delivery_tag", "multiple", "requeue")

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 120
    NAME: ClassVar[str] = "basic.nack"
    FIELDS: ClassVar[tuple[str, ...]] = ("delivery_tag", "multiple", "requeue")

    def __init__(self, channel: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.multiple = multiple
        self.requeue = requeue

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> BasicNack:
        if end - at != 9:
            raise wrong_size(9, at, end)
        delivery_tag, bits_1 = _U64_U8.unpack_from(data, at)
        multiple = bits_1 & 1 != 0
        requeue = bits_1 & 2 != 0
        return BasicNack(channel, delivery_tag, multiple, requeue)

    def encode(self) -> bytes:
        return method_frame(
            self.channel, _U16_U16_U64_U8.pack(60, 120, self.delivery_tag, self.multiple | self.requeue << 1)
        )


class ConfirmSelect(Method):
    __slots__ = ("no_wait",)

    CLASS_ID: ClassVar[int] = 85
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "confirm.select"
    FIELDS: ClassVar[tuple[str, ...]] = ("no_wait",)

    def __init__(self, channel: int, no_wait: bool) -> None:
        self.channel = channel
        self.no_wait = no_wait

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConfirmSelect:
        if end - at != 1:
            raise wrong_size(1, at, end)
        bits_0: int = _U8.unpack_from(data, at)[0]
        no_wait = bits_0 & 1 != 0
        return ConfirmSelect(channel, no_wait)

    def encode(self) -> bytes:
        return method_frame(self.channel, _U16_U16_U8.pack(85, 10, self.no_wait))


class ConfirmSelectOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 85
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "confirm.select-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> ConfirmSelectOk:
        if at != end:
            raise wrong_size(0, at, end)
        return ConfirmSelectOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x55\x00\x0b")


class TxSelect(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "tx.select"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxSelect:
        if at != end:
            raise wrong_size(0, at, end)
        return TxSelect(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x0a")


class TxSelectOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "tx.select-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxSelectOk:
        if at != end:
            raise wrong_size(0, at, end)
        return TxSelectOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x0b")


class TxCommit(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "tx.commit"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxCommit:
        if at != end:
            raise wrong_size(0, at, end)
        return TxCommit(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x14")


class TxCommitOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "tx.commit-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxCommitOk:
        if at != end:
            raise wrong_size(0, at, end)
        return TxCommitOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x15")


class TxRollback(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "tx.rollback"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxRollback:
        if at != end:
            raise wrong_size(0, at, end)
        return TxRollback(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x1e")


class TxRollbackOk(Method):
    __slots__ = ()

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "tx.rollback-ok"
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def parse(channel: int, data: bytes, at: int, end: int) -> TxRollbackOk:
        if at != end:
            raise wrong_size(0, at, end)
        return TxRollbackOk(channel)

    def encode(self) -> bytes:
        return method_frame(self.channel, b"\x00\x5a\x00\x1f")


# All methods, by class_id << 16 | method_id.
METHODS: dict[int, type[Method]] = {
    0x000A000A: ConnectionStart,
    0x000A000B: ConnectionStartOk,
    0x000A0014: ConnectionSecure,
    0x000A0015: ConnectionSecureOk,
    0x000A001E: ConnectionTune,
    0x000A001F: ConnectionTuneOk,
    0x000A0028: ConnectionOpen,
    0x000A0029: ConnectionOpenOk,
    0x000A0032: ConnectionClose,
    0x000A0033: ConnectionCloseOk,
    0x000A003C: ConnectionBlocked,
    0x000A003D: ConnectionUnblocked,
    0x000A0046: ConnectionUpdateSecret,
    0x000A0047: ConnectionUpdateSecretOk,
    0x0014000A: ChannelOpen,
    0x0014000B: ChannelOpenOk,
    0x00140014: ChannelFlow,
    0x00140015: ChannelFlowOk,
    0x00140028: ChannelClose,
    0x00140029: ChannelCloseOk,
    0x001E000A: AccessRequest,
    0x001E000B: AccessRequestOk,
    0x0028000A: ExchangeDeclare,
    0x0028000B: ExchangeDeclareOk,
    0x00280014: ExchangeDelete,
    0x00280015: ExchangeDeleteOk,
    0x0028001E: ExchangeBind,
    0x0028001F: ExchangeBindOk,
    0x00280028: ExchangeUnbind,
    0x00280033: ExchangeUnbindOk,
    0x0032000A: QueueDeclare,
    0x0032000B: QueueDeclareOk,
    0x00320014: QueueBind,
    0x00320015: QueueBindOk,
    0x0032001E: QueuePurge,
    0x0032001F: QueuePurgeOk,
    0x00320028: QueueDelete,
    0x00320029: QueueDeleteOk,
    0x00320032: QueueUnbind,
    0x00320033: QueueUnbindOk,
    0x003C000A: BasicQos,
    0x003C000B: BasicQosOk,
    0x003C0014: BasicConsume,
    0x003C0015: BasicConsumeOk,
    0x003C001E: BasicCancel,
    0x003C001F: BasicCancelOk,
    0x003C0028: BasicPublish,
    0x003C0032: BasicReturn,
    0x003C003C: BasicDeliver,
    0x003C0046: BasicGet,
    0x003C0047: BasicGetOk,
    0x003C0048: BasicGetEmpty,
    0x003C0050: BasicAck,
    0x003C005A: BasicReject,
    0x003C0064: BasicRecoverAsync,
    0x003C006E: BasicRecover,
    0x003C006F: BasicRecoverOk,
    0x003C0078: BasicNack,
    0x0055000A: ConfirmSelect,
    0x0055000B: ConfirmSelectOk,
    0x005A000A: TxSelect,
    0x005A000B: TxSelectOk,
    0x005A0014: TxCommit,
    0x005A0015: TxCommitOk,
    0x005A001E: TxRollback,
    0x005A001F: TxRollbackOk,
}


# Those that a client sends.
CLIENT_METHODS: dict[int, type[Method]] = {
    0x000A000B: ConnectionStartOk,
    0x000A0015: ConnectionSecureOk,
    0x000A001F: ConnectionTuneOk,
    0x000A0028: ConnectionOpen,
    0x000A0032: ConnectionClose,
    0x000A0033: ConnectionCloseOk,
    0x000A0046: ConnectionUpdateSecret,
    0x0014000A: ChannelOpen,
    0x00140014: ChannelFlow,
    0x00140015: ChannelFlowOk,
    0x00140028: ChannelClose,
    0x00140029: ChannelCloseOk,
    0x001E000A: AccessRequest,
    0x0028000A: ExchangeDeclare,
    0x00280014: ExchangeDelete,
    0x0028001E: ExchangeBind,
    0x00280028: ExchangeUnbind,
    0x0032000A: QueueDeclare,
    0x00320014: QueueBind,
    0x0032001E: QueuePurge,
    0x00320028: QueueDelete,
    0x00320032: QueueUnbind,
    0x003C000A: BasicQos,
    0x003C0014: BasicConsume,
    0x003C001E: BasicCancel,
    0x003C001F: BasicCancelOk,
    0x003C0028: BasicPublish,
    0x003C0046: BasicGet,
    0x003C0050: BasicAck,
    0x003C005A: BasicReject,
    0x003C0064: BasicRecoverAsync,
    0x003C006E: BasicRecover,
    0x003C0078: BasicNack,
    0x0055000A: ConfirmSelect,
    0x005A000A: TxSelect,
    0x005A0014: TxCommit,
    0x005A001E: TxRollback,
}


# Those that a server sends.
SERVER_METHODS: dict[int, type[Method]] = {
    0x000A000A: ConnectionStart,
    0x000A0014: ConnectionSecure,
    0x000A001E: ConnectionTune,
    0x000A0029: ConnectionOpenOk,
    0x000A0032: ConnectionClose,
    0x000A0033: ConnectionCloseOk,
    0x000A003C: ConnectionBlocked,
    0x000A003D: ConnectionUnblocked,
    0x000A0047: ConnectionUpdateSecretOk,
    0x0014000B: ChannelOpenOk,
    0x00140014: ChannelFlow,
    0x00140015: ChannelFlowOk,
    0x00140028: ChannelClose,
    0x00140029: ChannelCloseOk,
    0x001E000B: AccessRequestOk,
    0x0028000B: ExchangeDeclareOk,
    0x00280015: ExchangeDeleteOk,
    0x0028001F: ExchangeBindOk,
    0x00280033: ExchangeUnbindOk,
    0x0032000B: QueueDeclareOk,
    0x00320015: QueueBindOk,
    0x0032001F: QueuePurgeOk,
    0x00320029: QueueDeleteOk,
    0x00320033: QueueUnbindOk,
    0x003C000B: BasicQosOk,
    0x003C0015: BasicConsumeOk,
    0x003C001E: BasicCancel,
    0x003C001F: BasicCancelOk,
    0x003C0032: BasicReturn,
    0x003C003C: BasicDeliver,
    0x003C0047: BasicGetOk,
    0x003C0048: BasicGetEmpty,
    0x003C0050: BasicAck,
    0x003C006F: BasicRecoverOk,
    0x003C0078: BasicNack,
    0x0055000B: ConfirmSelectOk,
    0x005A000B: TxSelectOk,
    0x005A0015: TxCommitOk,
    0x005A001F: TxRollbackOk,
}
