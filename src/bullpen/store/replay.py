"""Replays the rows of the log to a ledger.

The log holds one row per retained change, and the rows of older changes only while they are
the current value of a key. Replaying it in order gives the state, and the previous value
for each retained change. An inconsistent log is refused, not repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bullpen.store.base import Change, Entry, Verb
from bullpen.store.history import Write
from bullpen.store.ledger import Ledger
from bullpen.store.limits import Limits

Row = tuple[int, str, int, bytes]
"""Revision, key, code of the verb, value."""

Check = Callable[[bytes], object]
"""Raises ``ValueError`` for bytes that cannot be a value."""

VERBS = (Verb.CREATED, Verb.UPDATED, Verb.DELETED)
"""The verbs in the order of their codes."""


def row(write: Write) -> Row:
    """The row of a write in the log."""
    change = write.change
    code = 2 if change.verb is Verb.DELETED else 1 if write.before else 0
    return change.revision, change.key, code, change.value


class Contradiction(Exception):
    """No ledger could have written these rows."""


def anything(value: bytes) -> object:
    """A ``Check`` that accepts all values."""
    return value


def replay(
    rows: Iterable[Row], *, oldest: int | None, limits: Limits, check: Check = anything
) -> Ledger:
    """The ledger that wrote ``rows``. Raises ``Contradiction``."""
    if oldest is None:
        raise Contradiction("the log does not say where it begins")
    entries: dict[str, Entry] = {}
    history: list[Write] = []
    for revision, key, code, value in rows:
        _check_value(check, key, revision, value)
        before = entries.get(key)
        entry = Entry(key, value, revision)
        if revision > oldest:
            history.append(_retained(entry, code, before))
        elif before is not None or code == 2:
            raise Contradiction(f"{key} was left behind at revision {revision}")
        if code == 2:
            del entries[key]
        else:
            entries[key] = entry
    return Ledger(limits, oldest=oldest, entries=entries, history=history)


def _retained(entry: Entry, code: int, before: Entry | None) -> Write:
    if code not in range(len(VERBS)) or (code == 0) is not (before is None):
        raise Contradiction(f"{entry.key} cannot have changed so at revision {entry.revision}")
    previous = before.value if before else None
    change = Change(entry.revision, entry.key, VERBS[code], entry.value, previous)
    return Write(change, entry, before)


def _check_value(check: Check, key: str, revision: int, value: bytes) -> None:
    try:
        check(value)
    except ValueError as error:
        text = f"{key} holds something unreadable at revision {revision}: {error}"
        raise Contradiction(text) from error
