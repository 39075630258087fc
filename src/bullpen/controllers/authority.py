"""Puts the service's CA certificate into every namespace, where ``jmp admin`` looks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bullpen.api.core import ConfigMap, Namespace
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.controllers.views import Views
from bullpen.errors import Forbidden, NotFound
from bullpen.runtime.loop import Outcome

NAME = "jumpstarter-service-ca-cert"
KEY = "ca.crt"


class AuthorityReconciler:
    """Reconciles the ConfigMap of one namespace."""

    name = "authority"

    def __init__(self, objects: Objects, views: Views, *, ca_pem: str) -> None:
        self._objects = objects
        self._views = views
        self._data = {KEY: ca_pem}

    async def reconcile(self, namespace: str) -> Outcome:
        found = self._views.configmaps.get(namespace, NAME)
        if found is not None:
            if found.data != self._data:
                await self._objects.update(replace(found, data=self._data))
            return Outcome()
        owner = self._views.namespaces.get("", namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return Outcome()
        fresh = ConfigMap(metadata=ObjectMeta(name=NAME, namespace=namespace), data=self._data)
        try:
            await self._objects.create(fresh)
        except (Forbidden, NotFound):
            # The namespace began to go while we looked.
            return Outcome()
        return Outcome()


def watch_namespaces(views: Views, add: Callable[[str], None]) -> None:
    """Start a pass for a new namespace, and for a ConfigMap somebody touched."""

    def namespace(old: Namespace | None, new: Namespace | None) -> None:
        if old is None and new is not None:
            add(new.metadata.name)

    def configmap(old: ConfigMap | None, new: ConfigMap | None) -> None:
        value = new or old
        assert value is not None
        if value.metadata.name == NAME:
            add(value.metadata.namespace)

    views.namespaces.listen(namespace)
    views.configmaps.listen(configmap)
