"""A simulated watcher: gets every change once, in order, also after breaks and compactions.

The expected changes are known from the commits themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from bullpen.errors import Gone, LabError
from bullpen.registry.registry import Registry
from bullpen.sim.truth import Truth, Violation

PROMISE = "a watch is ordered, complete and without duplicates"
PATIENCE, PATIENCE_CALM = (0.5, 15.0), (60.0, 120.0)
"""Seconds after which the watcher disconnects and later resumes: with faults and without."""


class Watcher:
    """Follows one kind across restarts of the service."""

    def __init__(
        self,
        truth: Truth,
        registry: Callable[[], Registry | None],
        broken: Callable[[Violation], None],
        chance: random.Random,
        *,
        version: str,
        kind: str,
    ) -> None:
        self._truth = truth
        self._registry = registry
        self._broken = broken
        self._chance = chance
        self._version = version
        self._kind = kind
        self._position = 0
        self.calm = False
        self.seen = 0

    async def run(self) -> None:
        while True:
            registry = self._registry()
            try:
                if registry is not None:
                    patience = PATIENCE_CALM if self.calm else PATIENCE
                    async with asyncio.timeout(self._chance.uniform(*patience)):
                        await self._follow(registry)
            except Gone:
                self._list_again()
            except (TimeoutError, LabError):
                # The watcher or the service disconnected; it continues where it was.
                pass
            await asyncio.sleep(self._chance.uniform(0.1, 5.0))

    async def _follow(self, registry: Registry) -> None:
        resource = registry.resources.of_kind(self._version, self._kind)
        assert resource is not None
        watch = registry.watch(resource, None, since=self._position)
        try:
            while True:
                for event in await watch.next():
                    self._check(resource.prefix, event.revision)
        finally:
            watch.close()

    def _list_again(self) -> None:
        registry = self._registry()
        if registry is not None:
            resource = registry.resources.of_kind(self._version, self._kind)
            assert resource is not None
            listed = registry.list(resource, None)
            self._position = listed.revision
            known = sum(raw["apiVersion"] == self._version for raw in self._truth.all(self._kind))
            if self._truth.revision == listed.revision and len(listed.entries) != known:
                self._break(f"{len(listed.entries)} of {self._kind} are listed, not {known}")

    def _check(self, prefix: str, revision: int) -> None:
        expected = self._truth.next_change(prefix, self._position)
        if revision != expected:
            text = f"{self._kind}: revision {revision} came after {self._position}, not {expected}"
            self._break(text)
        self._position = revision
        self.seen += 1

    def _break(self, text: str) -> None:
        self._broken(Violation(PROMISE, text, asyncio.get_running_loop().time()))
