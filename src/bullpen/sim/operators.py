"""Simulated operators: they declare boards, classes and pools, and change them.

They use the API server, so their changes wait while there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any, Protocol

from bullpen.errors import LabError
from bullpen.provisioners.fake import NAME
from bullpen.registry.options import DeleteOptions, PatchType, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.sim.truth import Raw, Truth

GROUP = "jumpstarter.dev/v1alpha1"
VIRTUAL = "virtualtarget.jumpstarter.dev/v1alpha1"
DEVICE = "device.jumpstarter.dev/v1alpha1"
SPACE, OTHER = "default", "other"
CLIENTS = ("alice", "bob", "carol")
STRANGER = "mallory"
BOARD = {"board": "real"}
ATTEMPTS_MAX = 40
FINAL = ("NotFound", "Conflict", "Invalid", "AlreadyExists", "BadRequest")
"""Refusals after which an operator does not try again."""

PAUSE = 0.5


class Stage(Protocol):
    """What an operator needs from its world."""

    truth: Truth
    deleted: set[str]

    def registry(self) -> Registry | None: ...

    def say(self, who: str, what: str) -> None: ...


def set_name(number: int) -> str:
    return f"pool{number}"


def set_labels(number: int) -> dict[str, str]:
    return {"board": f"virtual{number}"}


class Operator:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def prepare(self, boards: int, ceilings: tuple[int, ...]) -> None:
        """Create the initial lab."""
        for client in CLIENTS:
            await self.apply(object_of(GROUP, "Client", client))
        await self.apply(object_of(GROUP, "Client", STRANGER, namespace=OTHER))
        for number in range(boards):
            await self.apply(object_of(GROUP, "Exporter", f"board{number}", labels=BOARD))
        await self.apply(
            object_of(VIRTUAL, "VirtualTargetClass", "fake", spec={"provisioner": NAME})
        )
        for number, ceiling in enumerate(ceilings):
            await self.make_set(number, ceiling)

    async def make_set(self, number: int, ceiling: int) -> None:
        labels = set_labels(number)
        spec = {
            "virtualTargetClassName": "fake",
            "maxReplicas": ceiling,
            "minAvailableReplicas": min(1, ceiling) if number else ceiling,
            "scaleDownCooldown": "10s",
            "recycleStrategy": "InPlaceReuse" if number else "ExitAndReplace",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}},
        }
        await self.apply(object_of(VIRTUAL, "ExporterSet", set_name(number), spec=spec))

    async def scale(self, number: int, chance: random.Random) -> None:
        ceiling = chance.randint(1, 4)
        least = chance.randint(0, ceiling)
        spec = {"maxReplicas": ceiling, "minReplicas": 0, "minAvailableReplicas": least}
        await self.change("ExporterSet", set_name(number), {"spec": spec})

    async def edit_class(self, chance: random.Random) -> None:
        """All members are outdated after this."""
        spec = {"parameters": {"flavour": str(chance.randint(0, 3))}}
        await self.change("VirtualTargetClass", "fake", {"spec": spec})

    async def remake_set(self, number: int, ceiling: int, chance: random.Random) -> None:
        await self.delete("ExporterSet", SPACE, set_name(number))
        await asyncio.sleep(chance.uniform(0, 10))
        await self.make_set(number, ceiling)

    async def disable(self, name: str, seconds: float) -> None:
        await self.change("Exporter", name, {"spec": {"enabled": False}})
        await asyncio.sleep(seconds)
        await self.change("Exporter", name, {"spec": {"enabled": True}})

    async def police(self, seconds: float) -> None:
        """For a while, some leases may be displaced by others."""
        policies = [
            {"priority": 1, "from": [{"clientSelector": {}}], "spotAccess": True},
            {"priority": 5, "from": [{"clientSelector": {"matchLabels": {"vip": "yes"}}}]},
        ]
        spec = {"exporterSelector": {}, "policies": policies}
        await self.apply(object_of(GROUP, "ExporterAccessPolicy", "spot", spec=spec))
        await asyncio.sleep(seconds)
        await self.delete("ExporterAccessPolicy", SPACE, "spot")

    async def limit(self, seconds: float) -> None:
        """From now on no lease may last longer."""
        policy = {"from": [{"clientSelector": {}}], "maximumDuration": f"{seconds:g}s"}
        spec = {"exporterSelector": {}, "policies": [policy]}
        await self.apply(object_of(GROUP, "ExporterAccessPolicy", "limit", spec=spec))

    async def unlimit(self) -> None:
        await self.delete("ExporterAccessPolicy", SPACE, "limit")

    async def apply(self, document: Raw) -> None:
        meta = document["metadata"]

        async def work(registry: Registry) -> None:
            resource = registry.resources.of_kind(document["apiVersion"], document["kind"])
            assert resource is not None
            options = WriteOptions(field_manager="operator", force=True)
            await registry.patch(
                resource,
                meta.get("namespace", ""),
                meta["name"],
                PatchType.APPLY,
                document,
                options,
            )

        await self.do(f"applies {document['kind']} {meta['name']}", work)

    async def change(self, kind: str, name: str, patch: Mapping[str, Any]) -> None:
        async def work(registry: Registry) -> None:
            resource = registry.resources.of_kind(_group(kind), kind)
            assert resource is not None
            await registry.patch(
                resource, SPACE, name, PatchType.MERGE, dict(patch), WriteOptions()
            )

        await self.do(f"changes {kind} {name}", work)

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        found = self._stage.truth.get(kind, namespace, name)
        if found is not None:
            self._stage.deleted.add(found["metadata"]["uid"])

        async def work(registry: Registry) -> None:
            resource = registry.resources.of_kind(_group(kind), kind)
            assert resource is not None
            uid = found["metadata"]["uid"] if found is not None else ""
            await registry.delete(resource, namespace, name, DeleteOptions(uid=uid))

        if found is not None:
            await self.do(f"deletes {kind} {name}", work)

    async def do(self, what: str, work: Any) -> None:
        """Retry until it succeeds, or is rejected."""
        for _ in range(ATTEMPTS_MAX):
            registry = self._stage.registry()
            if registry is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10 * PAUSE):
                        if await self._once(what, work, registry):
                            return
            await asyncio.sleep(PAUSE)

    async def _once(self, what: str, work: Any, registry: Registry) -> bool:
        try:
            await work(registry)
        except LabError as error:
            self._stage.say("operator", f"{what}: {error.reason}")
            return error.reason in FINAL
        self._stage.say("operator", what)
        return True


def _group(kind: str) -> str:
    if kind == "DeviceClaim":
        return DEVICE
    if kind == "Secret":
        return "v1"
    return VIRTUAL if kind == "ExporterSet" or kind.startswith("Virtual") else GROUP


def object_of(
    version: str,
    kind: str,
    name: str,
    *,
    namespace: str = SPACE,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Raw:
    meta = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": dict(spec or {})}
