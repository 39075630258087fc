"""Tells what pools could create apart from what their providers have no slots for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Supply
from bullpen.core.pools.provider_slots import free_slots


class ProviderSlots:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._configs = views[ProviderConfig]

    def applied(self, namespace: str, supplies: Iterable[Supply]) -> tuple[Supply, ...]:
        """The supplies of pools, with the free slots of their providers."""
        configs = {config.metadata.name: config for config in self._configs.all(namespace)}
        if not configs:
            return tuple(supplies)
        pools: dict[str, list[ExporterSet]] = {}
        provider_of: dict[str, str] = {}
        for owner in self._views.sets.all(namespace):
            made_of = self._views.classes.get(namespace, owner.spec.virtual_target_class_name)
            ref = made_of.spec.provider_config_ref if made_of is not None else None
            if ref is not None and ref.name in configs:
                pools.setdefault(ref.name, []).append(owner)
                provider_of[owner.metadata.name] = ref.name
        free = {name: free_slots(configs[name], owners) for name, owners in pools.items()}
        return tuple(
            replace(supply, provider=provider, slots=free[provider])
            if (provider := provider_of.get(supply.name))
            else supply
            for supply in supplies
        )
