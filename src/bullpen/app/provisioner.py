"""``bullpen provisioner``: manages the pools of one provisioner, in a process of its own.

It manages the sets whose class names this provisioner. Instances are Pods of the cluster,
or processes on this machine. Several replicas may run; one leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import platform
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bullpen.api.core import ConfigMap
from bullpen.api.exporterset import ExporterSet
from bullpen.api.objects import Objects
from bullpen.api.pod import Pod
from bullpen.app.config import Config
from bullpen.app.faultmetrics import FaultMetrics
from bullpen.app.joining import Joined, JoinSettings, joined, lead, leadership_of
from bullpen.app.lab import BACKOFF
from bullpen.app.poolmetrics import PoolMetrics
from bullpen.app.pools import Pools
from bullpen.app.wiring import sandbox_settings, tuning
from bullpen.controllers import authority
from bullpen.controllers.faults import FaultReconciler
from bullpen.controllers.labs import Labs
from bullpen.controllers.views import Views
from bullpen.core.exporters import presence
from bullpen.errors import NotFound, Refused
from bullpen.kit.clock import Clock, SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.base import Placement
from bullpen.placements.local.capacity import host_limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.placements.pod.placement import PodPlacement
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners import plugins
from bullpen.provisioners.base import Host, Plugin
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.runtime.events import Events
from bullpen.runtime.faults import ObjectKey
from bullpen.runtime.informer import Informer, Key
from bullpen.runtime.loop import ReconcileLoop
from bullpen.runtime.retry import Retry
from bullpen.runtime.supervision import supervise

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
    clock = SystemClock()
    plugin = plugins.load(settings.provisioner)
    name = f"bullpen-provisioner-{plugin.name}"
    async with joined(settings.join, manager=name, clock=clock, bundles=True) as here:
        announce(f"Standing by for {name} in namespace {here.namespace}.")
        await lead(
            leadership_of(name, here, clock),
            here,
            lambda: _working(settings, plugin, here, announce),
        )


@contextlib.asynccontextmanager
async def _working(
    settings: ProvisionerSettings, plugin: Plugin, here: Joined, announce: Callable[[str], None]
) -> AsyncIterator[str]:
    """Everything a leader does; yields a description once it is ready."""
    clock, ids, chance = SystemClock(), RandomIds(), random.SystemRandom()
    retry = functools.partial(BACKOFF.delay, chance=chance)
    here.health.waiting = f"waiting for ConfigMap {authority.NAME}, which the controller creates"
    namespace = settings.join.watch_namespace or here.namespace
    ca_pem = await _authority(settings, here.objects, namespace)
    views = Views.of(here.objects, retry=retry)
    component = f"bullpen-provisioner-{plugin.name}"
    recipe = plugin.recipe(Host(arch=platform.machine()))
    events = Events(here.objects, clock=clock, ids=ids, component=component)
    async with (
        _placement(settings, plugin, here.objects, clock, retry) as placement,
        asyncio.TaskGroup() as tasks,
    ):
        pools = Pools(
            here.objects,
            views,
            Labs(here.objects, views, connected=functools.partial(_online, views)),
            (PlacedProvisioner(recipe, placement),),
            ca_pem=ca_pem,
            supply_changed=lambda namespace: None,
            clock=clock,
            events=events,
            chance=chance,
            retry=retry,
            tuning=tuning(settings.config.pools),
            alone=False,
        )
        faults = FaultReconciler(
            here.objects, views.faults, clock=clock, events=events, kinds=(ExporterSet,)
        )
        fault_loop: ReconcileLoop[ObjectKey] = ReconcileLoop(faults, clock=clock, retry=retry)
        views.faults.listen(fault_loop.add)
        running = [tasks.create_task(part.run()) for part in (views, events, fault_loop)]
        # A decision before the views are complete would create existing members again.
        await views.synced()
        running.append(tasks.create_task(supervise("pools", pools.run, retry=retry)))
        collectors = (PoolMetrics(views.sets.all), FaultMetrics(views.faults))
        for metrics in collectors:
            here.health.collectors.register(metrics)
        announce(f"Looking after the pools of {recipe.name}.")
        yield f"looking after the pools of {recipe.name}"
        for metrics in collectors:
            here.health.collectors.unregister(metrics)
        for task in running:
            task.cancel()


def _online(views: Views, key: Key) -> bool:
    """Whether an exporter is connected, according to the controller in its status."""
    found = views.exporters.get(*key)
    return found is not None and presence.online(found)


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


@contextlib.asynccontextmanager
async def _placement(
    settings: ProvisionerSettings,
    plugin: Plugin,
    objects: Objects,
    clock: Clock,
    retry: Retry,
) -> AsyncIterator[Placement]:
    """The placement of instances: Pods, or processes of this machine."""
    if settings.pods is not None:
        pods: Informer[Pod] = Informer(objects, Pod, retry=retry)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(pods.run())
            yield PodPlacement(objects, pods, settings.pods)
            watching.cancel()
        return
    assert settings.data is not None, "a provisioner has a place for what it makes"
    local = LocalSettings(
        data=settings.data,
        limits=host_limits(instances=settings.config.pools.instances_max),
        zygote=ZygoteSettings(load=plugin.preload),
        sandbox=sandbox_settings(settings.config.sandbox),
    )
    async with LocalPlacement(local, clock=clock, ids=RandomIds()).running() as placement:
        yield placement
