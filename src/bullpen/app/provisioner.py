"""``bullpen provisioner``: manages the pools of one provisioner, in a process of its own.

It manages the sets whose class names this provisioner. Instances are Pods of the cluster,
or processes on this machine. Several replicas may run; one leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bullpen.api.kinds.core import ConfigMap
from bullpen.api.objects import Objects
from bullpen.app import controllers
from bullpen.app.cluster_process import Joined, JoinSettings, joined, lead, leadership_of
from bullpen.app.config import Config
from bullpen.app.lab import Lab, LabSettings, Role, scopes_of
from bullpen.app.metrics import lab_metrics
from bullpen.app.placements import (
    local_disks,
    local_placement,
    pod_placement,
    provisioners_of,
)
from bullpen.app.sources import Sources
from bullpen.controllers import authority
from bullpen.errors import NotFound, Refused
from bullpen.placements.base import DiskStorage, Placement
from bullpen.placements.pod.claim_storage import ClaimStorage
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners import plugins
from bullpen.provisioners.base import Plugin

AUTHORITY_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerSettings:
    """The command line of ``bullpen provisioner``."""

    provisioner: str
    join: JoinSettings = field(default_factory=JoinSettings)
    pods: PodSettings | None = None
    """How Pods are created; exclusive with ``data``."""

    data: Path | None = None
    """Directory of instances that run as processes of this machine."""

    ca: Path | None = None
    """The CA that exporters trust; by default the one the controller published."""

    config: Config = field(default_factory=Config)


async def run(settings: ProvisionerSettings, *, announce: Callable[[str], None]) -> None:
    """Stand by or lead until SIGTERM or SIGINT; raises if the leadership is lost."""
    sources = Sources.real()
    plugin = plugins.load(settings.provisioner)
    name = f"bullpen-provisioner-{plugin.name}"
    # Classes may refer to any ConfigMap.
    scopes = partial(scopes_of, bundles=True)
    async with joined(settings.join, manager=name, clock=sources.clock, scopes=scopes) as here:
        announce(f"Standing by for {name} in namespace {here.namespace}.")
        await lead(
            leadership_of(name, here, sources.clock),
            here,
            lambda: _working(settings, plugin, here, sources, announce),
        )


@contextlib.asynccontextmanager
async def _working(
    settings: ProvisionerSettings,
    plugin: Plugin,
    here: Joined,
    sources: Sources,
    announce: Callable[[str], None],
) -> AsyncIterator[str]:
    """Everything a leader does; yields a description once it is ready."""
    here.health.wait_for(f"waiting for ConfigMap {authority.NAME}, which the controller creates")
    namespace = settings.join.watch_namespace or here.namespace
    ca_pem = await _authority(settings, here.objects, namespace)
    async with (
        _placement(settings, plugin, here.objects, sources) as placement,
        provisioners_of((plugin,), placement, here.objects, sources) as provisioners,
    ):
        storage = _disk_storage(settings, here.objects)
        lab = Lab(
            here.objects,
            # Exporters learn the controller's endpoint from their credentials.
            LabSettings(endpoint="", ca_pem=ca_pem, pools=settings.config.pools.tuning()),
            sources,
            role=Role.POOLS,
            provisioners=provisioners,
            disk_storage=storage,
            component=f"bullpen-provisioner-{plugin.name}",
        )
        # A process that stores none must not contradict the one that does.
        made = controllers.POOLS if storage is not None else controllers.POOLS_WITHOUT_DISKS
        async with lab.running(made):
            with here.health.counting(lab_metrics(lab.views)):
                announce(f"Looking after the pools of {plugin.name}.")
                yield f"looking after the pools of {plugin.name}"


async def _authority(settings: ProvisionerSettings, objects: Objects, namespace: str) -> str:
    """The CA that our exporters trust, as soon as the controller has published it."""
    if settings.ca is not None:
        try:
            return settings.ca.read_text()
        except OSError as error:
            raise Refused(f"{settings.ca} cannot be read: {error.strerror}") from None
    while True:
        with contextlib.suppress(NotFound):
            found = await objects.get(ConfigMap, namespace, authority.NAME)
            if pem := found.data.get(authority.KEY):
                return pem
        await asyncio.sleep(AUTHORITY_RETRY_SECONDS)


def _disk_storage(settings: ProvisionerSettings, objects: Objects) -> DiskStorage | None:
    """Where lasting disks are: beside the instances."""
    if settings.data is not None:
        return local_disks(settings.data)
    return ClaimStorage(objects) if settings.pods is not None else None


def _placement(
    settings: ProvisionerSettings, plugin: Plugin, objects: Objects, sources: Sources
) -> AbstractAsyncContextManager[Placement | None]:
    """The placement of instances: Pods, processes of this machine, or hosts of their own."""
    if plugin.hosts is not None:
        return contextlib.nullcontext()
    if settings.pods is not None:
        return pod_placement(objects, settings.pods, sources)
    assert settings.data is not None, "a provisioner has a place for what it makes"
    return local_placement(settings.data, settings.config, (plugin,), sources).running()
