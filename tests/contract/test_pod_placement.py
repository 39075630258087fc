"""What the placement in a cluster promises beyond the contract of all placements."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bullpen.api.kinds.core import Secret
from bullpen.api.meta import ObjectMeta
from bullpen.api.pod import Pod
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.instances import ExitReason, InstancePhase
from bullpen.core.targets.profiles import Profile
from bullpen.errors import Invalid, Refused, Unavailable, Unreachable
from bullpen.placements.base import InstanceSpec, Key, Needs, Workload
from bullpen.placements.pod import placement as module
from bullpen.placements.pod.placement import PodPlacement
from support.pod_cluster import NO_ROOM, SETTINGS, Cluster, cluster

BOOTING, RUNNING, EXITED, _ = InstancePhase
KEY = ("lab", "a")

SPEC = InstanceSpec(
    key=KEY,
    owner_uid="uid-1",
    profile=Profile(provisioner="mock.jumpstarter.dev"),
    connection=Connection(endpoint="lab:1", token="one", ca_pem=""),
)
WORKLOAD = Workload(spec=SPEC, needs=Needs(memory_bytes=1 << 20, cpus=0.1), export=lambda site: {})


async def until(found: Cluster, phase: InstancePhase, key: Key = KEY) -> Any:
    """The instance once it is in ``phase``; the node's work takes a few turns of the loop."""
    for _ in range(1_000):
        seen = {instance.key: instance for instance in await found.placement.observe_all()}
        if key in seen and seen[key].phase is phase:
            return seen[key]
        await asyncio.sleep(0.001)
    raise AssertionError(f"{key} did not become {phase}: {seen}")


class Counting:
    """Counts the requests that a placement makes."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._objects, name)


async def test_an_instance_costs_two_writes_and_looking_costs_none() -> None:
    async with cluster() as found:
        counting: Any = Counting(found.objects)
        placement = PodPlacement(counting, found.pods, SETTINGS)
        await placement.start(WORKLOAD)
        await until(found, RUNNING)
        for _ in range(10):
            await placement.start(WORKLOAD)
            await placement.observe_all()

        assert counting.calls == ["apply", "create"]


async def test_a_successor_finds_everything_and_starts_nothing_twice() -> None:
    async with cluster() as found:
        await found.placement.start(WORKLOAD)
        running = await until(found, RUNNING)
        view = found.watching()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(view.run())
            successor = PodPlacement(found.objects, view, SETTINGS)
            # It asks before it has seen anything, as a process that just started does.
            assert await successor.start(WORKLOAD) == running
            assert await successor.observe_all() == (running,)
            task.cancel()
        assert len((await found.objects.list(Pod)).items) == 1


async def test_a_pod_of_somebody_else_is_left_alone() -> None:
    async with cluster() as found:
        await found.objects.create(Pod(metadata=ObjectMeta(name="a", namespace="lab")))
        with pytest.raises(Refused, match="does not belong to this service"):
            await found.placement.start(WORKLOAD)
        await found.placement.stop(KEY)
        await found.placement.retire(KEY)

        assert await found.placement.observe_all() == ()
        assert (await found.objects.get(Pod, "lab", "a")).metadata.annotations == {}


async def test_a_name_that_somebody_gave_back_can_be_used() -> None:
    """In a cluster the view never hears of other people's Pods, and must not keep one."""

    class Selective:
        def __init__(self, pods: Any) -> None:
            self._pods = pods
            self.kept: list[Pod] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pods, name)

        def get(self, namespace: str, name: str) -> Pod | None:
            found = [pod for pod in self.kept if pod.metadata.name == name]
            return found[-1] if found else None

        def observe(self, pod: Pod) -> None:
            self.kept.append(pod)

    async with cluster() as found:
        view: Any = Selective(found.pods)
        placement = PodPlacement(found.objects, view, SETTINGS)
        theirs = await found.objects.create(Pod(metadata=ObjectMeta(name="a", namespace="lab")))
        with pytest.raises(Refused, match="does not belong to this service"):
            await placement.start(WORKLOAD)
        await found.node.idle()
        await found.objects.delete(await found.objects.get(Pod, *KEY))
        assert (await placement.start(WORKLOAD)).owner_uid == "uid-1"
        assert theirs.metadata.uid not in {pod.metadata.uid for pod in view.kept}


async def test_a_pod_without_a_place_is_held_until_there_is_one() -> None:
    async with cluster(places=0) as found:
        await found.placement.start(WORKLOAD)
        await found.node.idle()
        instance = await until(found, BOOTING)
        assert (instance.held, instance.detail) == ("NoCapacity", f"Unschedulable: {NO_ROOM}")

        found.node.places = 1
        found.node.look()
        assert (await until(found, RUNNING)).held == ""


async def test_what_the_cluster_refuses_is_refused_with_its_words() -> None:
    class Strict:
        def __init__(self, objects: Any) -> None:
            self._objects = objects

        def __getattr__(self, name: str) -> Any:
            return getattr(self._objects, name)

        async def create(self, value: Any) -> Any:
            if isinstance(value, Pod):
                raise Invalid("spec.affinity.nodeAffinty: unknown field")
            return await self._objects.create(value)

    async with cluster() as found:
        strict: Any = Strict(found.objects)
        with pytest.raises(Refused, match="nodeAffinty"):
            await PodPlacement(strict, found.pods, SETTINGS).start(WORKLOAD)


async def test_only_the_very_pod_that_was_meant_is_deleted() -> None:
    """The name was used again between seeing a Pod and deleting it."""
    async with cluster() as found:
        await found.placement.start(WORKLOAD)
        await until(found, RUNNING)
        stale = found.pods.get(*KEY)
        assert stale is not None
        await found.placement.stop(KEY)
        await found.placement.start(replace(WORKLOAD, spec=replace(SPEC, owner_uid="uid-2")))
        await until(found, RUNNING)

        assert not await found.placement._delete(stale)
        assert (await until(found, RUNNING)).owner_uid == "uid-2"


async def test_a_pod_that_does_not_go_is_reported_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node does not answer, so nobody confirms that its containers have ended."""
    monkeypatch.setattr(module, "STOP_SECONDS_MAX", 0.05)
    async with cluster() as found:
        await found.placement.start(WORKLOAD)
        await until(found, RUNNING)
        pod = await found.objects.get(Pod, *KEY)
        kept = replace(pod.metadata, finalizers=("example.com/node",))
        await found.objects.update(replace(pod, metadata=kept))
        with pytest.raises(Unreachable, match="still terminating"):
            await found.placement.stop(KEY)
        # Whoever asks again is not kept waiting: many Pods may be on such a node.
        monkeypatch.setattr(module, "STOP_SECONDS_MAX", 1_000.0)
        with pytest.raises(Unreachable, match="still terminating"):
            await found.placement.stop(KEY)

        pod = await found.objects.get(Pod, *KEY)
        await found.objects.update(replace(pod, metadata=replace(pod.metadata, finalizers=())))
        await found.placement.stop(KEY)
        assert await found.placement.observe_all() == ()


async def test_a_secret_that_was_left_gets_the_new_token_and_owner() -> None:
    async with cluster() as found:
        await found.placement.start(WORKLOAD)
        await found.placement.stop(KEY)
        connection = replace(SPEC.connection, token="two")
        later = replace(WORKLOAD, spec=replace(SPEC, owner_uid="uid-2", connection=connection))
        await found.placement.start(later)

        secret = await found.objects.get(Secret, "lab", "exporter-config-a")
        assert json.loads(secret.read("config.yaml") or b"")["token"] == "two"
        assert [owner.uid for owner in secret.metadata.owner_references] == ["uid-2"]


async def test_newer_granted_files_are_written_to_the_secret_of_the_config() -> None:
    async with cluster() as found:
        await found.placement.grant(KEY, {"session": b"of no instance"})
        await found.placement.start(replace(WORKLOAD, granted={"session": b"old"}))
        await found.placement.grant(KEY, {"session": b"new"})
        secret = await found.objects.get(Secret, "lab", "exporter-config-a")
        assert secret.read("session") == b"new"
        assert json.loads(secret.read("config.yaml") or b"")["token"] == "one"


async def test_what_changes_all_the_time_is_given_up_for_now() -> None:
    class Restless:
        def __init__(self, objects: Any) -> None:
            self._objects = objects

        def __getattr__(self, name: str) -> Any:
            return getattr(self._objects, name)

        async def update(self, value: Any) -> Any:
            pod = await self._objects.get(Pod, *KEY)
            noted = replace(pod.metadata, annotations={"at": pod.metadata.resource_version})
            await self._objects.update(replace(pod, metadata=noted))
            return await self._objects.update(value)

    async with cluster() as found:
        await found.placement.start(WORKLOAD)
        await until(found, RUNNING)
        restless: Any = Restless(found.objects)
        with pytest.raises(Unavailable, match="kept changing"):
            await PodPlacement(restless, found.pods, SETTINGS).retire(KEY)


async def test_an_image_that_cannot_be_pulled_is_a_failed_start() -> None:
    async with cluster() as found:
        found.node.hung.add("a")
        await found.placement.start(WORKLOAD)
        waiting = {"reason": "ImagePullBackOff", "message": "not found"}
        state = {"name": "exporter", "state": {"waiting": waiting}}
        found.node.say(KEY, {"phase": "Pending", "containerStatuses": [state]})
        ended = await until(found, EXITED)
        assert ended.reason is ExitReason.START_FAILED
        assert "ImagePullBackOff: not found" in ended.detail
