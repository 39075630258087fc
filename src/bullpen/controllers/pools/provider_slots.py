"""Tells what pools could create apart from what their providers have no slots for."""

from __future__ import annotations

from collections.abc import Iterable

from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Supply
from bullpen.core.pools.provider_slots import with_slots


class ProviderSlots:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._configs = views[ProviderConfig]

    def applied(self, namespace: str, supplies: Iterable[Supply]) -> tuple[Supply, ...]:
        """The supplies of pools, with the free slots of their providers."""
        configs = {config.metadata.name: config for config in self._configs.all(namespace)}
        if not configs:
            return tuple(supplies)
        classes = self._views.classes.all(namespace)
        refs = ((found.metadata.name, found.spec.provider_config_ref) for found in classes)
        config_of = {name: ref.name for name, ref in refs if ref is not None}
        return with_slots(supplies, self._views.sets.all(namespace), configs, config_of)
