"""A cluster as far as Pods need one: our own registry, with a node that is played.

The node does to Pods what a real one does, in the order it does it: takes them if there is
room, starts their exporter, ends it when told, and says so in their status.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.objects import Objects
from bullpen.api.pod import CLUSTER_RESOURCES, Pod, PodStatus
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.instances import ExitReason, Instance
from bullpen.errors import Conflict, Forbidden, NotFound
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.pod import names, phases
from bullpen.placements.pod.placement import PodPlacement
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners.base import Key, Provisioner
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.informer import Informer
from bullpen.store.journaled import MemoryStore

SETTINGS = PodSettings(
    exporter_image="registry.example/bullpen:1", runtime_images={"qemu": "registry.example/qemu:1"}
)
NO_ROOM = "0/1 nodes are available: 1 Insufficient memory."


class QuotaObjects:
    """The objects of a namespace that may hold so many Pods that have not ended."""

    def __init__(self, objects: Objects, pods_max: int) -> None:
        self._objects = objects
        self._pods_max = pods_max

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    async def create(self, value: Kind) -> Kind:
        if isinstance(value, Pod):
            pods = (await self._objects.list(Pod)).items
            live = [pod for pod in pods if pod.status.phase not in ("Failed", "Succeeded")]
            known = {pod.metadata.name for pod in pods}
            if len(live) >= self._pods_max and value.metadata.name not in known:
                raise Forbidden(
                    f'pods "{value.metadata.name}" is forbidden: exceeded quota: lab,'
                    f" used: pods={len(live)}, limited: pods={self._pods_max}"
                )
        return await self._objects.create(value)


class Node:
    """Plays a node: whatever it is told or sees, it does in order, one thing at a time."""

    def __init__(self, objects: Objects, pods: Informer[Pod], *, places: int = 1_000) -> None:
        self.places = places
        """How many Pods fit on it."""

        self.hung: set[str] = set()
        """Names of Pods that are taken and never started."""

        self._objects = objects
        self._pods = pods
        self._work: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()
        self._leased: set[Key] = set()
        pods.listen(self._seen)

    async def run(self) -> None:
        while True:
            await (await self._work.get())()

    def look(self) -> None:
        """Look again at every Pod: there may be room now."""
        for pod in tuple(self._pods.all()):
            self._seen(None, pod)

    def crash(self, key: Key) -> None:
        self._work.put_nowait(lambda: self._end(key, code=137))

    def say(self, key: Key, status: dict[str, Any]) -> None:
        """Say this of a Pod, whatever may be."""
        self._work.put_nowait(lambda: self._write(key, status))

    async def begin_lease(self, key: Key) -> None:
        self._leased.add(key)

    async def end_lease(self, key: Key) -> None:
        self._leased.discard(key)
        self._work.put_nowait(lambda: self._after_lease(key))
        await self.idle()

    async def idle(self) -> None:
        """Wait until it has done all it was told so far."""
        done = asyncio.Event()

        async def tell() -> None:
            done.set()

        self._work.put_nowait(tell)
        await done.wait()

    def _seen(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            key = phases.key_of(new)
            self._work.put_nowait(lambda: self._tend(key))

    async def _tend(self, key: Key) -> None:
        pod = self._pods.get(*key)
        if pod is None or pod.status.phase in ("Succeeded", "Failed"):
            return
        if pod.status.phase == "Running":
            if names.RETIRE in pod.metadata.annotations and key not in self._leased:
                await self._end(key, code=0)
            return
        running = sum(found.status.phase == "Running" for found in self._pods.all())
        if running >= self.places:
            await self._write(key, {"phase": "Pending", "conditions": [_unschedulable()]})
        elif key[1] not in self.hung:
            state = {"name": names.EXPORTER, "started": True, "state": {"running": {}}}
            await self._write(key, {"phase": "Running", "containerStatuses": [state]})

    async def _after_lease(self, key: Key) -> None:
        pod = self._pods.get(*key)
        if pod is None:
            return
        exporter: Any = codec.encode(pod)["spec"]["containers"][0]
        if "--single-use" in exporter["args"] or names.RETIRE in pod.metadata.annotations:
            await self._end(key, code=0)

    async def _end(self, key: Key, *, code: int) -> None:
        said = phases.Ending(reason=ExitReason.COMPLETED, detail="served its lease")
        message = "" if code else msgspec.json.encode(said).decode()
        terminated = {"exitCode": code, "reason": "Error", "message": message}
        state = {"name": names.EXPORTER, "state": {"terminated": terminated}}
        phase = "Failed" if code else "Succeeded"
        await self._write(key, {"phase": phase, "containerStatuses": [state]})

    async def _write(self, key: Key, status: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound):
            while True:
                found = await self._objects.get(Pod, *key)
                wanted = codec.decode(PodStatus, status)
                if found.status == wanted:
                    return
                with contextlib.suppress(Conflict):
                    self._pods.observe(
                        await self._objects.update_status(replace(found, status=wanted))
                    )
                    return


def _unschedulable() -> dict[str, Any]:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": NO_ROOM,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster and a placement that uses it."""

    objects: Objects
    pods: Informer[Pod]
    node: Node
    placement: PodPlacement

    def watching(self) -> Informer[Pod]:
        """One more view, as a process that starts now has."""
        return Informer(self.objects, Pod, retry=_at_once)


def _at_once(failures: int) -> timedelta:
    return timedelta(0)


@contextlib.asynccontextmanager
async def cluster(*, pods_max: int = 1_000, places: int = 1_000) -> AsyncIterator[Cluster]:
    ids = RandomIds(random.Random(7))
    registry = Registry(MemoryStore(), clock=SystemClock(), ids=ids, resources=CLUSTER_RESOURCES)
    await registry.ensure_namespaces(("lab",))
    objects: Any = QuotaObjects(RegistryObjects(registry, manager="bullpen"), pods_max)
    pods: Informer[Pod] = Informer(objects, Pod, retry=_at_once)
    node = Node(objects, pods, places=places)
    placement = PodPlacement(objects, pods, SETTINGS)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(part.run()) for part in (pods, node)]
        await pods.synced()
        yield Cluster(objects=objects, pods=pods, node=node, placement=placement)
        for task in running:
            task.cancel()


class PodBench:
    """Mock targets as Pods, for the contract of provisioners."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self.provisioner: Provisioner = PlacedProvisioner(MockRecipe(), cluster.placement)
        self._node = cluster.node
        self._token = token

    def connection(self) -> Connection:
        return Connection(endpoint="", token=self._token, ca_pem="")

    async def begin_lease(self, key: Key) -> None:
        await self._node.begin_lease(key)

    async def end_lease(self, key: Key) -> None:
        await self._node.end_lease(key)

    def crash(self, key: Key) -> None:
        self._node.crash(key)


@dataclass(frozen=True, slots=True)
class Machine:
    """As much of a fake machine as stories of pools look at."""

    instance: Instance
