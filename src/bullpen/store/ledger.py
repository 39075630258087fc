"""The state of a store in memory, and its replay from the log.

The in-memory model of both stores: durable state, accepted writes, history. Every call is
synchronous. The ledger decides whether a write is accepted and which revision it gets; it
does not make anything durable, wake any task or know about time. The code that makes writes
durable reports it with ``commit``, in the order they were accepted, or undoes all of them
with ``rollback``.

Replays the rows of the log to a ledger. The log holds one row per retained change, and the
rows of older changes only while they are the current value of a key. Replaying it in order
gives the state, and the previous value for each retained change. An inconsistent log is
refused, not repaired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice

from bullpen.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Gone,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from bullpen.store.base import ABSENT, Change, Encode, Entry, Page, Verb
from bullpen.store.history import Forgotten, History, Limits, Past, Write
from bullpen.store.keys import Keys
from bullpen.store.packing import Cold, Kept, Packed, entry_of, kept, nothing_is_cold, unpacked


class Ledger:
    def __init__(
        self,
        limits: Limits,
        *,
        oldest: int = 0,
        entries: dict[str, Kept] | None = None,
        history: Iterable[Past] = (),
        cold: Cold = nothing_is_cold,
    ) -> None:
        self._limits = limits
        self._cold = cold
        self._entries = {} if entries is None else entries
        self._keys = Keys(self._entries)
        self._history = History(limits, oldest=oldest, past=history)
        newest = next(self._history.newest_first(oldest), None)
        self.revision = newest.revision if newest else oldest
        self._accepted = self.revision
        self._pending: deque[Write] = deque()
        self._pending_bytes = 0
        self._heads: dict[str, Write] = {}

    @property
    def oldest(self) -> int:
        return self._history.oldest

    def get(self, key: str) -> Entry | None:
        found = self._entries.get(key)
        return entry_of(found) if found else None

    def head(self, key: str) -> Entry | None:
        write = self._heads.get(key)
        if write is None:
            return self.get(key)
        return None if write.change.verb is Verb.DELETED else write.entry

    def put(self, key: str, encode: Encode, expect: int) -> Write:
        """Accept a write to a key, or raise."""
        head = self.head(key)
        if expect != ABSENT:
            _compare(key, head, expect)
            return self._accept(key, Verb.UPDATED, encode, head)
        if head is not None:
            raise AlreadyExists(f"{key} already exists", key=key, revision=head.revision)
        _check_text(key)
        return self._accept(key, Verb.CREATED, encode, None)

    def delete(self, key: str, encode: Encode, expect: int) -> Write:
        """Accept the removal of a key, or raise."""
        head = self.head(key)
        _compare(key, head, expect)
        return self._accept(key, Verb.DELETED, encode, head)

    def commit(self, count: int) -> list[Write]:
        """The ``count`` oldest accepted writes are durable now. Returns them."""
        writes = [self._pending.popleft() for _ in range(count)]
        for write in writes:
            self._apply(write)
        self._history.extend(writes)
        self.revision = writes[-1].change.revision
        return writes

    def trim(self) -> list[Forgotten]:
        """Drop history beyond the limits, and return it, oldest first."""
        return self._history.trim()

    def rollback(self) -> None:
        """No accepted write became durable.

        Their revisions are not reused: a caller that saw one through ``head`` must not find it on
        another write.
        """
        self._pending.clear()
        self._pending_bytes = 0
        self._heads.clear()

    def since(self, revision: int) -> list[Change]:
        """Every durable change after a revision, oldest first. Raises ``Gone``."""
        self._check_retained(revision)
        changes = [past.change for past in self._history.newest_first(revision)]
        changes.reverse()
        return changes

    def scan(self, prefix: str, after: str, limit: int | None, at: int | None) -> Page:
        """A page of the current state, or of the state at a retained revision."""
        if at is None or at == self.revision:
            keys = self._keys.under(prefix, after)
            found = map(self._entries.__getitem__, islice(keys, limit))
            entries = tuple(map(entry_of, found))
            return Page(entries, self.revision, len(keys) - len(entries))
        return self._scan_past(prefix, after, limit, at)

    def warm(self, prefix: str) -> Page:
        """The current state without cold values."""
        found = map(self._entries.__getitem__, self._keys.under(prefix, ""))
        entries = tuple(entry for entry in found if isinstance(entry, Entry))
        return Page(entries, self.revision, 0)

    def _accept(self, key: str, verb: Verb, encode: Encode, before: Entry | None) -> Write:
        self._check_room()
        revision = self._accepted + 1
        value = encode(revision)
        assert self._accepted == revision - 1, "encode must not write to the store"
        change = Change(revision, key, verb, value, before.value if before else None)
        entry = Entry(key, value, revision)
        keep = entry if verb is Verb.DELETED else kept(entry, self._cold)
        write = Write(change, entry, before, keep)
        self._accepted = revision
        self._pending.append(write)
        self._pending_bytes += len(value)
        self._heads[key] = write
        return write

    def _apply(self, write: Write) -> None:
        change, key = write.change, write.change.key
        self._pending_bytes -= len(change.value)
        if self._heads[key] is write:
            del self._heads[key]
        if change.verb is Verb.DELETED:
            del self._entries[key]
            self._keys.remove(key)
            return
        if change.verb is Verb.CREATED:
            self._keys.add(key)
        self._entries[key] = write.kept

    def _scan_past(self, prefix: str, after: str, limit: int | None, at: int) -> Page:
        self._check_retained(at)
        past = self._undo(prefix, after, at)
        gone = sorted(key for key, entry in past.items() if entry and key not in self._entries)
        new = {key for key, entry in past.items() if entry is None and key in self._entries}
        present = self._keys.under(prefix, after)
        keys = (key for key in merge(present, gone) if key not in new)
        found = (past.get(key) or self._entries[key] for key in islice(keys, limit))
        entries = tuple(map(entry_of, found))
        remaining = len(present) + len(gone) - len(new) - len(entries)
        return Page(entries, at, remaining)

    def _undo(self, prefix: str, after: str, at: int) -> dict[str, Kept | None]:
        """The value at ``at`` of each key that changed since; None if it did not exist."""
        past: dict[str, Kept | None] = {}
        for each in self._history.newest_first(at):
            key = each.entry.key
            if key > after and key.startswith(prefix):
                past[key] = each.before
        return past

    def _check_retained(self, revision: int) -> None:
        if revision < self.oldest:
            raise Gone(
                f"revision {revision} has been compacted; read again from the newest one",
                oldest=self.oldest,
                revision=self.revision,
            )
        if revision > self.revision:
            raise Unavailable(
                f"revision {revision} lies in the future; the newest is {self.revision}",
                revision=self.revision,
            )

    def _check_room(self) -> None:
        limits = self._limits
        if (
            len(self._pending) >= limits.pending_count_max
            or self._pending_bytes >= limits.pending_bytes_max
        ):
            raise TooManyRequests(
                "too many writes are waiting for the disk; try again shortly",
                pending=len(self._pending),
                pending_bytes=self._pending_bytes,
            )


def _compare(key: str, head: Entry | None, expect: int) -> None:
    if head is None:
        raise NotFound(f"{key} does not exist", key=key)
    if head.revision != expect:
        raise Conflict(
            f"{key} is at revision {head.revision}, not {expect}; read it again",
            key=key,
            revision=head.revision,
        )


def _check_text(key: str) -> None:
    # An unpaired surrogate cannot be stored, and would fail its whole batch.
    if not key or (not key.isascii() and key != key.encode(errors="replace").decode()):
        raise BadRequest(f"{key!r} is not valid text", key=key)


Row = tuple[int, str, int, bytes]
"""Revision, key, code of the verb, value; the value of a code with ``PACKED`` is packed."""

Check = Callable[[bytes], object]
"""Raises ``ValueError`` for bytes that cannot be a value."""

VERBS = (Verb.CREATED, Verb.UPDATED, Verb.DELETED)
"""The verbs in the order of their codes."""

PACKED = 4
"""Added to the code of a verb."""


def row(write: Write) -> Row:
    """The row of a write in the log."""
    change = write.change
    code = 2 if change.verb is Verb.DELETED else 1 if write.before else 0
    if isinstance(write.kept, Packed):
        return change.revision, change.key, code + PACKED, write.kept.data
    return change.revision, change.key, code, change.value


class Contradiction(Exception):
    """No ledger could have written these rows."""


def anything(value: bytes) -> object:
    """A ``Check`` that accepts all values."""
    return value


def replay(
    rows: Iterable[Row],
    *,
    oldest: int | None,
    limits: Limits,
    check: Check = anything,
    cold: Cold = nothing_is_cold,
) -> Ledger:
    """The ledger that wrote ``rows``. Raises ``Contradiction``."""
    if oldest is None:
        raise Contradiction("the log does not say where it begins")
    entries: dict[str, Kept] = {}
    history: list[Past] = []
    for revision, key, stored, value in rows:
        packed = stored >= PACKED
        code = stored - PACKED if packed else stored
        _check_value(unpacked if packed else check, key, revision, value)
        before = entries.get(key)
        entry = _read(key, value, revision, packed=packed, cold=cold)
        if revision > oldest:
            history.append(_retained(entry, code, before))
        elif before is not None or code == 2:
            raise Contradiction(f"{key} was left behind at revision {revision}")
        if code == 2:
            del entries[key]
        else:
            entries[key] = entry
    return Ledger(limits, oldest=oldest, entries=entries, history=history, cold=cold)


def _read(key: str, value: bytes, revision: int, *, packed: bool, cold: Cold) -> Kept:
    """A row as it is kept; a cold value of an older version may not be packed yet."""
    if packed:
        return Packed(key, value, revision)
    return kept(Entry(key, value, revision), cold)


def _retained(entry: Kept, code: int, before: Kept | None) -> Past:
    if code not in range(len(VERBS)) or (code == 0) is not (before is None):
        raise Contradiction(f"{entry.key} cannot have changed so at revision {entry.revision}")
    return Past(VERBS[code], entry, before)


def _check_value(check: Check, key: str, revision: int, value: bytes) -> None:
    try:
        check(value)
    except ValueError as error:
        text = f"{key} holds something unreadable at revision {revision}: {error}"
        raise Contradiction(text) from error
