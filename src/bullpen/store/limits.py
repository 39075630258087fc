"""The named maximum of everything a store keeps besides the objects themselves."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much past, how many unfinished writes and how many watchers a store holds.

    The past is for watchers that were away for a moment. All of it is read at each start,
    so it is kept short: a minute of a lab in which ten leases a second come and go.
    """

    history_count_max: int = 50_000
    """Changes kept for watchers that resume and for paging through a snapshot."""

    history_bytes_max: int = 16 * MIB
    """Bytes kept only because those changes are: superseded and deleted values."""

    pending_count_max: int = 10_000
    """Writes accepted and not yet durable; the next one is told to back off."""

    pending_bytes_max: int = 64 * MIB
    """Bytes of those writes."""

    watches_max: int = 20_000
    """Open watches; the next one is told to back off."""

    def __post_init__(self) -> None:
        assert self.history_count_max >= 0
        assert self.history_bytes_max >= 0
        assert self.pending_count_max > 0
        assert self.pending_bytes_max > 0
        assert self.watches_max > 0


DEFAULT_LIMITS = Limits()
