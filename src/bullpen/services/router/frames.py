"""HTTP/2 frames as bytes: only what a pass-through needs."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x3
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 0x6, 0x7, 0x8, 0x9
ENHANCE_YOUR_CALM = 0xB

SETTING_TABLE_SIZE, SETTING_MAX_STREAMS, SETTING_WINDOW = 0x1, 0x3, 0x4
SETTING_FRAME_SIZE, SETTING_HEADER_LIST = 0x5, 0x6

HEAD_SIZE = 9
WINDOW_DEFAULT = 65_535
WINDOW_LARGEST = 2**31 - 1
FRAME_SIZE_DEFAULT = 16_384

_HEAD = struct.Struct(">HBBBI")
_PAIR = struct.Struct(">HI")


class ProtocolError(Exception):
    """The peer violated HTTP/2; the connection is closed with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def parse_head(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int, int]:
    """Length, type, flags and stream of the frame at ``at``."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & 0x7FFF_FFFF


def settings(values: dict[int, int]) -> bytes:
    body = b"".join(_PAIR.pack(key, value) for key, value in values.items())
    return head(len(body), SETTINGS, 0, 0) + body


def parse_settings(body: memoryview) -> list[tuple[int, int]]:
    if len(body) % 6:
        raise ProtocolError(FRAME_SIZE_ERROR, "SETTINGS length is not a multiple of 6")
    return list(_PAIR.iter_unpack(body))


SETTINGS_ACK = head(0, SETTINGS, ACK, 0)


def window_update(stream: int, increment: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream) + increment.to_bytes(4, "big")


def rst_stream(stream: int, code: int) -> bytes:
    return head(4, RST_STREAM, 0, stream) + code.to_bytes(4, "big")


def ping_ack(body: memoryview) -> bytes:
    return head(8, PING, ACK, 0) + bytes(body)


def ping(body: bytes) -> bytes:
    return head(8, PING, 0, 0) + body


def goaway(last: int, code: int, text: str = "") -> bytes:
    body = last.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
    return head(len(body), GOAWAY, 0, 0) + body


def header_block(fields: tuple[tuple[str, str], ...]) -> bytes:
    """HPACK without tables or Huffman: the same bytes on every connection."""
    parts = []
    for name, value in fields:
        parts += [b"\x00", _string(name), _string(value)]
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, length = len(data) - 127, bytearray(b"\x7f")
    while rest >= 128:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + data


def unpadded(body: memoryview, flags: int) -> memoryview:
    """The payload of a frame without its padding."""
    if not flags & PADDED:
        return body
    if not body or body[0] >= len(body):
        raise ProtocolError(PROTOCOL_ERROR, "padding exceeds the frame")
    return body[1 : len(body) - body[0]]


_RESPONSE = header_block((("\x3astatus", "200"), ("content-type", "application/grpc")))


def response_head(stream: int) -> bytes:
    return head(len(_RESPONSE), HEADERS, END_HEADERS, stream) + _RESPONSE


def trailers(stream: int, status: int, message: str, *, only: bool) -> bytes:
    """The end of a response; ``only`` if nothing was sent before."""
    fields = [("grpc-status", str(status)), ("grpc-message", _percent(message))]
    if only:
        fields = [(":status", "200"), ("content-type", "application/grpc"), *fields]
    block = header_block(tuple(fields))
    return head(len(block), HEADERS, END_HEADERS | END_STREAM, stream) + block


def _percent(text: str) -> str:
    """gRPC's escape for messages: everything but printable ASCII, and the percent sign."""
    return "".join(char if " " <= char <= "~" and char != "%" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
