"""How much work a change is to pools. Counted, because a count does not depend on the machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bullpen.api.meta import LocalObjectReference
from bullpen.controllers.pools.exporterset_reconciler import ExporterSetReconciler
from bullpen.core.pools import demand
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import Outcome
from support.pool_world import World


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


def test_demand_is_decided_once_for_all_pools_of_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[int] = []
    real = demand.share

    def share(*arguments: Any, **options: Any) -> Any:
        decided.append(len(arguments[1]))
        return real(*arguments, **options)

    async def story(world: World) -> None:
        await world.make_class()
        for number in range(6):
            await world.make_set(f"pool-{number}", labels={"board": "x"}, max_replicas=1)
        await world.sleep(1)
        monkeypatch.setattr(demand, "share", share)
        await world.ask("job", labels={"board": "x"})
        await world.until(lambda: world.got("job"))

    World().run(story)
    assert decided, "the pools were asked"
    assert len(decided) <= 6, "a pass of a pool that nothing changed for asks for nothing new"
    assert set(decided) == {6}
