"""How much work a change is to pools. Counted, because a count does not depend on the machine."""

from __future__ import annotations

from collections import Counter

import pytest
from pool_world import World

from bullpen.api.meta import LocalObjectReference
from bullpen.controllers.exportersets import ExporterSetReconciler
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import Outcome


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many passes there were over each set."""
    counted = Counter[str]()
    real = ExporterSetReconciler.reconcile

    async def reconcile(self: ExporterSetReconciler, key: Key) -> Outcome:
        counted[key[1]] += 1
        return await real(self, key)

    monkeypatch.setattr(ExporterSetReconciler, "reconcile", reconcile)
    return counted


async def two_pools(world: World) -> None:
    await world.make_class()
    await world.make_set("near", labels={"board": "near"}, min_available_replicas=1)
    await world.make_set("far", labels={"board": "far"}, min_available_replicas=1)
    await world.until(lambda: world.available(1, "near") and world.available(1, "far"))
    await world.sleep(60)


def test_a_lease_concerns_the_pools_that_could_serve_it(passes: Counter[str]) -> None:
    async def story(world: World) -> None:
        await two_pools(world)
        passes.clear()
        await world.ask("job", labels={"board": "near"})
        await world.until(lambda: world.got("job") and world.available(1, "near"))
        await world.release("job")
        await world.sleep(60)
        assert passes["near"]
        assert not passes["far"]

    World().run(story)


def test_a_lease_that_no_pool_could_serve_concerns_none(passes: Counter[str]) -> None:
    async def story(world: World) -> None:
        await two_pools(world)
        passes.clear()
        await world.ask("job", labels={"board": "none"})
        await world.until(lambda: world.lease("job").status.ended)
        await world.sleep(60)
        assert not passes

    World().run(story)


def test_a_lease_that_names_a_member_concerns_its_pool(passes: Counter[str]) -> None:
    async def story(world: World) -> None:
        await two_pools(world)
        (member,) = world.names("near")
        await world.ask("holds", labels={"board": "near"})
        await world.until(lambda: world.got("holds") == member)
        await world.sleep(60)
        passes.clear()
        await world.ask(
            "waits", labels={"board": "near"}, exporter_ref=LocalObjectReference(name=member)
        )
        await world.sleep(60)
        assert passes["near"]
        assert not passes["far"]

    World().run(story)
