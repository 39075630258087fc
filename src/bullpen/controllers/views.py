"""The cached views that services and controllers share, one informer per kind.

The kinds that most parts read have a name here. Any other kind is looked up by its class,
``views[Role]``, and needs no line in this module.
"""

from __future__ import annotations

from collections.abc import Iterable

from bullpen.api.fields import Kind
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.objects import Objects
from bullpen.errors import NotFound
from bullpen.runtime.informer import Informer, Informers
from bullpen.runtime.loop import Retry

NAMED: tuple[type[Kind], ...] = (
    Client,
    Exporter,
    Lease,
    ExporterAccessPolicy,
    Secret,
    ExporterSet,
    VirtualTargetClass,
    Namespace,
    ConfigMap,
    CoordinationLease,
)
"""The kinds that most parts read, and that have a view in every process with controllers."""


class Views(Informers):
    def __init__(
        self, objects: Objects, *, retry: Retry, kinds: Iterable[type[Kind]] = NAMED
    ) -> None:
        """``kinds`` have a view from the start; a process without rights to some names fewer."""
        super().__init__(objects, retry=retry)
        self._objects = objects
        for kind in kinds:
            self[kind]

    @property
    def clients(self) -> Informer[Client]:
        return self[Client]

    @property
    def exporters(self) -> Informer[Exporter]:
        return self[Exporter]

    @property
    def leases(self) -> Informer[Lease]:
        return self[Lease]

    @property
    def policies(self) -> Informer[ExporterAccessPolicy]:
        return self[ExporterAccessPolicy]

    @property
    def secrets(self) -> Informer[Secret]:
        return self[Secret]

    @property
    def sets(self) -> Informer[ExporterSet]:
        return self[ExporterSet]

    @property
    def classes(self) -> Informer[VirtualTargetClass]:
        return self[VirtualTargetClass]

    @property
    def namespaces(self) -> Informer[Namespace]:
        return self[Namespace]

    @property
    def configmaps(self) -> Informer[ConfigMap]:
        return self[ConfigMap]

    @property
    def coordination(self) -> Informer[CoordinationLease]:
        return self[CoordinationLease]

    async def find_lease(self, namespace: str, name: str) -> Lease:
        """The lease, open or ended: the view holds only the open ones. Raises ``NotFound``."""
        found = self.leases.get(namespace, name)
        if found is not None:
            return found
        try:
            return await self._objects.get(Lease, namespace, name)
        except NotFound:
            raise NotFound(f"there is no lease {name} in namespace {namespace}") from None
