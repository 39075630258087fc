"""The cached views that services and controllers share, one informer per kind.

The kinds that most parts read have a name here. Any other kind is looked up by its class,
``views[Role]``, and needs no line in this module.
"""

from __future__ import annotations

from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.objects import Objects
from bullpen.errors import NotFound
from bullpen.runtime.informer import Informers
from bullpen.runtime.loop import Retry


class Views(Informers):
    def __init__(self, objects: Objects, *, retry: Retry) -> None:
        super().__init__(objects, retry=retry)
        self._objects = objects
        self.clients = self[Client]
        self.exporters = self[Exporter]
        self.leases = self[Lease]
        self.policies = self[ExporterAccessPolicy]
        self.secrets = self[Secret]
        self.sets = self[ExporterSet]
        self.classes = self[VirtualTargetClass]
        self.namespaces = self[Namespace]
        self.configmaps = self[ConfigMap]
        self.coordination = self[CoordinationLease]

    async def find_lease(self, namespace: str, name: str) -> Lease:
        """The lease, open or ended: the view holds only the open ones. Raises ``NotFound``."""
        found = self.leases.get(namespace, name)
        if found is not None:
            return found
        try:
            return await self._objects.get(Lease, namespace, name)
        except NotFound:
            raise NotFound(f"there is no lease {name} in namespace {namespace}") from None
