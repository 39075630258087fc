"""Distributes durable changes to all watchers of matching prefixes.

A watcher is found by its prefix: by the text up to the last slash, and then by the rest. A
batch of changes is filtered once per distinct prefix and the same tuple is handed to all of
its watchers. No watcher is waited for: one that does not keep up is disconnected.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import islice

from bullpen.errors import Gone, LabError, TooManyRequests, Unavailable
from bullpen.store.base import Change

WOKEN_AT_ONCE_MAX = 32
"""Watchers that are woken in one iteration of the event loop."""


@dataclass(slots=True, eq=False)
class Group:
    """The watchers of one prefix, in the order they came."""

    rest: str
    """The part of the prefix after its last slash; usually empty."""

    watchers: dict[Watcher, None] = field(default_factory=dict)


class Fanout:
    def __init__(self, *, revision: int, watches_max: int) -> None:
        self.revision = revision
        """The newest durable revision; every watcher has been handed all changes up to it."""

        self._watches_max = watches_max
        self._count = 0
        self._groups: dict[str, dict[str, Group]] = {}
        """By the prefix up to its last slash, then by the rest of it."""

        self._to_wake: dict[Watcher, None] = {}
        """Watchers that have unread changes and wait, in order."""

        self._waking = False

    def watch(self, prefix: str, replay: list[Change], buffer_max: int) -> Watcher:
        """A watcher that starts with the changes of ``replay`` under its prefix."""
        if self._count >= self._watches_max:
            raise TooManyRequests("too many watches are open", watches=self._count)
        missed = tuple(change for change in replay if change.key.startswith(prefix))
        watcher = Watcher(self, prefix, missed, buffer_max)
        parent, rest = _split(prefix)
        siblings = self._groups.setdefault(parent, {})
        siblings.setdefault(rest, Group(rest)).watchers[watcher] = None
        self._count += 1
        return watcher

    def dispatch(self, changes: list[Change]) -> None:
        """Distribute changes that just became durable, in order."""
        self.revision = changes[-1].revision
        if not self._groups:
            return
        matched: dict[Group, list[Change]] = {}
        for change in changes:
            for group in self._interested(change.key):
                matched.setdefault(group, []).append(change)
        for group, mine in matched.items():
            shared = tuple(mine)
            for watcher in tuple(group.watchers):
                watcher.feed(shared)
                self._to_wake[watcher] = None
        if not self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """Wake a few watchers in this iteration of the event loop, and the others in the next.

        Otherwise the writer, whose task continues after those that were woken before it, would
        wait until a thousand watchers have sent their event.
        """
        for watcher in tuple(islice(self._to_wake, WOKEN_AT_ONCE_MAX)):
            del self._to_wake[watcher]
            watcher.wake()
        self._waking = bool(self._to_wake)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def remove(self, watcher: Watcher) -> None:
        parent, rest = _split(watcher.prefix)
        siblings = self._groups[parent]
        del siblings[rest].watchers[watcher]
        if not siblings[rest].watchers:
            del siblings[rest]
        if not siblings:
            del self._groups[parent]
        self._count -= 1

    def close(self) -> None:
        """End every watch once it has read its buffer."""
        groups = [group for siblings in self._groups.values() for group in siblings.values()]
        for watcher in [watcher for group in groups for watcher in group.watchers]:
            watcher.close()

    def _interested(self, key: str) -> list[Group]:
        found: list[Group] = []
        end = 0
        while True:
            siblings = self._groups.get(key[:end])
            if siblings:
                found += [group for group in siblings.values() if key.startswith(group.rest, end)]
            end = key.find("/", end) + 1
            if not end:
                return found


class Watcher:
    """One ``Watch`` and its buffer of unread changes."""

    def __init__(
        self, fanout: Fanout, prefix: str, missed: tuple[Change, ...], buffer_max: int
    ) -> None:
        self.prefix = prefix
        self._fanout = fanout
        self._buffer_max = buffer_max
        self._chunks = [missed] if missed else []
        # The replay is not counted: a client reads it at its own pace.
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended_at: int | None = None
        self._cut = False
        self._nudged = False

    async def next(self) -> tuple[Change, ...]:
        while not self._chunks:
            if self._ended_at is not None:
                raise self._end()
            if self._nudged:
                self._nudged = False
                return ()
            await self._fed()
        chunks, self._chunks = self._chunks, []
        self._unread = 0
        return chunks[0] if len(chunks) == 1 else tuple(c for chunk in chunks for c in chunk)

    def nudge(self) -> None:
        self._nudged = True
        self.wake()

    @property
    def position(self) -> int:
        if self._chunks:
            return self._chunks[0][0].revision - 1
        return self._fanout.revision if self._ended_at is None else self._ended_at

    def close(self) -> None:
        self._finish(self._fanout.revision)

    def feed(self, changes: tuple[Change, ...]) -> None:
        self._unread += len(changes)
        if self._unread > self._buffer_max:
            self._cut = True
            behind = self._chunks[0][0] if self._chunks else changes[0]
            self._chunks.clear()
            self._finish(behind.revision - 1)
        else:
            self._chunks.append(changes)

    def _finish(self, position: int) -> None:
        if self._ended_at is None:
            self._ended_at = position
            self._fanout.remove(self)
            self.wake()

    async def _fed(self) -> None:
        assert self._waiter is None, "a watch has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the reader continue, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> LabError:
        if self._cut:
            return Gone(
                f"more than {self._buffer_max} changes were left unread; list and watch again",
                prefix=self.prefix,
            )
        return Unavailable("the watch is closed", prefix=self.prefix)


def _split(prefix: str) -> tuple[str, str]:
    end = prefix.rfind("/") + 1
    return prefix[:end], prefix[end:]
