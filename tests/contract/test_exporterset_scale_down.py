"""How an ExporterSet shrinks: by its policy, and by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSetSpec, RecycleStrategy
from bullpen.api.resources import RESOURCES
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.apiserver.routes import ObjectRoute, route
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.errors import BadRequest, Conflict, Invalid, NotFound
from support.pool_world import NAMESPACE, World

PATH = (
    "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
    "/exportersets/qemu/scaledownwith"
)
REUSED = RecycleStrategy.IN_PLACE_REUSE


async def remove(world: World, *targets: Any, dry_run: bool = False, **body: Any) -> Any:
    target = route(PATH, RESOURCES)
    assert isinstance(target, ObjectRoute)
    asked = {"targets": list(targets), **body}
    return (await ScaleDowns(world.objects).answer(target, asked, dry_run=dry_run))["status"]


def spec(world: World) -> ExporterSetSpec:
    found = world.views.sets.get(NAMESPACE, "qemu")
    assert found is not None
    return found.spec


async def make(world: World, count: int, **fields: Any) -> None:
    """A set with so many members that are ready; then it gets the fields, at its leisure."""
    await world.make_class()
    await world.make_set(
        min_replicas=count,
        max_replicas=count,
        recycle_strategy=REUSED,
        scale_down_cooldown=timedelta(hours=1),
    )
    await world.until(lambda: world.available(count))
    await world.edit_set(**fields)
    await world.until(lambda: world.status().observed_generation == generation(world))


def generation(world: World) -> int:
    found = world.views.sets.get(NAMESPACE, "qemu")
    assert found is not None
    return found.metadata.generation


@pytest.mark.parametrize(
    ("policy", "left"),
    [(ScaleDownPolicy.NEWEST_FIRST, "qemu-0"), (ScaleDownPolicy.OLDEST_FIRST, "qemu-2")],
)
def test_the_policy_says_which_members_of_a_set_go_first(
    policy: ScaleDownPolicy, left: str
) -> None:
    async def story(world: World) -> None:
        await make(world, 3, scale_down_policy=policy)
        await world.edit_set(max_replicas=1, min_replicas=0)
        await world.until(lambda: world.names() == [left])

    World().run(story)


class TestExplicitSets:
    def test_nothing_is_removed_anonymously(self) -> None:
        async def story(world: World) -> None:
            await make(world, 3, scale_down_policy=ScaleDownPolicy.EXPLICIT)
            before = world.uids()
            await world.edit_set(min_replicas=0, scale_down_cooldown=timedelta(seconds=1))
            await world.always(lambda: world.uids() == before, seconds=120)
            await world.edit_set(paused=True)
            await world.always(lambda: world.uids() == before, seconds=120)

        World().run(story)

    def test_a_lower_ceiling_is_refused_and_names_the_way_that_works(self) -> None:
        async def story(world: World) -> None:
            await make(world, 3, scale_down_policy=ScaleDownPolicy.EXPLICIT)
            for fields in (
                {"max_replicas": 2, "min_replicas": 0},
                {
                    "max_replicas": 2,
                    "min_replicas": 0,
                    "scale_down_policy": ScaleDownPolicy.NEWEST_FIRST,
                },
            ):
                with pytest.raises(Invalid, match="bullpen scale-down exporterset/NAME"):
                    await world.edit_set(**fields)
            await world.edit_set(max_replicas=4)
            await world.edit_set(max_replicas=0)
            with pytest.raises(Invalid, match="bullpen scale-down"):
                await world.edit_set(max_replicas=9)

        World().run(story)

    def test_another_policy_begins_with_a_full_cooldown(self) -> None:
        async def story(world: World) -> None:
            await make(world, 3, scale_down_policy=ScaleDownPolicy.EXPLICIT)
            await world.edit_set(min_replicas=0, scale_down_cooldown=timedelta(minutes=2))
            await world.sleep(600)
            await world.edit_set(scale_down_policy=ScaleDownPolicy.NEWEST_FIRST)
            await world.always(lambda: len(world.names()) == 3, seconds=110)
            await world.until(lambda: not world.names())

        World().run(story)


class TestRemovalByName:
    @pytest.mark.parametrize("policy", list(ScaleDownPolicy))
    def test_the_named_members_go_and_the_ceiling_falls_by_as_many(
        self, policy: ScaleDownPolicy
    ) -> None:
        async def story(world: World) -> None:
            await make(world, 4, min_replicas=2, min_available_replicas=2, scale_down_policy=policy)
            before = world.uids()
            kept = {m.metadata.uid for m in world.members() if m.metadata.name in _KEPT}
            status = await remove(world, "qemu-1", "qemu-2", "qemu-1")
            assert (status["replicas"], status["leaving"]) == (2, ["qemu-1", "qemu-2"])
            for _ in range(3):
                again = await remove(world, "qemu-1", "qemu-2")
                assert (again["replicas"], again["leaving"]) == (2, [])
            await world.until(lambda: world.uids() == kept)
            assert (await remove(world, "qemu-1"))["alreadyLeaving"] == ["qemu-1"]
            await world.until(lambda: not spec(world).removals)
            await world.always(lambda: world.uids() == kept, seconds=60)
            assert kept < before
            rules = {d.rule for d in world.status().decisions if d.action == "Drain"}
            assert rules == {"RemovedByName"}

        World().run(story)

    def test_a_leased_member_is_refused_or_takes_no_further_lease(self) -> None:
        """Without the drain, a waiting lease would get the member again and again."""

        async def story(world: World) -> None:
            await make(world, 1, min_replicas=0, max_replicas=2)
            await world.ask("job")
            await world.until(lambda: world.got("job"))
            held, name = world.held("job"), world.got("job")
            with pytest.raises(Conflict, match="lease job holds"):
                await remove(world, name)
            assert (await remove(world, name, whenIdle=True))["replicas"] == 1
            await world.ask("next")
            await world.always(lambda: held in world.uids(), seconds=60)
            assert not world.lease("job").status.ended
            await world.release("job")
            await world.until(lambda: held not in world.uids())
            await world.until(lambda: world.got("next"))
            assert world.held("next") != held

        World().run(story)

    def test_a_name_that_is_used_again_is_safe_with_its_uid(self) -> None:
        async def story(world: World) -> None:
            await make(world, 2, min_replicas=0, min_available_replicas=1)
            (first, *_) = world.members()
            named = {"name": first.metadata.name, "uid": first.metadata.uid}
            await world.remove(Exporter, first.metadata.name)
            await world.until(lambda: first.metadata.uid not in world.uids())
            await world.edit_set(min_replicas=2)
            await world.until(lambda: world.available(2))
            reused = [n for n in world.names() if n == first.metadata.name]
            assert reused, "the story needs a name that is used again"
            before = world.uids()
            assert (await remove(world, named))["alreadyLeaving"] == reused
            assert spec(world).max_replicas == 2
            await world.always(lambda: world.uids() == before, seconds=30)

        World().run(story)

    def test_the_ceiling_falls_neither_to_no_limit_nor_below_the_floors(self) -> None:
        async def story(world: World) -> None:
            await make(world, 2, min_replicas=1, min_available_replicas=2)
            for dry_run in (True, False):
                with pytest.raises(Conflict, match="cannot fall below 2"):
                    await remove(world, "qemu-0", dry_run=dry_run)
            await world.edit_set(min_replicas=0, min_available_replicas=0)
            with pytest.raises(Conflict, match="cannot fall below 1"):
                await remove(world, "qemu-0", "qemu-1")
            await world.always(lambda: spec(world).max_replicas == 2, seconds=10)

        World().run(story)

    def test_a_set_without_a_limit_keeps_having_none(self) -> None:
        async def story(world: World) -> None:
            await make(world, 3, max_replicas=0, min_replicas=0)
            assert (await remove(world, "qemu-0"))["replicas"] == 0
            await world.until(lambda: world.names() == ["qemu-1", "qemu-2"])
            assert (await remove(world, "qemu-0"))["alreadyLeaving"] == ["qemu-0"]

        World().run(story)

    def test_wrong_requests_change_nothing(self) -> None:
        async def story(world: World) -> None:
            await make(world, 2, min_replicas=0)
            for wrong in ("stranger", "qemu-x", "qemu-7"):
                with pytest.raises(BadRequest, match="is not a member of qemu"):
                    await remove(world, "qemu-0", wrong)
            for bad in (7, {"uid": "x"}, {"name": "qemu-0", "uid": 7}):
                with pytest.raises(BadRequest, match="list of names"):
                    await remove(world, bad)
            status = await remove(world, "qemu-0", dry_run=True)
            assert (status["replicas"], status["leaving"]) == (1, ["qemu-0"])
            assert status["dryRun"]
            assert (spec(world).max_replicas, spec(world).removals) == (2, ())

        World().run(story)

    def test_a_set_that_does_not_exist_is_not_found(self) -> None:
        async def story(world: World) -> None:
            with pytest.raises(NotFound):
                await remove(world, "qemu-0")

        World().run(story)


_KEPT = ("qemu-0", "qemu-3")


def test_a_removal_is_kept_while_the_view_of_members_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that has not seen the member yet must not make its removal forgotten."""

    async def story(world: World) -> None:
        await make(world, 2, min_replicas=0)
        views = world.lab.pool_observer.member_views
        members = views.members
        (hidden, _) = world.members()

        def lagging(*args: Any, **fields: Any) -> Any:
            found = members(*args, **fields)
            return type(found)(m for m in found if m.name != hidden.metadata.name)

        monkeypatch.setattr(views, "members", lagging)
        await remove(world, hidden.metadata.name)
        await world.always(lambda: spec(world).removals, seconds=30)
        monkeypatch.undo()
        await world.edit_set(scale_down_cooldown=timedelta(hours=2))
        await world.until(lambda: hidden.metadata.uid not in world.uids())
        await world.until(lambda: not spec(world).removals)

    World().run(story)
