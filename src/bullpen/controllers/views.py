"""The cached views that services and controllers share, one informer per kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from bullpen.api.accesspolicy import ExporterAccessPolicy
from bullpen.api.client import Client
from bullpen.api.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.exporter import Exporter
from bullpen.api.exporterset import ExporterSet
from bullpen.api.lease import Lease
from bullpen.api.objects import Objects
from bullpen.api.virtualtargetclass import VirtualTargetClass
from bullpen.runtime.faults import Faults
from bullpen.runtime.informer import Informer
from bullpen.runtime.retry import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    clients: Informer[Client]
    exporters: Informer[Exporter]
    leases: Informer[Lease]
    policies: Informer[ExporterAccessPolicy]
    secrets: Informer[Secret]
    sets: Informer[ExporterSet]
    classes: Informer[VirtualTargetClass]
    namespaces: Informer[Namespace]
    configmaps: Informer[ConfigMap]
    coordination: Informer[CoordinationLease]
    faults: Faults
    """Objects that listeners and passes could not process."""

    @classmethod
    def of(cls, objects: Objects, *, retry: Retry) -> Views:
        faults = Faults()
        return cls(
            faults=faults,
            clients=Informer(objects, Client, retry=retry, faults=faults),
            exporters=Informer(objects, Exporter, retry=retry, faults=faults),
            leases=Informer(objects, Lease, retry=retry, faults=faults),
            policies=Informer(objects, ExporterAccessPolicy, retry=retry, faults=faults),
            secrets=Informer(objects, Secret, retry=retry, faults=faults),
            sets=Informer(objects, ExporterSet, retry=retry, faults=faults),
            classes=Informer(objects, VirtualTargetClass, retry=retry, faults=faults),
            namespaces=Informer(objects, Namespace, retry=retry, faults=faults),
            configmaps=Informer(objects, ConfigMap, retry=retry, faults=faults),
            coordination=Informer(objects, CoordinationLease, retry=retry, faults=faults),
        )

    async def run(self) -> None:
        """Keep every view current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._all():
                tasks.create_task(informer.run())

    async def synced(self) -> None:
        for informer in self._all():
            await informer.synced()

    def _all(self) -> tuple[Informer[Any], ...]:
        return (
            self.clients,
            self.exporters,
            self.leases,
            self.policies,
            self.secrets,
            self.sets,
            self.classes,
            self.namespaces,
            self.configmaps,
            self.coordination,
        )
