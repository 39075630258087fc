"""Writes the service's CA certificate into namespaces, where ``jmp admin`` looks for it.

In the embedded home every namespace gets it; in a cluster only namespaces with a lab,
because most namespaces there belong to others.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import ConfigMap, Namespace
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects, meta_of
from bullpen.controllers.views import Views
from bullpen.errors import Forbidden, NotFound
from bullpen.runtime.loop import Outcome

NAME = "jumpstarter-service-ca-cert"
KEY = "ca.crt"


class AuthorityReconciler:
    """Reconciles the ConfigMap of one namespace."""

    name = "authority"

    def __init__(
        self, objects: Objects, views: Views, *, ca_pem: str, home: str | None = None
    ) -> None:
        """``home``: the namespace that gets it even without a lab; None if every one gets it."""
        self._objects = objects
        self._views = views
        self._data = {KEY: ca_pem}
        self._home = home

    async def reconcile(self, namespace: str) -> Outcome:
        if not self._is_wanted(namespace):
            return Outcome()
        found = self._views.configmaps.get(namespace, NAME)
        if found is not None and found.data == self._data:
            return Outcome()
        owner = self._views.namespaces.get("", namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return Outcome()
        wanted = ConfigMap(metadata=ObjectMeta(name=NAME, namespace=namespace), data=self._data)
        try:
            await self._objects.apply(wanted)
        except (Forbidden, NotFound):
            # The namespace started terminating during the pass.
            return Outcome()
        return Outcome()

    def _is_wanted(self, namespace: str) -> bool:
        """Whether the namespace may need it; an existing ConfigMap is left in place."""
        holders = (self._views.clients, self._views.exporters, self._views.sets)
        inhabited = any(any(view.all(namespace)) for view in holders)
        return self._home is None or namespace == self._home or inhabited


def watch_namespaces(views: Views, add: Callable[[str], None]) -> None:
    """Start a pass for a new namespace, for its first lab object, and for a changed ConfigMap."""

    def namespace(old: Namespace | None, new: Namespace | None) -> None:
        if old is None and new is not None:
            add(new.metadata.name)

    def configmap(old: ConfigMap | None, new: ConfigMap | None) -> None:
        value = new or old
        assert value is not None
        if value.metadata.name == NAME:
            add(value.metadata.namespace)

    def holder(old: Kind | None, new: Kind | None) -> None:
        if old is None and new is not None:
            space = meta_of(new).namespace
            if views.configmaps.get(space, NAME) is None:
                add(space)

    views.namespaces.listen(namespace)
    views.clients.listen(holder)
    views.exporters.listen(holder)
    views.sets.listen(holder)
    views.configmaps.listen(configmap)
