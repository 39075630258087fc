"""A pool that the API no longer has, while the view of its controller still does."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtarget import VirtualTarget, VirtualTargetSpec
from bullpen.api.kinds.virtualtargetpool import (
    MemberMetadata,
    MemberTemplate,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
)
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import meta_of
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.errors import NotFound
from support.pool_world import LABELS, NAMESPACE, World


def counting(world: World, kind: type[Kind]) -> list[str]:
    """The objects of a kind that are created from now on."""
    made: list[str] = []
    create = world.objects.create

    async def counted(value: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(value, kind):
            made.append(meta_of(value).name)
        return await create(value, *arguments, **options)

    world.objects.create = counted  # type: ignore[method-assign]
    return made


def lose(world: World, kind: type[Kind]) -> None:
    """From now on the API says that there is no object of this kind."""
    update = world.objects.update_status

    async def updated(value: Any) -> Any:
        if isinstance(value, kind):
            raise NotFound(f"there is no {kind.kind} {meta_of(value).name}")
        return await update(value)

    world.objects.update_status = updated  # type: ignore[method-assign]


async def make_set(world: World) -> None:
    await world.make_class()
    await world.make_set(min_available_replicas=2, max_replicas=2)
    await world.until(lambda: world.available(2))


async def make_lasting(world: World) -> None:
    await world.make_class()
    spec = VirtualTargetSpec(virtual_target_class_name="fake")
    template = MemberTemplate(metadata=MemberMetadata(labels=LABELS), spec=spec)
    pool = VirtualTargetPool(
        metadata=ObjectMeta(name="p", namespace=NAMESPACE),
        spec=VirtualTargetPoolSpec(
            replicas=2, scale_down_policy=ScaleDownPolicy.NEWEST_FIRST, template=template
        ),
    )
    await world.objects.create(pool)
    await world.until(lambda: len(list(world.views[VirtualTarget].all(NAMESPACE))) == 2)
    await world.sleep(5)


@pytest.mark.parametrize(
    ("make", "pool", "member"),
    [(make_set, ExporterSet, Exporter), (make_lasting, VirtualTargetPool, VirtualTarget)],
    ids=["ExporterSet", "VirtualTargetPool"],
)
def test_members_are_not_created_again_and_again(
    make: Any, pool: type[Kind], member: type[Kind]
) -> None:
    async def story(world: World) -> None:
        await make(world)
        lose(world, pool)
        made = counting(world, member)
        for _ in range(20):  # as the garbage collector does with what has no owner
            for found in tuple(world.views[member].all(NAMESPACE)):
                await world.remove(member, found.metadata.name)  # type: ignore[attr-defined]
            await world.sleep(3)
        assert len(made) <= 4, "only before it was known that the pool is gone"

    World().run(story)
