"""Where the instances of this process run: as processes of this machine, or as Pods."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from bullpen.api.objects import Objects
from bullpen.api.pod import Pod
from bullpen.app.config import Config
from bullpen.app.sources import Sources
from bullpen.controllers.targets.provider_records import ProviderRecords
from bullpen.placements.base import Placement
from bullpen.placements.local.capacity import host_limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.disk_storage import LocalDiskStorage
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.placements.pod.placement import PodPlacement
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners.attended import AttendedProvisioner
from bullpen.provisioners.base import BackedProvisioner, Host, Plugin, Provisioner
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.runtime.informer import Informer


def local_placement(
    data: Path, config: Config, found: Iterable[Plugin], sources: Sources
) -> LocalPlacement:
    """Processes of this machine, with the drivers of these provisioners loaded in advance."""
    preload = tuple(dict.fromkeys(module for plugin in found for module in plugin.preload))
    settings = LocalSettings(
        data=data,
        limits=host_limits(instances=config.pools.instances_max),
        zygote=ZygoteSettings(load=preload),
        sandbox=config.sandbox.settings(),
        retention=config.retained.limits(),
    )
    return LocalPlacement(settings, clock=sources.clock, ids=sources.ids)


@contextlib.asynccontextmanager
async def provisioners_of(
    found: Iterable[Plugin], placement: Placement | None, objects: Objects, sources: Sources
) -> AsyncIterator[tuple[Provisioner, ...]]:
    """The provisioners of plugins, with their connections while the context is open."""
    made = tuple(provisioner_of(plugin, placement, objects, sources) for plugin in found)
    try:
        yield made
    finally:
        for each in made:
            if isinstance(each, BackedProvisioner):
                await each.close()


def provisioner_of(
    plugin: Plugin, placement: Placement | None, objects: Objects, sources: Sources
) -> Provisioner:
    """The provisioner of a plugin, with its exporters at ``placement`` or on hosts of its own."""
    if plugin.hosts is not None:
        return plugin.hosts(ProviderRecords(objects), sources.clock, sources.ids)
    assert placement is not None, "only hosts need no placement here"
    if plugin.provider is not None:
        records = ProviderRecords(objects)
        return AttendedProvisioner(
            plugin.provider(), placement, records, clock=sources.clock, chance=sources.chance
        )
    assert plugin.recipe is not None, "a plugin has a recipe or a provider"
    return PlacedProvisioner(plugin.recipe(Host(arch=platform.machine())), placement)


def local_disks(data: Path) -> LocalDiskStorage:
    """Lasting disks in the data directory of this machine."""
    made = LocalDiskStorage(data, host=platform.node())
    made.prepare()
    return made


@contextlib.asynccontextmanager
async def pod_placement(
    objects: Objects, settings: PodSettings, sources: Sources
) -> AsyncIterator[PodPlacement]:
    """Pods of the cluster, watched while the context is open."""
    pods: Informer[Pod] = Informer(objects, Pod, retry=sources.retry)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(pods.run())
        yield PodPlacement(objects, pods, settings)
        watching.cancel()
