"""The metrics of pools of lasting targets and their disks."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from test_lasting_pools import RETAIN, edit, lease, make, names, ready, root

from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.routes import ObjectRoute, route
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.app.metrics import LastingPoolMetrics
from support.pool_world import World

PATH = (
    "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
    "/virtualtargetpools/p/scaledownwith"
)


def scraped(world: World) -> dict[str, float]:
    registry = CollectorRegistry()
    pools, disks = world.views[VirtualTargetPool], world.views[VirtualDisk]
    registry.register(LastingPoolMetrics(pools.all, disks.all))
    lines = generate_latest(registry).decode().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def replicas(world: World, state: str) -> float:
    name = f'bullpen_lasting_pool_replicas{{namespace="default",pool="p",state="{state}"}}'
    return scraped(world)[name]


def test_a_pool_its_removals_and_its_disks_are_counted() -> None:
    async def story(world: World) -> None:
        await make(world, 3, virtual_disk_templates=(root(RETAIN),))
        held = await lease(world, "job")
        await world.until(lambda: replicas(world, "leased") == 1)
        assert [replicas(world, state) for state in ("wanted", "ready", "available")] == [3, 3, 2]
        target = route(PATH, RESOURCES)
        assert isinstance(target, ObjectRoute)
        asked = {"targets": [held], "whenIdle": True}
        await ScaleDowns(world.objects).answer(target, asked, dry_run=False)
        labels = '{namespace="default",pool="p"}'
        await world.until(lambda: scraped(world)[f"bullpen_lasting_pool_removals{labels}"] == 1)
        await world.release("job")
        await world.until(lambda: held not in names(world))
        await world.until(lambda: scraped(world)[f"bullpen_lasting_pool_removals{labels}"] == 0)
        assert scraped(world)[f"bullpen_lasting_pool_members_created_total{labels}"] == 3
        free = 'bullpen_lasting_disks{namespace="default",pool="p",state="free"}'
        ready_disks = 'bullpen_lasting_disks{namespace="default",pool="p",state="ready"}'
        await world.until(lambda: scraped(world).get(free) == 1)
        assert scraped(world)[ready_disks] == 2
        await edit(world, replicas=3)
        await world.until(lambda: ready(world) == 3 and free not in scraped(world))

    World().run(story)
