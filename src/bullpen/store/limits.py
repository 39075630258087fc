"""The limits of everything a store keeps besides the objects themselves."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a store's history, pending writes and watches.

    The history is for watchers that were disconnected for a moment. All of it is read at each
    start, so it is kept short: a minute of a lab with ten leases a second.
    """

    history_count_max: int = 50_000
    """Changes kept for watchers that resume and for paging through a snapshot."""

    history_bytes_max: int = 16 * MIB
    """Bytes kept only for those changes: superseded and deleted values."""

    pending_count_max: int = 10_000
    """Writes accepted and not yet durable; further ones are rejected."""

    pending_bytes_max: int = 64 * MIB
    """Bytes of those writes."""

    watches_max: int = 20_000
    """Open watches; further ones are rejected."""

    def __post_init__(self) -> None:
        assert self.history_count_max >= 0
        assert self.history_bytes_max >= 0
        assert self.pending_count_max > 0
        assert self.pending_bytes_max > 0
        assert self.watches_max > 0


DEFAULT_LIMITS = Limits()
