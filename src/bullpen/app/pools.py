"""Wires the pools: instances, members, sets, and their messages for waiting leases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from bullpen.api.objects import Objects
from bullpen.controllers.labs import Labs
from bullpen.controllers.pools.exporterset_reconciler import ExporterSetReconciler
from bullpen.controllers.pools.pool_observer import TUNING, PoolObserver, Tuning
from bullpen.controllers.pools.pool_triggers import watch_pools
from bullpen.controllers.targets.blueprints import Blueprints
from bullpen.controllers.targets.instance_reconciler import (
    WORKERS,
    InstanceReconciler,
    watch_members,
)
from bullpen.controllers.targets.instance_view import (
    InstanceView,
    InstanceViewReconciler,
    watch_provisioners,
)
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Supply
from bullpen.kit.clock import Clock
from bullpen.provisioners.base import Provisioner
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import ReconcileLoop
from bullpen.runtime.retry import Retry


class Pools:
    """Everything that keeps ExporterSets as declared."""

    def __init__(
        self,
        objects: Objects,
        views: Views,
        labs: Labs,
        provisioners: tuple[Provisioner, ...],
        *,
        ca_pem: str,
        supply_changed: Callable[[str], None],
        clock: Clock,
        events: Events,
        chance: random.Random,
        retry: Retry,
        tuning: Tuning = TUNING,
        alone: bool = True,
    ) -> None:
        """``alone``: all pools are ours, even if their provisioner is not in this process."""
        instance_view = InstanceView(provisioners, clock=clock, alone=alone)
        blueprints = Blueprints(views, instance_view.provisioners, ca_pem=ca_pem, alone=alone)
        observer = PoolObserver(views, labs, instance_view, blueprints, clock=clock, tuning=tuning)

        self._instance_view_loop: ReconcileLoop[str] = ReconcileLoop(
            InstanceViewReconciler(instance_view, clock=clock), clock=clock, retry=retry
        )
        watch_provisioners(instance_view, self._instance_view_loop.add)

        self._members_loop: ReconcileLoop[Key] = ReconcileLoop(
            InstanceReconciler(
                objects, views, instance_view, blueprints, clock=clock, events=events, chance=chance
            ),
            clock=clock,
            retry=retry,
            # Starting and removing instances waits for backends; a slow member delays no other.
            workers=WORKERS,
            faults=views.faults,
            subject=lambda key: views.exporters.get(*key),
        )
        watch_members(views, instance_view, self._members_loop.add)

        self._sets = ExporterSetReconciler(
            objects,
            views,
            observer,
            nudge=self._members_loop.add,
            supply_changed=supply_changed,
            clock=clock,
            events=events,
            chance=chance,
        )
        self._sets_loop: ReconcileLoop[Key] = ReconcileLoop(
            self._sets,
            clock=clock,
            retry=retry,
            faults=views.faults,
            subject=lambda key: views.sets.get(*key),
        )
        watch_pools(views, labs, instance_view, observer.demand, self._sets_loop.add)

    def supplies(self, namespace: str) -> tuple[Supply, ...]:
        """The exporters that the pools of a namespace could create."""
        return self._sets.supplies(namespace)

    async def run(self) -> None:
        """Work until cancelled."""
        loops: list[ReconcileLoop[Any]] = [
            self._instance_view_loop,
            self._sets_loop,
            self._members_loop,
        ]
        async with asyncio.TaskGroup() as tasks:
            for loop in loops:
                tasks.create_task(loop.run())
