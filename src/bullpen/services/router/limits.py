"""How much a router takes from anybody. Every number here is a promise not to be exhausted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    streams_max: int = 128
    """Streams of one connection."""

    stream_window: int = 512 * 1024
    """Bytes a sender may be ahead of its receiver, and so the most that waits unpaired."""

    connection_window: int = 4 * 1024 * 1024
    frame_size_max: int = 64 * 1024
    header_bytes_max: int = 16 * 1024
    """Of one request's headers, CONTINUATION frames included, before and after unpacking."""

    control_frames_max: int = 2_000
    """PING, SETTINGS, RST_STREAM, PRIORITY and empty DATA per sweep: a peer that sends
    more is attacking."""

    write_buffer_max: int = 1024 * 1024
    """Unsent bytes of a connection above which nothing more is passed on to it."""

    sweep_seconds: float = 2.0
    quiet_seconds: float = 60.0
    """Without a byte for this long a peer is pinged."""

    dead_seconds: float = 180.0
    """Without a byte for this long it is gone."""

    hello_seconds: float = 10.0
    """A connection on which no stream was admitted by then is closed, whatever it has sent."""

    idle_seconds: float = 60.0
    """A connection without streams for this long is closed."""
