"""Watches of objects: store changes as the events Kubernetes clients expect.

An object that starts to match a selector is ADDED, one that stops matching is DELETED,
whatever happened to it in the store. Without a selector a change is passed on unchanged and
nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bullpen.api.paths import Document
from bullpen.registry.commits import restamped
from bullpen.registry.lists import Filter
from bullpen.store.base import Change, Entry, Verb, Watch


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    type: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``."""

    value: bytes
    """The object; for a deletion its last matching state. Its resourceVersion is the event's."""

    revision: int


class ObjectWatch:
    """The events of the objects of one resource, in order, each exactly once."""

    def __init__(
        self,
        changes: Watch,
        wanted: Filter,
        read: Callable[[bytes], Document],
        *,
        state: tuple[Entry, ...] | None = None,
        revision: int = 0,
    ) -> None:
        """``read`` decodes a stored object once for all watchers.

        ``state``, if given, is the state at ``revision``, after which ``changes`` continue.
        """
        self._changes = changes
        self._wanted = wanted
        self._read = read
        self._state = state
        self._revision = revision

    async def next(self) -> tuple[ObjectEvent, ...]:
        """Wait for events and return all of them; the first call returns the initial state.

        Returns no events after a ``nudge``.

        Raises the errors of the store's watch: ``Gone`` when this watcher fell too far behind,
        ``Unavailable`` when the store is closed.
        """
        if self._state:
            return self.initial()
        while True:
            changes = await self._changes.next()
            events = self._events(changes)
            if events or not changes:
                return events

    def nudge(self) -> None:
        """Make ``next`` return even if there are no events."""
        self._changes.nudge()

    def initial(self) -> tuple[ObjectEvent, ...]:
        """The initial state as ADDED events; empty once it was returned.

        For callers that must mark its end. Others leave it to ``next``.
        """
        state, self._state = self._state or (), None
        return tuple(ObjectEvent("ADDED", entry.value, entry.revision) for entry in state)

    @property
    def position(self) -> int:
        """Every event up to this revision has been returned."""
        return self._revision if self._state else self._changes.position

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._changes.close()

    def _events(self, changes: tuple[Change, ...]) -> tuple[ObjectEvent, ...]:
        if not self._wanted:
            return tuple(ObjectEvent(c.verb.value, c.value, c.revision) for c in changes)
        found = (self._event(change) for change in changes)
        return tuple(event for event in found if event is not None)

    def _event(self, change: Change) -> ObjectEvent | None:
        was, is_now = self._matched(change)
        if change.verb is Verb.DELETED:
            return ObjectEvent("DELETED", change.value, change.revision) if was else None
        if is_now:
            return ObjectEvent("MODIFIED" if was else "ADDED", change.value, change.revision)
        if was:
            assert change.previous is not None, "what was not there did not match"
            # The last state clients know, at the revision where it stopped matching.
            value = restamped(change.previous, change.revision)
            return ObjectEvent("DELETED", value, change.revision)
        return None

    def _matched(self, change: Change) -> tuple[bool, bool]:
        """Whether the object matched before the change, and whether it does after."""
        previous = change.previous
        return (
            previous is not None and self._wanted.matches_read(change.key, previous, self._read),
            self._wanted.matches_read(change.key, change.value, self._read),
        )
