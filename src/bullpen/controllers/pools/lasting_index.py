"""The members and disks of every pool of lasting targets, by their owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import meta_of
from bullpen.runtime.informer import Informer

K = TypeVar("K", bound=Kind)


class OwnedIndex(Generic[K]):
    """Objects by the uid of the owner that controls them."""

    def __init__(self, view: Informer[K]) -> None:
        self._by_owner: dict[str, dict[str, K]] = {}
        self._listeners: list[Callable[[str], None]] = []
        view.listen(self._changed)

    def of(self, uid: str) -> tuple[K, ...]:
        """The objects of an owner, by name."""
        found = self._by_owner.get(uid, {})
        return tuple(found[name] for name in sorted(found))

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the uid of every owner whose objects change."""
        self._listeners.append(listener)

    def _changed(self, old: K | None, new: K | None) -> None:
        before, after = controller_uid(old), controller_uid(new)
        if before and old is not None and (before != after or new is None):
            self._by_owner.get(before, {}).pop(meta_of(old).name, None)
        if after and new is not None:
            self._by_owner.setdefault(after, {})[meta_of(new).name] = new
        for uid in dict.fromkeys((before, after)):
            for listener in self._listeners if uid else ():
                listener(uid)


def controller_uid(value: Kind | None) -> str:
    """The uid of the owner that controls an object; empty if there is none."""
    references = meta_of(value).owner_references if value is not None else ()
    return next((found.uid for found in references if found.controller), "")
