"""A controller as a value: a reconciler, what makes it run, and how many passes run at once.

A process makes its controllers from one list (``app.controllers``) and runs a ``ReconcileLoop``
for each of them. This module starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bullpen.api.fields import Kind
from bullpen.kit.clock import Clock
from bullpen.runtime.faults import Faults
from bullpen.runtime.informer import Informer, Key, key_of
from bullpen.runtime.loop import Lanes, ReconcileLoop, Reconciler, Retry

K = TypeVar("K", bound=Kind)
Q = TypeVar("Q", bound=Hashable)

Watch = Callable[[Callable[[Q], None]], None]
"""Connects a source of changes to a controller: called once, with the ``add`` of its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller(Generic[Q]):
    reconciler: Reconciler[Q]
    watches: tuple[Watch[Q], ...]
    workers: int = 1
    """Passes of different keys at the same time."""

    lanes: Lanes[Q] | None = None
    """Limits the passes at the same time of keys that may be slow together."""

    subject: Callable[[Q], Kind | None] = lambda _: None
    """The object on which a pass that failed unexpectedly is reported."""

    @property
    def name(self) -> str:
        return self.reconciler.name

    def loop(self, *, clock: Clock, retry: Retry, faults: Faults) -> ReconcileLoop[Q]:
        """The loop that runs the passes; its queue fills from now on."""
        loop = ReconcileLoop(
            self.reconciler,
            clock=clock,
            retry=retry,
            workers=self.workers,
            lanes=self.lanes,
            faults=faults,
            subject=self.subject,
        )
        for watch in self.watches:
            watch(loop.add)
        return loop


class Trigger(Generic[Q]):
    """Lets one part ask for passes of controllers that it does not know."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Q], None]] = []

    def listen(self, listener: Callable[[Q], None]) -> None:
        """Call ``listener`` with every key; this method is a ``Watch``."""
        self._listeners.append(listener)

    def __call__(self, key: Q) -> None:
        for listener in self._listeners:
            listener(key)


def every_change(view: Informer[K]) -> Watch[Key]:
    """Start a pass for an object whenever it appears, changes or disappears."""

    def watch(add: Callable[[Key], None]) -> None:
        def changed(old: K | None, new: K | None) -> None:
            value = new or old
            assert value is not None
            add(key_of(value))

        view.listen(changed)

    return watch
