"""Pools of Pods: the real controllers and placement, with a node that is played."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtarget import VirtualTargetSpec
from bullpen.api.kinds.virtualtargetpool import (
    MemberMetadata,
    MemberTemplate,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
)
from bullpen.api.meta import ObjectMeta
from bullpen.api.pod import CLUSTER_RESOURCES, Pod
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Profile
from bullpen.kit.ids import RandomIds
from bullpen.kit.selectors import parse_labels
from bullpen.placements.base import InstanceSpec, Needs, Workload
from bullpen.placements.pod import phases, rendering
from bullpen.placements.pod.placement import PodPlacement
from bullpen.provisioners.base import Key
from bullpen.provisioners.mock import NAME, MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.informer import Informer
from bullpen.store.journaled import MemoryStore
from support.pod_cluster import NO_ROOM, SETTINGS, Machine, Node
from support.pool_world import LABELS, NAMESPACE, World


class PlayedPods(PlacedProvisioner):
    """Mock targets as Pods, with what the players of exporters look at."""

    def __init__(self, placement: PodPlacement, pods: Informer[Pod], node: Node) -> None:
        super().__init__(MockRecipe(), placement)
        self._pods = pods
        self._node = node

    @property
    def _machines(self) -> Mapping[Key, Machine]:
        ours = filter(phases.is_ours, self._pods.all())
        return {phases.key_of(pod): Machine(phases.instance(pod)) for pod in ours}

    def begin_lease(self, key: Key) -> None:
        self._node._leased.add(key)

    def end_lease(self, key: Key) -> None:
        self._node._leased.discard(key)
        self._node._work.put_nowait(lambda: self._node._after_lease(key))


class PodWorld(World):
    """A lab in a cluster."""

    node: Node
    pods: Informer[Pod]

    def __init__(self, *, places: int = 100) -> None:
        super().__init__()
        ids = RandomIds(random.Random(7))
        self.registry = Registry(
            MemoryStore(), clock=self.clock, ids=ids, resources=CLUSTER_RESOURCES
        )
        self.objects = RegistryObjects(self.registry, manager="bullpen")
        self._places = places

    def tell(self, story: Callable[[PodWorld], Coroutine[Any, Any, None]]) -> None:
        async def told(world: World) -> None:
            async with self.cluster(), self.service():
                await story(self)

        self.run_without_service(told)

    @contextlib.asynccontextmanager
    async def cluster(self) -> AsyncIterator[None]:
        """The node, and a view of its Pods."""
        self.pods = Informer(self.objects, Pod, retry=lambda failures: timedelta(0))
        self.node = Node(self.objects, self.pods, places=self._places)
        placement = PodPlacement(self.objects, self.pods, SETTINGS)
        played: Any = PlayedPods(placement, self.pods, self.node)
        self.provisioner = played
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part.run()) for part in (self.pods, self.node)]
            await self.pods.synced()
            yield
            for task in running:
                task.cancel()

    async def make_pool(self, **spec: Any) -> None:
        await self.make_class("mock", provisioner=NAME)
        await self.make_set(virtual_target_class_name="mock", **spec)

    def pod_names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.pods.all())


def test_a_pool_of_pods_fills_lends_and_replaces() -> None:
    async def story(world: PodWorld) -> None:
        await world.make_pool(min_replicas=2, min_available_replicas=2)
        await world.until(lambda: world.available(2), what="two warm Pods")
        assert world.pod_names() == world.names()
        before = world.uids()

        await world.ask("one")
        await world.until(lambda: world.got("one"), what="a lease")
        used = world.got("one")
        await world.release("one")
        await world.until(lambda: used not in world.names() or world.uids() - before)
        await world.until(lambda: world.available(2), what="two warm Pods again")
        assert world.pod_names() == world.names()

    PodWorld().tell(story)


def test_a_pool_without_room_holds_and_says_why() -> None:
    async def story(world: PodWorld) -> None:
        await world.make_pool(min_replicas=3)
        await world.until(lambda: world.reason("Degraded") == "NoCapacity", what="NoCapacity")
        pods = world.pod_names()
        assert NO_ROOM in world.condition("Degraded").message

        # Far longer than any boot may take: nothing failed, so nothing is replaced.
        await world.sleep(1_800)
        assert world.pod_names() == pods
        assert world.status().start_failures is None
        assert world.reason("Degraded") == "NoCapacity"

        world.node.places = 10
        world.node.look()
        await world.until(lambda: world.status().ready_replicas == 3, what="three ready Pods")
        assert world.reason("Degraded") == "Healthy"
        assert set(pods) <= set(world.pod_names()), "those that were held are used"

    PodWorld(places=1).tell(story)


def test_a_boot_that_hangs_after_a_hold_has_its_whole_time() -> None:
    async def story(world: PodWorld) -> None:
        world.node.places = 0
        await world.make_pool(min_replicas=1, max_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "NoCapacity", what="NoCapacity")
        (name,) = world.pod_names()
        await world.sleep(600)
        # It finds a place, but its exporter says nothing.
        world.node.hung.add(name)
        world.node.places = 1
        world.node.say((NAMESPACE, name), {"phase": "Pending", "conditions": []})
        await world.sleep(150)
        assert world.status().start_failures is None
        await world.until(lambda: world.status().start_failures, seconds=60, what="a boot timeout")

    PodWorld().tell(story)


def test_deleting_a_set_leaves_nothing() -> None:
    async def story(world: PodWorld) -> None:
        await world.make_pool(min_replicas=2)
        await world.until(lambda: world.status().ready_replicas == 2, what="two Pods")
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: not world.pod_names(), what="no Pods")
        await world.until(lambda: not list(world.views.exporters.all()), what="no Exporters")
        await world.sleep(1)
        secrets = [secret.metadata.name for secret in (await world.objects.list(Secret)).items]
        assert not [name for name in secrets if name.startswith("exporter-config-")]

    PodWorld().tell(story)


def test_a_pod_that_nobody_asked_for_is_removed() -> None:
    forgotten = Workload(
        spec=InstanceSpec(
            key=(NAMESPACE, "forgotten"),
            owner_uid="nobody",
            profile=Profile(provisioner=NAME),
            connection=Connection(endpoint="", token="", ca_pem=""),
        ),
        needs=Needs(memory_bytes=1 << 20, cpus=0.1),
        export=lambda site: {},
    )

    async def story(world: PodWorld) -> None:
        await world.objects.create(rendering.pod(forgotten, SETTINGS))
        await world.until(lambda: "forgotten" in world.pod_names(), what="a Pod")
        await world.until(lambda: not world.pod_names(), seconds=120, what="no Pod")

    PodWorld().tell(story)


def test_a_restart_of_the_service_keeps_every_pod() -> None:
    async def story(world: World) -> None:
        assert isinstance(world, PodWorld)
        async with world.cluster():
            async with world.service():
                await world.make_pool(min_replicas=3)
                await world.until(lambda: world.status().ready_replicas == 3, what="three Pods")
            before = {pod.metadata.uid for pod in world.pods.all()}
            await world.sleep(20)
            async with world.service():
                await world.sleep(300)
                assert {pod.metadata.uid for pod in world.pods.all()} == before

    PodWorld().run_without_service(story)


def test_an_image_that_cannot_be_pulled_makes_the_pool_back_off() -> None:
    async def story(world: PodWorld) -> None:
        waiting = {"reason": "ImagePullBackOff", "message": "no such tag"}
        state = {"name": "exporter", "state": {"waiting": waiting}}
        broken = {"phase": "Pending", "containerStatuses": [state]}

        def seen(old: Pod | None, new: Pod | None) -> None:
            if new is not None and not new.status.phase:
                world.node.hung.add(new.metadata.name)
                world.node.say(phases.key_of(new), broken)

        world.pods.listen(seen)
        await world.make_pool(min_replicas=2)
        await world.until(lambda: world.reason("Degraded") == "StartFailing", what="StartFailing")
        assert "no such tag" in world.condition("Degraded").message
        await world.sleep(3_600)
        failures = world.status().start_failures
        assert failures is not None
        assert failures.count < 100, f"{failures.count} Pods in an hour"

    PodWorld().tell(story)


def selected(world: PodWorld, kind: type[ExporterSet] | type[VirtualTargetPool]) -> list[str]:
    """The Pods that an autoscaler finds by the selector in the status of a pool."""
    (pool,) = world.views[kind].all(NAMESPACE)
    selector = parse_labels(pool.status.selector)
    return sorted(p.metadata.name for p in world.pods.all() if selector.matches(p.metadata.labels))


def test_the_selector_of_a_pool_selects_its_pods_and_no_others() -> None:
    """Autoscalers read the figures of Pods that they find so; both pools have the same labels."""

    async def story(world: PodWorld) -> None:
        await world.make_pool(min_replicas=2, min_available_replicas=2)
        await world.until(lambda: world.available(2))
        labels = MemberMetadata(labels=LABELS)
        member = VirtualTargetSpec(virtual_target_class_name="mock")
        spec = VirtualTargetPoolSpec(
            replicas=2,
            scale_down_policy=ScaleDownPolicy.NEWEST_FIRST,
            template=MemberTemplate(metadata=labels, spec=member),
        )
        meta = ObjectMeta(name="lasting", namespace=NAMESPACE)
        await world.objects.create(VirtualTargetPool(metadata=meta, spec=spec))
        await world.until(
            lambda: [p.status.ready_replicas for p in world.views[VirtualTargetPool].all()] == [2]
        )
        assert selected(world, VirtualTargetPool) == ["lasting-0", "lasting-1"]
        others = sorted(set(world.pod_names()) - {"lasting-0", "lasting-1"})
        assert selected(world, ExporterSet) == others
        assert len(others) == 2

    PodWorld().tell(story)
