"""Pools of exporters on this machine, against starting ``jmp run`` by hand.

The exporters are real processes with a mock driver, so that the cost of a pool is measured
and not the boot of a target. ``passes`` measures pools without machines.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from bullpen.api.exporter_template import Template, TemplateMetadata
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.bench import passes
from bullpen.bench.lab import (
    LOOK_SECONDS,
    NAMESPACE,
    Caller,
    Lab,
    config_of_new_exporter,
    connected,
    online,
    service,
    token,
)
from bullpen.bench.measure import Goal, Result, compare
from bullpen.bench.processes import program
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.provisioners.mock import NAME

MEMBERS = 300
READY_SECONDS_MAX = 300.0
MEBIBYTE = 1 << 20
OWN_MIB_MAX = 25.0

BY_HAND = Goal(0.2, at_least=False)
OWN_MEMORY = Goal(1, at_least=False)


async def run(*, rounds: int) -> tuple[Result, ...]:
    """From zero, many at once, the memory of each, and how a pass grows."""
    with (
        tempfile.TemporaryDirectory() as directory,
        service(Path(directory)) as lab,
    ):
        async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="bench") as objects:
            await objects.create(Client(metadata=ObjectMeta(name="bench", namespace=NAMESPACE)))
            async with connected(lab, await token(objects, "bench-client")) as caller:
                bench = Bench(objects, caller, lab, Path(directory))
                results = await bench.measured(rounds)
    return (*results, *await passes.run(rounds=rounds))


class Bench:
    def __init__(self, objects: ClusterObjects, caller: Caller, lab: Lab, directory: Path) -> None:
        self._objects = objects
        self._caller = caller
        self._lab = lab
        self._directory = directory

    async def measured(self, rounds: int) -> tuple[Result, ...]:
        await self._objects.create(
            VirtualTargetClass(
                metadata=ObjectMeta(name="mock", namespace=NAMESPACE),
                spec=VirtualTargetClassSpec(provisioner=NAME),
            )
        )
        await self._pool("zero", count=0)
        by_hand, from_zero = [], []
        await self._from_zero()  # the first one waits until the zygote has loaded everything
        for number in range(rounds):
            by_hand.append(await self._by_hand(f"by-hand-{number}"))
            from_zero.append(await self._from_zero())
        ready, owned = await self._many()
        return (
            compare("lease on an empty pool", from_zero, by_hand, unit="s", goal=BY_HAND),
            compare(
                f"{MEMBERS} members ready, each",
                [ready / MEMBERS],
                [median(by_hand)],
                unit="s",
                goal=BY_HAND,
                details={"all_s": ready},
            ),
            compare("memory of its own", [owned], [OWN_MIB_MAX], unit="MiB", goal=OWN_MEMORY),
        )

    async def _by_hand(self, name: str) -> float:
        """Seconds from starting ``jmp run`` until its exporter is registered and online."""
        path = await config_of_new_exporter(self._objects, self._lab, name, self._directory)
        began = time.perf_counter()
        with program("jmp", "run", "--exporter-config", str(path)):
            await online(self._objects, name)
            return time.perf_counter() - began

    async def _from_zero(self) -> float:
        """Seconds from the request until ready, without an existing member; leaves none behind."""
        began = time.perf_counter()
        lease = await self._caller.lease("pool=zero")
        taken = time.perf_counter() - began
        await self._caller.release(lease)
        await self._until("zero", replicas=0)
        return taken

    async def _many(self) -> tuple[float, float]:
        """Seconds until all are ready, and the private memory of each in MiB."""
        began = time.perf_counter()
        await self._pool("many", count=MEMBERS)
        await self._until("many", ready=MEMBERS)
        return time.perf_counter() - began, mean(self._own_mib())

    def _own_mib(self) -> list[float]:
        found = (self._directory / "lab" / "instances").glob("*/process.json")
        return [_private_bytes(json.loads(path.read_bytes())["pid"]) / MEBIBYTE for path in found]

    async def _pool(self, name: str, *, count: int) -> None:
        labels = {"pool": name}
        await self._objects.create(
            ExporterSet(
                metadata=ObjectMeta(name=name, namespace=NAMESPACE),
                spec=ExporterSetSpec(
                    virtual_target_class_name="mock",
                    min_replicas=count,
                    max_replicas=0,
                    selector=LabelSelector(match_labels=labels),
                    template=Template(metadata=TemplateMetadata(labels=labels)),
                ),
            )
        )

    async def _until(
        self, name: str, *, replicas: int | None = None, ready: int | None = None
    ) -> None:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while True:
                status = (await self._objects.get(ExporterSet, NAMESPACE, name)).status
                if replicas in (None, status.replicas) and ready in (None, status.ready_replicas):
                    return
                await asyncio.sleep(LOOK_SECONDS)


def _private_bytes(pid: int) -> int:
    """Memory that would be freed if this process ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith("Private_"))
    return sum(int(field[1]) * 1024 for field in fields)
