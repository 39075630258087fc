"""Runs workloads as Pods: creates and deletes them, and reads their state.

It keeps no state of its own. The API server is the source of truth, so a new process finds
everything, and ending this process ends no instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import Secret
from bullpen.api.objects import Objects, meta_of
from bullpen.api.pod import Pod
from bullpen.core.targets.instances import Instance, InstancePhase
from bullpen.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NoCapacity,
    NotFound,
    Refused,
    Rejected,
    Unavailable,
    Unreachable,
)
from bullpen.placements.base import Key, Listener, Workload
from bullpen.placements.pod import names, phases, rendering
from bullpen.placements.pod.rendering import GRACE_SECONDS, PodSettings

ATTEMPTS_MAX = 10
PAUSE_SECONDS = 0.001
"""Pause before the second attempt, doubling: the conflicting object may not be readable yet."""

STOP_SECONDS_MAX = GRACE_SECONDS + 10.0
"""A Pod that still exists after this time is on a node that does not answer."""


class PodView(Protocol):
    """A view of all our Pods, kept current by the process that runs this placement."""

    def get(self, namespace: str, name: str) -> Pod | None: ...
    def all(self) -> Iterator[Pod]: ...
    def listen(self, listener: Callable[[Pod | None, Pod | None], None]) -> None: ...
    def observe(self, value: Pod) -> None: ...
    async def synced(self) -> None: ...


class PodPlacement:
    """A ``Placement`` in a cluster. ``objects`` writes, ``pods`` is the view."""

    def __init__(self, objects: Objects, pods: PodView, settings: PodSettings) -> None:
        self._objects = objects
        self._pods = pods
        self._settings = settings
        self._listeners: list[Listener] = []
        self._vanishing: dict[str, asyncio.Event] = {}
        """By uid, Pods whose deletion is being awaited."""

        pods.listen(self._changed)

    async def start(self, workload: Workload) -> Instance:
        await self._pods.synced()
        found = self._pods.get(*workload.key) or await self._make(workload)
        if not phases.is_ours(found):
            raise Refused(
                f"the Pod {'/'.join(workload.key)} exists and does not belong to this service"
            )
        return phases.instance(found)

    async def stop(self, key: Key) -> None:
        await self._pods.synced()
        found = self._ours(key)
        if found is None:
            return
        uid = found.metadata.uid
        if found.metadata.deletion_timestamp is not None and uid not in self._vanishing:
            # Its end was already awaited, or another client deleted it; the view will report it.
            raise _unending(found)
        gone = self._vanishing.setdefault(uid, asyncio.Event())
        try:
            if not await self._delete(found):
                return
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await gone.wait()
        except TimeoutError:
            raise _unending(found) from None
        finally:
            self._vanishing.pop(uid, None)

    async def retire(self, key: Key) -> None:
        await self._pods.synced()
        found = meant = self._ours(key)
        for attempt in range(ATTEMPTS_MAX):
            if found is None or meant is None or found.metadata.uid != meant.metadata.uid:
                return
            if _is_over(found) or names.RETIRE in found.metadata.annotations:
                return
            noted = {**found.metadata.annotations, names.RETIRE: "true"}
            marked = replace(found, metadata=replace(found.metadata, annotations=noted))
            try:
                self._pods.observe(await self._objects.update(marked))
            except Conflict:
                await _pause(attempt)
                found = await self._read(key)
            except NotFound:
                return
            else:
                return
        raise _too_fast(found)

    async def change_disks(self, workload: Workload) -> None:
        raise Refused("a Pod gets its volumes only when it is created")

    async def update_credentials(self, key: Key, credentials: Mapping[str, bytes]) -> None:
        """Nothing to do: the kubelet updates the files of a mounted Secret itself."""

    async def grant(self, key: Key, files: Mapping[str, bytes]) -> None:
        """Write them to the Secret of its config, which the kubelet mounts."""
        if self._ours(key) is None:
            return
        for attempt in range(ATTEMPTS_MAX):
            try:
                found = await self._objects.get(Secret, key[0], names.secret_name(key[1]))
                data = {**found.data, **rendering.encoded(files)}
                await self._objects.update(replace(found, data=data))
            except Conflict:
                await _pause(attempt)
            except NotFound:
                return
            else:
                return
        raise Unreachable(f"the Secret of {key[1]} changes too fast")

    async def observe_all(self) -> tuple[Instance, ...]:
        await self._pods.synced()
        found = map(phases.instance, filter(phases.is_ours, self._pods.all()))
        return tuple(sorted(found, key=lambda instance: instance.key))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # Reading

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None and (event := self._vanishing.get(pod.metadata.uid)) is not None:
            event.set()
        if phases.is_ours(pod):
            for listener in self._listeners:
                listener(phases.key_of(pod))

    def _ours(self, key: Key) -> Pod | None:
        found = self._pods.get(*key)
        return found if found is not None and phases.is_ours(found) else None

    async def _read(self, key: Key) -> Pod | None:
        """Read the Pod from the API server, not from the view."""
        try:
            found = await self._objects.get(Pod, *key)
        except NotFound:
            return None
        if phases.is_ours(found):
            # The view does not receive changes of Pods that are not ours.
            self._pods.observe(found)
        return found

    # Writing

    async def _make(self, workload: Workload) -> Pod:
        made = rendering.pod(workload, self._settings)
        await self._objects.apply(rendering.config_secret(workload))
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._create(made)
            except AlreadyExists:
                found = await self._read(workload.key)
            if found is not None:
                return found
            await _pause(attempt)
        raise _too_fast(made)

    async def _create(self, made: Pod) -> Pod:
        try:
            created = await self._objects.create(made)
        except AlreadyExists:
            raise
        except Forbidden as error:
            # The API server identifies an exceeded quota only by this text.
            if "exceeded quota" in error.message:
                raise NoCapacity(error.message) from None
            raise Refused(f"the cluster refuses the Pod: {error.message}") from None
        except Rejected as error:
            raise Refused(f"the cluster refuses the Pod: {error.message}") from None
        self._pods.observe(created)
        return created

    async def _delete(self, pod: Pod) -> bool:
        """Delete exactly this Pod; returns whether it still existed.

        Its status may have changed since it was seen.
        """
        found: Pod | None = pod
        for attempt in range(ATTEMPTS_MAX):
            if found is None or found.metadata.uid != pod.metadata.uid:
                return False
            try:
                await self._objects.delete(found)
            except Conflict:
                await _pause(attempt)
                found = await self._read(phases.key_of(pod))
            else:
                return True
        raise _too_fast(pod)


async def _pause(attempt: int) -> None:
    await asyncio.sleep(PAUSE_SECONDS * 2**attempt)


def _unending(pod: Pod) -> Unreachable:
    node = pod.spec.get("nodeName", "no node")
    return Unreachable(f"Pod {'/'.join(phases.key_of(pod))} is still terminating, on {node}")


def _too_fast(value: Kind | None) -> Unavailable:
    assert value is not None
    meta = meta_of(value)
    return Unavailable(
        f"{value.kind} {meta.namespace}/{meta.name} kept changing while it was being written"
    )


def _is_over(pod: Pod) -> bool:
    return phases.instance(pod).phase is InstancePhase.EXITED
