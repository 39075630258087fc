"""The contract of every store.

One process owns a store and every call comes from one event loop. Reads are synchronous and
see only durable state. A write is *accepted* in call order as soon as ``put`` or ``delete``
is called, and *acknowledged* when the returned awaitable completes, which is after it is
durable. Many accepted writes share one commit. Watchers and readers never see a write that
a crash could undo.

Revisions only grow, across restarts too. They have gaps where writes failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

ABSENT = 0
"""As ``expect``: the key must not exist yet."""

WATCH_BUFFER_MAX = 10_000
"""Changes a watcher may leave unread before it is cut off."""

Encode = Callable[[int], bytes]
"""Given the revision of a write, the bytes to store.

Called at once, inside ``put`` or ``delete``. It exists because a Kubernetes object contains
its own revision.
"""


class Verb(Enum):
    CREATED = "ADDED"
    UPDATED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Entry:
    """The bytes of a key and the revision that wrote them."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One durable change. For a deletion ``value`` is the last state, re-stamped."""

    revision: int
    key: str
    verb: Verb
    value: bytes
    previous: bytes | None
    """The value before the change; None if the change created the key."""


@dataclass(frozen=True, slots=True)
class Page:
    """A slice of the keys under a prefix, all read at one revision."""

    entries: tuple[Entry, ...]
    revision: int
    remaining: int
    """How many keys under the prefix come after the last entry."""


class Watch(Protocol):
    """The changes under one prefix, in order, each exactly once."""

    async def next(self) -> tuple[Change, ...]:
        """Wait for changes and return all that are buffered, oldest first; none after a ``nudge``.

        Raises ``Gone`` once this watcher fell more than its buffer behind, and ``Unavailable`` once
        the store or the watch is closed and the buffer has been read. Both are final.
        """

    def nudge(self) -> None:
        """Make ``next`` return even without changes: cheaper than a timeout around each call."""

    @property
    def position(self) -> int:
        """Every change up to this revision has been returned by ``next``.

        With an empty buffer this is the newest durable revision, even if the newest changes lie
        outside the prefix: it is the revision of a bookmark.
        """

    def close(self) -> None:
        """Stop. Safe to call twice."""


class Store(Protocol):
    @property
    def revision(self) -> int:
        """The newest durable revision; 0 for a store that was never written."""

    @property
    def oldest(self) -> int:
        """Changes after this revision are retained; older ones may be gone."""

    def get(self, key: str) -> Entry | None:
        """The durable state of a key."""

    def head(self, key: str) -> Entry | None:
        """The newest *accepted* state of a key, durable or not.

        Only for computing the next write to that key: a write based on it is
        acknowledged after the write it builds on, or fails with it.
        """

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, at: int | None = None
    ) -> Page:
        """Entries under ``prefix`` in key order, starting after ``after``.

        ``at`` reads the state at that revision, for paging through one consistent snapshot; its
        cost is proportional to the changes since. Raises ``Gone`` if the revision is no longer
        retained, ``Unavailable`` if it lies in the future.
        """

    def warm(self, prefix: str) -> Page:
        """All entries under ``prefix`` in key order, without cold ones, which cost nothing."""

    def put(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        """Write a key whose newest accepted revision is ``expect``.

        The comparison happens at once: the call itself raises ``Conflict`` (or ``AlreadyExists``
        for ``ABSENT``, ``NotFound`` when there is nothing to update), and ``TooManyRequests`` when
        too many accepted writes are not durable yet. The awaitable raises ``StorageFailed`` when
        the write could not be made durable; then it did not happen. A caller that stops waiting for
        an accepted write does not undo it.
        """

    def delete(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        """Remove a key whose newest accepted revision is ``expect``.

        ``encode`` returns the last state as watchers see it. Raises the errors of ``put``.
        """

    def watch(self, prefix: str, *, since: int, buffer_max: int = WATCH_BUFFER_MAX) -> Watch:
        """Every change under ``prefix`` after revision ``since``.

        Changes that are already durable are buffered at once and do not count towards
        ``buffer_max``. Raises ``Gone`` when ``since`` is older than ``oldest``, ``Unavailable``
        when it lies in the future, and ``TooManyRequests`` when too many watches are open.
        """

    async def close(self) -> None:
        """Make every accepted write durable, then release all resources.

        Further writes and watches raise ``Unavailable``; reads still work. Safe to call twice.
        """
