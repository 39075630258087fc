"""The recent changes that a store keeps, and its limits.

The limits of everything a store keeps besides the objects themselves.

The newest durable changes, for watchers that resume and readers of a snapshot. Bounded by
count and by bytes. It drops only the oldest changes, and returns them so that they can be
deleted from the file too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from bullpen.store.base import Change, Entry, Verb
from bullpen.store.packing import Kept, entry_of, size_of

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


class Write(NamedTuple):
    """One change, with the answer for its writer and the state to restore on a rollback.

    A tuple and not a dataclass because one is created for every write.
    """

    change: Change
    entry: Entry
    before: Entry | None
    kept: Kept
    """``entry`` as it is kept."""

    @property
    def past(self) -> Past:
        return Past(self.change.verb, self.kept, self.before)


class Past(NamedTuple):
    """One change of the past, in as little memory as its values are kept in."""

    verb: Verb
    entry: Kept
    before: Kept | None

    @property
    def revision(self) -> int:
        return self.entry.revision

    @property
    def change(self) -> Change:
        entry, before = entry_of(self.entry), self.before
        previous = entry_of(before).value if before else None
        return Change(entry.revision, entry.key, self.verb, entry.value, previous)

    @property
    def superseded_bytes(self) -> int:
        """Bytes that only this change keeps alive."""
        superseded = size_of(self.before) if self.before else 0
        return superseded + size_of(self.entry) * (self.verb is Verb.DELETED)


class Forgotten(NamedTuple):
    """A change that is no longer retained, without its bytes."""

    revision: int
    unneeded: tuple[int, ...]
    """Revisions whose values are no longer referenced."""


class History:
    def __init__(self, limits: Limits, *, oldest: int, past: Iterable[Past]) -> None:
        self.oldest = oldest
        self._limits = limits
        self._past = deque(past)
        self._bytes = sum(each.superseded_bytes for each in self._past)

    def extend(self, writes: list[Write]) -> None:
        past = [write.past for write in writes]
        self._past.extend(past)
        self._bytes += sum(each.superseded_bytes for each in past)

    def trim(self) -> list[Forgotten]:
        """Drop the changes beyond the limits, and return them, oldest first."""
        forgotten = []
        while self._excessive():
            oldest = self._past.popleft()
            self._bytes -= oldest.superseded_bytes
            self.oldest = oldest.revision
            forgotten.append(_forgotten(oldest))
        return forgotten

    def newest_first(self, after: int) -> Iterator[Past]:
        """Every change after a revision, newest first; visits nothing older."""
        return takewhile(lambda each: each.revision > after, reversed(self._past))

    def _excessive(self) -> bool:
        limits = self._limits
        return len(self._past) > limits.history_count_max or (
            self._bytes > limits.history_bytes_max
        )


def _forgotten(past: Past) -> Forgotten:
    superseded = (past.before.revision,) if past.before else ()
    deleted = (past.revision,) if past.verb is Verb.DELETED else ()
    return Forgotten(past.revision, superseded + deleted)
