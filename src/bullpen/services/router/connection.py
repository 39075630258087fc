"""One HTTP/2 connection of the router: parses frames, keeps windows, passes DATA on.

Bytes are credited back to their sender only when they have been sent to the receiver. So a
slow reader slows only its own writer, and nothing is buffered beyond a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from hpack import Decoder, HPACKError

from bullpen.runtime import silence
from bullpen.runtime.connections import AcceptedConnection
from bullpen.services.router import frames
from bullpen.services.router.frames import ProtocolError
from bullpen.services.router.leg import Leg

PATH = "/jumpstarter.v1.RouterService/Stream"

UNIMPLEMENTED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a router towards every peer. Each prevents the exhaustion of a resource."""

    streams_max: int = 128
    """Streams of one connection."""

    stream_window: int = 512 * 1024
    """Bytes a sender may be ahead of its receiver, and so the most an unpaired leg holds."""

    connection_window: int = 4 * 1024 * 1024
    frame_size_max: int = 64 * 1024
    header_bytes_max: int = 16 * 1024
    """Size of one request's headers, with CONTINUATION frames, before and after decoding."""

    control_frames_max: int = 2_000
    """PING, SETTINGS, RST_STREAM, PRIORITY and empty DATA frames per sweep; more is an attack."""

    write_buffer_max: int = 1024 * 1024
    """Unsent bytes of a connection above which nothing more is passed to it."""

    sweep_seconds: float = silence.LOOK_SECONDS
    quiet_seconds: float = 60.0
    """A peer that sends nothing for this long is pinged."""

    dead_seconds: float = 180.0
    """A program that sends nothing for this long hangs. As long as upstream: under load, answers
    to pings wait behind data. Unreachable machines are noticed much earlier, see ``silence``."""

    hello_seconds: float = 10.0
    """A connection on which no stream was admitted by then is closed, whatever it has sent."""

    idle_seconds: float = 60.0
    """A connection without streams for this long is closed."""


class Host(Protocol):
    """What a connection needs from its router."""

    limits: Limits

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def arrived(self, leg: Leg, authorization: str) -> None:
        """Join the leg to its other side, let it wait, or end it."""


class Connection(asyncio.Protocol):
    def __init__(
        self, host: Host, clock: Callable[[], float], accepted: AcceptedConnection | None = None
    ) -> None:
        self._host = host
        self._accepted = accepted
        self._limits = host.limits
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._hpack = Decoder(max_header_list_size=self._limits.header_bytes_max)
        self._greeted = False
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of an incomplete header block."""

        self._last = 0
        self._control = 0
        self._paused = False
        self._credit = 0
        self._out: list[bytes | memoryview] = []
        self.legs: dict[int, Leg] = {}
        self.send_window = frames.WINDOW_DEFAULT
        self.send_window_initial = frames.WINDOW_DEFAULT
        self.send_frame_max = frames.FRAME_SIZE_DEFAULT
        self.heard = self._idle_since = clock()
        self._admitted = False
        """Whether a stream was ever admitted; before that, the peer is unauthenticated."""

        self._pinged = False
        self._blocked: dict[Leg, None] = {}

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_max)
        self._host.opened(self)
        limits = self._limits
        self.write(
            frames.settings(
                {
                    frames.SETTING_MAX_STREAMS: limits.streams_max,
                    frames.SETTING_WINDOW: limits.stream_window,
                    frames.SETTING_FRAME_SIZE: limits.frame_size_max,
                    frames.SETTING_HEADER_LIST: limits.header_bytes_max,
                }
            )
        )
        self.write(frames.window_update(0, limits.connection_window - frames.WINDOW_DEFAULT))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for leg in tuple(self.legs.values()):
            leg.lost()
        self.legs.clear()
        if self._accepted is not None:
            self._accepted.left()
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        self.heard = self._clock()
        self._pinged = False
        try:
            self._parse(data)
        except ProtocolError as error:
            self.abort(error.code, str(error))
        else:
            self.flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._unblock()
        self.flush()

    # Called by legs and the router

    def write(self, piece: bytes | memoryview) -> None:
        """Queue bytes; they leave with the next ``flush``."""
        self._out.append(piece)

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.writelines(out)

    @property
    def room(self) -> int:
        """Bytes of DATA that may be sent on this connection now."""
        return 0 if self._paused or self._transport is None else self.send_window

    def wait_for_room(self, leg: Leg) -> None:
        """Resume the leg when the connection has room again."""
        self._blocked[leg] = None

    def admitted(self) -> None:
        """A stream was admitted: the connection is in use until its last stream ends."""
        self._admitted = True
        if self._accepted is not None:
            self._accepted.busy()

    def ended(self, stream: int) -> None:
        """A stream of this connection has ended."""
        self.legs.pop(stream, None)
        if not self.legs:
            self._idle_since = self._clock()
            if self._accepted is not None:
                self._accepted.idle()

    def credited(self, count: int) -> None:
        """Bytes received here have been sent on: the sender may send as many more."""
        self._credit += count
        if self._credit >= self._limits.connection_window // 4:
            self.write(frames.window_update(0, self._credit))
            self._credit = 0

    def abort(self, code: int, text: str) -> None:
        """Close the connection because of a protocol violation, and send the reason."""
        if self._transport is None:
            return
        self.write(frames.goaway(self._last, code, text))
        self.flush()
        self._transport.close()
        for leg in tuple(self.legs.values()):
            leg.lost()
        self.legs.clear()

    def drain(self) -> None:
        """Accept no new streams; existing streams continue."""
        if self._transport is not None:
            self.write(frames.goaway(frames.WINDOW_LARGEST, frames.NO_ERROR, "going away"))
            self.flush()

    def sweep(self, now: float) -> None:
        """Called periodically: reset the flood counters, detect dead peers."""
        self._control = 0
        quiet = now - self.heard
        limits = self._limits
        idle = 0.0 if self.legs else now - self._idle_since
        stranger = not self._admitted and idle > limits.hello_seconds
        if stranger or quiet > limits.dead_seconds or self._unreachable():
            if self._transport is not None:
                self._transport.abort()
        elif idle > limits.idle_seconds:
            self.abort(frames.NO_ERROR, "nothing is done here")
        elif quiet > limits.quiet_seconds and not self._pinged and self._transport is not None:
            self._pinged = True
            self.write(frames.ping(b"bullpen?"))
            self.flush()

    def _unreachable(self) -> bool:
        """Whether the peer's machine has stopped answering."""
        if self._transport is None:
            return False
        connection = self._transport.get_extra_info("socket")
        try:
            return connection is not None and silence.unreachable(connection)
        except OSError:
            # The socket has just been closed; the transport says so next.
            return False

    # Parsing

    def _parse(self, data: bytes) -> None:
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
            self._buffer.clear()
        at = 0
        if not self._greeted:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise ProtocolError(frames.PROTOCOL_ERROR, "this port speaks gRPC over HTTP/2")
            if len(data) < len(frames.PREFACE):
                self._buffer += data
                return
            self._greeted = True
            at = len(frames.PREFACE)
        view = memoryview(data)
        size = len(data)
        touched: dict[Leg, None] = {}
        while size - at >= frames.HEAD_SIZE:
            length, kind, flags, stream = frames.parse_head(view, at)
            if length > self._limits.frame_size_max:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "frame exceeds the maximum size")
            start = at + frames.HEAD_SIZE
            if size - start < length:
                break
            at = start + length
            body = view[start:at]
            if kind == frames.DATA and self._block is None:
                self._data(stream, flags, body, touched)
            else:
                self._other(kind, flags, stream, body)
        if at < size:
            self._buffer += view[at:]
        for leg in touched:
            leg.pass_on()

    def _data(self, stream: int, flags: int, body: memoryview, touched: dict[Leg, None]) -> None:
        size = len(body)
        if not size:
            self._count()
        leg = self.legs.get(stream)
        if leg is None:
            if not 0 < stream <= self._last:
                raise ProtocolError(frames.PROTOCOL_ERROR, "DATA on a stream that was never opened")
            # The stream has just ended; its bytes must still be credited to the connection's
            # window.
            self.credited(size)
            return
        leg.received(frames.unpadded(body, flags), size, ended=bool(flags & frames.END_STREAM))
        touched[leg] = None

    def _other(self, kind: int, flags: int, stream: int, body: memoryview) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise ProtocolError(frames.PROTOCOL_ERROR, "header block interrupted by another frame")
        if kind == frames.HEADERS:
            self._headers(flags, stream, body)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, stream, body)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream, body)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(frames.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        elif kind in (frames.SETTINGS, frames.PING, frames.RST_STREAM, frames.PRIORITY):
            self._count()
            self._control_frame(kind, flags, stream, body)

    def _control_frame(self, kind: int, flags: int, stream: int, body: memoryview) -> None:
        if kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._settings(body)
        elif kind == frames.PING:
            if len(body) != 8:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "PING length is not 8")
            if not flags & frames.ACK:
                self.write(frames.ping_ack(body))
        elif kind == frames.RST_STREAM:
            leg = self.legs.get(stream)
            if leg is not None:
                leg.lost()

    def _count(self) -> None:
        self._control += 1
        if self._control > self._limits.control_frames_max:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many control frames")

    def _settings(self, body: memoryview) -> None:
        for key, value in frames.parse_settings(body):
            if key == frames.SETTING_WINDOW:
                if value > frames.WINDOW_LARGEST:
                    raise ProtocolError(frames.FLOW_CONTROL_ERROR, "flow-control window too large")
                change, self.send_window_initial = value - self.send_window_initial, value
                for leg in self.legs.values():
                    leg.send_window += change
                    self._blocked[leg] = None
            elif key == frames.SETTING_FRAME_SIZE:
                self.send_frame_max = max(frames.FRAME_SIZE_DEFAULT, min(value, 1 << 20))
        self.write(frames.SETTINGS_ACK)
        self._unblock()

    def _window_update(self, stream: int, body: memoryview) -> None:
        increment = int.from_bytes(body, "big") & frames.WINDOW_LARGEST
        if len(body) != 4 or not increment:
            raise ProtocolError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
        if stream == 0:
            self.send_window += increment
            if self.send_window > frames.WINDOW_LARGEST:
                raise ProtocolError(frames.FLOW_CONTROL_ERROR, "flow-control window too large")
            self._unblock()
        elif (leg := self.legs.get(stream)) is not None:
            leg.send_window += increment
            if leg.send_window > frames.WINDOW_LARGEST:
                raise ProtocolError(frames.FLOW_CONTROL_ERROR, "flow-control window too large")
            leg.send_more()

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for leg in blocked:
            leg.send_more()

    # Requests

    def _headers(self, flags: int, stream: int, body: memoryview) -> None:
        body = frames.unpadded(body, flags)
        if flags & frames.PRIORITY_FLAG:
            body = body[5:]
        self._block = (stream, flags, bytearray(body))
        self._finish_block(complete=bool(flags & frames.END_HEADERS))

    def _continuation(self, flags: int, stream: int, body: memoryview) -> None:
        if self._block is None or self._block[0] != stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._count()
        self._block[2].extend(body)
        self._finish_block(complete=bool(flags & frames.END_HEADERS))

    def _finish_block(self, *, complete: bool) -> None:
        assert self._block is not None
        stream, flags, block = self._block
        if len(block) > self._limits.header_bytes_max:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header block too large")
        if not complete:
            return
        self._block = None
        try:
            unpacked = self._hpack.decode(bytes(block), raw=True)
            headers = {_text(item[0]): _text(item[1]) for item in unpacked}
        except (HPACKError, UnicodeDecodeError):
            raise ProtocolError(
                frames.COMPRESSION_ERROR, "header block cannot be decoded"
            ) from None
        ended = bool(flags & frames.END_STREAM)
        leg = self.legs.get(stream)
        if leg is not None:
            # Trailers of a request: only the end of the stream matters.
            leg.received(memoryview(b""), 0, ended=ended)
            leg.pass_on()
            return
        self._request(stream, headers, ended=ended)

    def _request(self, stream: int, headers: dict[str, str], *, ended: bool) -> None:
        if not stream % 2 or stream <= self._last:
            raise ProtocolError(frames.PROTOCOL_ERROR, "stream id out of order")
        self._last = stream
        if len(self.legs) >= self._limits.streams_max:
            self.write(frames.rst_stream(stream, frames.REFUSED_STREAM))
            return
        if headers.get(":path") != PATH or headers.get(":method") != "POST":
            text = f"{headers.get(':path', '')[:200]} is not served here"
            self.write(frames.trailers(stream, UNIMPLEMENTED, text, only=True))
            return
        leg = Leg(self, stream, window=self._limits.stream_window)
        self.legs[stream] = leg
        if ended:
            leg.received(memoryview(b""), 0, ended=True)
        self._host.arrived(leg, headers.get("authorization", ""))


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode("latin-1")
