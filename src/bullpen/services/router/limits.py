"""Limits of a router towards every peer. Each one prevents the exhaustion of a resource."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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

    sweep_seconds: float = 2.0
    quiet_seconds: float = 60.0
    """A peer that sends nothing for this long is pinged."""

    dead_seconds: float = 180.0
    """A peer that sends nothing for this long is considered dead."""

    hello_seconds: float = 10.0
    """A connection on which no stream was admitted by then is closed, whatever it has sent."""

    idle_seconds: float = 60.0
    """A connection without streams for this long is closed."""
