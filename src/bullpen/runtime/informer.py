"""Cached views of all objects of a kind.

A cached view of all objects of one kind, kept current by list and watch. Reads are
synchronous and local. The owner's own writes update the cache at once (``observe``), so
that a pass never decides on a state it has already changed itself.

A view leaves out objects that ``Kind.selected`` does not select. When an object ceases to be
selected, listeners are told that there is no object any more.

A listener that raises affects only the object it was called for: the exception is recorded
in ``faults`` and the other listeners and objects go on.

The newest state of every object of one kind, delivered once and in order. A change can
become known in three ways: the home announces a write before it is durable
(``Objects.foresee``), the API answers a write of this process (``Informer.observe``), and
the watch delivers it. Code that answers readers must wait for the watch. Code that decides
uses the earliest, because its decision is written after the change and is lost together
with it. This module is the only place that merges the three.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects, meta_of
from bullpen.errors import Gone, Unavailable
from bullpen.kit.selectors import parse_labels
from bullpen.runtime.faults import Faults
from bullpen.runtime.loop import Retry

log = logging.getLogger("bullpen.runtime")

PART = "view"
"""The part under which faults of listeners are recorded."""

K = TypeVar("K", bound=Kind)

Key = tuple[str, str]
"""Namespace and name."""

Listener = Callable[[K | None, K | None], None]
"""Called with the previous and the new object; None for no object."""


def key_of(value: Kind) -> Key:
    meta = meta_of(value)
    return meta.namespace, meta.name


def revision_of(value: Kind) -> int:
    return int(meta_of(value).resource_version or 0)


class Informer(Generic[K]):
    def __init__(
        self, objects: Objects, kind: type[K], *, retry: Retry, faults: Faults | None = None
    ) -> None:
        self._objects = objects
        self._faults = faults or Faults()
        self._kind = kind
        self._selected = parse_labels(kind.selected)
        self._retry = retry
        self._spaces: dict[str, dict[str, K]] = defaultdict(dict)
        self._position = 0
        """Every change up to this revision is in the cache."""

        self._listeners: list[Listener[K]] = []
        self._synced = asyncio.Event()
        self._failures = 0

    def listen(self, listener: Listener[K]) -> None:
        """Call ``listener`` for every change from now on, in order."""
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> K | None:
        space = self._spaces.get(namespace)
        return space.get(name) if space else None

    def all(self, namespace: str | None = None) -> Iterator[K]:
        """The objects of one namespace, or of all."""
        if namespace is not None:
            yield from self._spaces.get(namespace, {}).values()
            return
        for space in self._spaces.values():
            yield from space.values()

    def holds(self, value: K) -> bool:
        """Whether the view holds such an object, or leaves it out by ``Kind.selected``."""
        return self._selected.matches(meta_of(value).labels)

    def namespaces(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, space in self._spaces.items() if space))

    @property
    def live(self) -> bool:
        """Whether the first list has been read: objects that appear from now on are new."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until the first list has been read."""
        await self._synced.wait()

    def observe(self, value: K) -> None:
        """Apply the result of the owner's own write before the watch delivers it.

        A write older than the watch position may have been followed by a deletion, and must not
        bring the object back.
        """
        if revision_of(value) > self._position or self.get(*key_of(value)) is not None:
            self._set(value)

    async def run(self) -> None:
        """List, watch, and start over whenever the watch breaks. Ends only by cancellation."""
        while True:
            try:
                await self._follow()
            except Gone:
                # A broken watch asks for a new list at once, but repeated failures must back off.
                await asyncio.sleep(self._retry(self._failures).total_seconds())
                self._failures += 1
            except Unavailable as error:
                self._failures += 1
                delay = self._retry(self._failures)
                log.warning("watch broke", extra={"key": self._kind.kind, "cause": error.message})
                await asyncio.sleep(delay.total_seconds())
            except Exception:
                self._failures += 1
                delay = self._retry(self._failures)
                log.exception("watch failed", extra={"key": self._kind.kind, "retry": delay})
                await asyncio.sleep(delay.total_seconds())

    async def _follow(self) -> None:
        listing = await self._objects.list(self._kind)
        self._replace(listing.items, listing.revision)
        self._position = listing.revision
        self._synced.set()
        feed = self._objects.watch(self._kind, since=listing.revision)
        try:
            while True:
                for seen in await feed.next():
                    if seen.gone:
                        self._remove(seen.value)
                    else:
                        self._set(seen.value)
                    self._position = max(self._position, revision_of(seen.value))
                self._failures = 0
        finally:
            feed.close()

    def _replace(self, items: tuple[K, ...], revision: int) -> None:
        """Replace the cache with the list; our own writes made after the list are kept."""
        keep = {key_of(value) for value in items}
        for value in tuple(self.all()):
            if key_of(value) not in keep and revision_of(value) <= revision:
                self._drop(value)
        for value in items:
            self._set(value)

    def _set(self, value: K) -> None:
        namespace, name = key_of(value)
        space = self._spaces[namespace]
        old = space.get(name)
        if old is not None and revision_of(old) >= revision_of(value):
            return
        if not self.holds(value):
            if old is not None:
                self._drop(old)
            return
        if old is not None and meta_of(old).uid != meta_of(value).uid:
            # Another object of the same name: listeners see a deletion and a creation.
            self._drop(old)
            old = None
        space[name] = value
        self._tell(old, value)

    def _remove(self, value: K) -> None:
        old = self.get(*key_of(value))
        if old is not None and revision_of(old) <= revision_of(value):
            self._drop(old)

    def _drop(self, old: K) -> None:
        namespace, name = key_of(old)
        del self._spaces[namespace][name]
        self._tell(old, None)
        self._faults.forget(old)

    def _tell(self, old: K | None, new: K | None) -> None:
        value = new or old
        assert value is not None
        sound = True
        for listener in self._listeners:
            try:
                listener(old, new)
            except Exception as error:
                sound = False
                self._faults.report(PART, value, error)
        if sound:
            self._faults.clear(PART, value)


class Informers:
    """One informer per kind: ``informers[Lease]``, made on first use.

    All of them are made before ``run``. One made later would have read nothing yet, and a
    decision would take its empty cache for an empty lab.
    """

    def __init__(self, objects: Objects, *, retry: Retry) -> None:
        self.faults = Faults()
        """Objects that listeners and passes could not process."""

        self._objects = objects
        self._retry = retry
        self._informers: dict[type[Kind], Informer[Any]] = {}
        self._running = False

    def __getitem__(self, kind: type[K]) -> Informer[K]:
        found = self._informers.get(kind)
        if found is None:
            assert not self._running, f"the view of {kind.kind} is asked for after the start"
            found = Informer(self._objects, kind, retry=self._retry, faults=self.faults)
            self._informers[kind] = found
        return cast("Informer[K]", found)

    @property
    def kinds(self) -> frozenset[type[Kind]]:
        """The kinds that have a view."""
        return frozenset(self._informers)

    async def run(self) -> None:
        """Keep every view current until cancelled."""
        self._running = True
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def synced(self) -> None:
        """Wait until the first list of every kind has been read."""
        for informer in tuple(self._informers.values()):
            await informer.synced()


class Newest(Generic[K]):
    def __init__(self, objects: Objects, kind: type[K], view: Informer[K]) -> None:
        self._view = view
        self._ahead: dict[Key, K | None] = {}
        """Announced states that the view has yet to reach; None for a rolled back write."""

        self._listeners: list[Listener[K]] = []
        objects.foresee(kind, self._foreseen)
        view.listen(self._seen)

    @property
    def live(self) -> bool:
        """Whether the initial state is known: objects that appear from now on are new."""
        return self._view.live

    def listen(self, listener: Listener[K]) -> None:
        """Call ``listener`` for every change with the old and new state; None for no object."""
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> K | None:
        key = (namespace, name)
        return self._ahead[key] if key in self._ahead else self._view.get(namespace, name)

    def after(self, found: K) -> K | None:
        """``found`` as the API shows it, or a newer state that is not yet durable."""
        key = key_of(found)
        ahead = self._ahead.get(key, found)
        return found if _revision(ahead) < _revision(found) and ahead is not None else ahead

    def _foreseen(self, namespace: str, name: str, new: K | None) -> None:
        key, old = (namespace, name), self.get(namespace, name)
        new = new if new is not None and self._view.holds(new) else None
        seen = self._view.get(namespace, name)
        if _revision(new) == _revision(seen):
            # An announced write was lost, so the state in the view is current.
            self._ahead.pop(key, None)
        else:
            self._ahead[key] = new
        self._tell(old, new)

    def _seen(self, old: K | None, new: K | None) -> None:
        value = new or old
        assert value is not None
        key = key_of(value)
        if key not in self._ahead:
            self._tell(old, new)
            return
        ahead = self._ahead[key]
        # The announced state is newer than the delivered one, including a deletion.
        if (ahead is None and new is not None) or _revision(ahead) > _revision(value):
            return
        del self._ahead[key]
        self._tell(ahead, new)

    def _tell(self, old: K | None, new: K | None) -> None:
        if old is None and new is None:
            return
        if old is not None and new is not None and revision_of(old) == revision_of(new):
            return
        for listener in self._listeners:
            listener(old, new)


def _revision(value: Kind | None) -> int:
    return revision_of(value) if value is not None else 0
