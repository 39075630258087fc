"""Gap 3: removal by name is idempotent, all or nothing, and atomic with the count."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from test_lasting_pools import edit, lease, make, names, pool, ready, targets

from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.resources import RESOURCES
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.apiserver.routes import ObjectRoute, route
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.errors import BadRequest, Conflict, NotFound
from support.pool_world import World

PATH = (
    "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
    "/virtualtargetpools/p/scaledownwith"
)


async def remove(world: World, *targets: str, dry_run: bool = False, **body: Any) -> Any:
    target = route(PATH, RESOURCES)
    assert isinstance(target, ObjectRoute)
    downs = ScaleDowns(world.objects)
    return (await downs.answer(target, {"targets": list(targets), **body}, dry_run=dry_run))[
        "status"
    ]


def watched(world: World) -> list[tuple[int, int]]:
    """Every count of the pool with the number of its removals, as observers saw them."""
    seen: list[tuple[int, int]] = []

    def note(_: VirtualTargetPool | None, new: VirtualTargetPool | None) -> None:
        if new is not None:
            seen.append((new.spec.replicas, len(new.spec.removals)))

    world.views[VirtualTargetPool].listen(note)
    return seen


@pytest.mark.parametrize("policy", list(ScaleDownPolicy))
def test_the_named_members_go_and_the_count_falls_by_as_many(policy: ScaleDownPolicy) -> None:
    async def story(world: World) -> None:
        await make(world, 4, scale_down_policy=policy)
        seen = watched(world)
        created = []
        world.views[VirtualTarget].listen(
            lambda old, new: created.append(new) if old is None else None
        )
        status = await remove(world, "p-1", "p-2", "p-1")
        assert (status["replicas"], status["leaving"]) == (2, ["p-1", "p-2"])
        for _ in range(3):
            again = await remove(world, "p-1", "p-2")
            assert (again["replicas"], again["leaving"]) == (2, [])
        await world.until(lambda: names(world) == ["p-0", "p-3"])
        assert (await remove(world, "p-1"))["alreadyLeaving"] == ["p-1"]
        await world.until(lambda: not pool(world).spec.removals)
        await world.always(lambda: names(world) == ["p-0", "p-3"], seconds=60)
        assert not created
        assert (2, 0) not in seen[: seen.index((2, 2))]

    World().run(story)


def test_a_slow_removal_can_be_asked_for_again() -> None:
    async def story(world: World) -> None:
        await make(world, 3)
        world.provisioner.faults = replace(world.provisioner.faults, stop_seconds=(60.0, 60.0))
        await remove(world, "p-0")
        await world.until(lambda: targets(world)["p-0"].metadata.deletion_timestamp is not None)
        for _ in range(3):
            assert (await remove(world, "p-0"))["leaving"] == []
            await world.sleep(5)
        assert pool(world).spec.replicas == 2
        await world.until(lambda: names(world) == ["p-1", "p-2"], seconds=90)

    World().run(story)


def test_one_wrong_name_changes_nothing() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        with pytest.raises(BadRequest, match="stranger is not a member of p"):
            await remove(world, "p-0", "stranger")
        with pytest.raises(BadRequest, match="at least one"):
            await remove(world)
        with pytest.raises(BadRequest, match="list of names"):
            await remove(world, 7)  # type: ignore[arg-type]
        await world.always(lambda: ready(world) == 2, seconds=30)
        assert pool(world).spec.replicas == 2

    World().run(story)


def test_a_dry_run_checks_everything_and_changes_nothing() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        for status in (
            await remove(world, "p-0", dry_run=True),
            await remove(world, "p-0", dryRun=["All"]),
        ):
            assert (status["replicas"], status["leaving"], status["dryRun"]) == (1, ["p-0"], True)
        with pytest.raises(BadRequest):
            await remove(world, "stranger", dry_run=True)
        assert pool(world).spec.replicas == 2

    World().run(story)


def test_a_leased_member_is_refused_or_leaves_when_it_is_idle() -> None:
    async def story(world: World) -> None:
        await make(world, 2, scale_down_policy=ScaleDownPolicy.EXPLICIT)
        held = await lease(world, "job")
        with pytest.raises(Conflict, match="lease job holds"):
            await remove(world, held)
        assert pool(world).spec.replicas == 2
        await remove(world, held, whenIdle=True)
        await world.always(lambda: len(names(world)) == 2, seconds=60)
        assert not world.lease("job").status.ended
        await world.release("job")
        await world.until(lambda: held not in names(world))
        await world.always(lambda: len(names(world)) == 1, seconds=30)

    World().run(story)


def test_a_member_that_leaves_when_idle_takes_no_further_lease() -> None:
    """Waiting leases could else keep it for ever, one after the other."""

    async def story(world: World) -> None:
        await make(world, 1)
        held = await lease(world, "job")
        await world.ask("next")
        await remove(world, held, whenIdle=True)
        await world.always(lambda: held in names(world), seconds=30)
        assert not world.lease("job").status.ended
        await world.release("job")
        await world.until(lambda: not names(world))
        assert not world.got("next")

    World().run(story)


def test_a_hundred_removals_from_eight_callers_lose_and_double_nothing() -> None:
    async def story(world: World) -> None:
        await make(world, 100)
        left = [f"p-{n}" for n in range(90)]

        async def caller(number: int) -> None:
            for name in left[number::4]:  # each name is asked for by two callers
                await remove(world, name)

        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(caller(number % 4))
        assert pool(world).spec.replicas == 10
        await world.until(lambda: len(names(world)) == 10, seconds=120)
        await edit(world, replicas=11)
        await world.until(lambda: ready(world) == 11)
        assert set(names(world)) == {*(f"p-{n}" for n in range(90, 100)), "p-100"}

    World().run(story)


@pytest.mark.parametrize(
    "path",
    [
        PATH.replace("subresources.", ""),
        PATH.replace("virtualtargetpools", "virtualtargets"),
        PATH.replace("v1alpha1", "v9"),
        f"{PATH}/more",
    ],
)
def test_other_paths_are_not_served(path: str) -> None:
    with pytest.raises(NotFound):
        route(path, RESOURCES)
