"""The watcher notices what a watch leaves out, adds or mixes up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.registry import Registry
from bullpen.sim import virtual_time
from bullpen.sim.disk import Disk
from bullpen.sim.homes import NAMESPACES
from bullpen.sim.operators import GROUP, Operator
from bullpen.sim.truth import Raw, Truth, Violation
from bullpen.sim.watchers import Watcher
from bullpen.store.base import Change

Heard = Callable[[list[Change]], list[Change]]
"""What of the commits reaches those who check."""


class Stage:
    """An API server, a watcher of its clients, and somebody who makes some."""

    def __init__(self, clock: VirtualClock, heard: Heard, *, history: int) -> None:
        chance = random.Random(1)
        self.broken: list[Violation] = []
        self.deleted: set[str] = set()
        self.truth = Truth(asyncio.get_running_loop().time, self.broken.append)
        disk = Disk(chance, lambda changes: self.truth.committed(heard(changes)), history=history)
        self.served = Registry(disk.open(), clock=clock, ids=RandomIds(chance))
        self.watcher = Watcher(
            self.truth, self.registry, self.broken.append, chance, version=GROUP, kind="Client"
        )

    def registry(self) -> Registry:
        return self.served

    def say(self, who: str, what: str) -> None:
        """Nobody reads it."""

    async def run(self) -> None:
        await self.served.ensure_namespaces(NAMESPACES)
        watching = asyncio.ensure_future(self.watcher.run())
        await asyncio.sleep(10)
        for number in range(10):
            await Operator(self).apply(client(f"client{number}"))
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        watching.cancel()


def client(name: str) -> Raw:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": GROUP, "kind": "Client", "metadata": meta, "spec": {}}


def broken(heard: Heard, *, history: int = 1_000) -> tuple[list[Violation], int]:
    """What the watcher complains of, and how many changes it saw."""
    clock = VirtualClock()

    async def story() -> tuple[list[Violation], int]:
        stage = Stage(clock, heard, history=history)
        await stage.run()
        return stage.broken, stage.watcher.seen

    return virtual_time.run(clock, story())


def test_a_watch_that_tells_everything_once_is_fine() -> None:
    assert broken(list) == ([], 10)


def test_a_watch_that_must_list_again_is_fine() -> None:
    found, saw = broken(list, history=1)
    assert not found
    assert saw


@pytest.mark.parametrize(
    "missed",
    [
        pytest.param("client3", id="one that was never written is told of"),
        pytest.param("client9", id="the last one"),
    ],
)
def test_a_change_too_many_is_found(missed: str) -> None:
    found, _ = broken(lambda changes: [c for c in changes if missed.encode() not in c.value])
    assert found
    assert "ordered, complete" in found[0].promise


def test_a_change_that_is_left_out_is_found() -> None:
    def twice(changes: list[Change]) -> list[Change]:
        """As if another change had been committed before each, which the watch left out."""
        return [
            Change(2 * c.revision + extra, c.key, c.verb, c.value, c.previous)
            for c in changes
            for extra in (0, 1)
        ]

    found, _ = broken(twice)
    assert found
