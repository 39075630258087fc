"""The newest state of every object of one kind, delivered once and in order.

A change can become known in three ways: the home announces a write before it is durable
(``Objects.foresee``), the API answers a write of this process (``Informer.observe``), and
the watch delivers it. Code that answers readers must wait for the watch. Code that decides
uses the earliest, because its decision is written after the change and is lost together
with it. This module is the only place that merges the three.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects
from bullpen.runtime.informer import Informer, Key, Listener, key_of, revision_of

K = TypeVar("K", bound=Kind)


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
