"""How many instances a provider can still make: free slots of hosts, quota, and limits.

A pool may have room under its ceiling and still start nothing, because its provider is full. What
several pools could start on one provider, they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.core.leases.requests import Supply


def free_slots(config: ProviderConfig, sets: Iterable[ExporterSet]) -> int | None:
    """Instances that pools may count on; None if the provider sets no limit.

    ``sets``: the pools of the provider. Their members that are starting count as free: they are
    what a waiting request gets.
    """
    status, limit = config.status, config.spec.limits.max_instances
    left = []
    if status.quota is not None:
        left.append(status.quota.instances - status.quota.used)
    if limit:
        left.append(limit - status.instances)
    if not left:
        return None
    starting = sum(max(0, owner.status.replicas - owner.status.ready_replicas) for owner in sets)
    return max(0, min(left) + starting)


def with_slots(
    supplies: Iterable[Supply],
    sets: Iterable[ExporterSet],
    configs: Mapping[str, ProviderConfig],
    config_of: Mapping[str, str],
) -> tuple[Supply, ...]:
    """The supplies of pools, with the free slots of their providers.

    ``config_of``: the ProviderConfig that each VirtualTargetClass names, if it does.
    """
    pools: dict[str, list[ExporterSet]] = {}
    provider_of: dict[str, str] = {}
    for owner in sets:
        name = config_of.get(owner.spec.virtual_target_class_name, "")
        if name in configs:
            pools.setdefault(name, []).append(owner)
            provider_of[owner.metadata.name] = name
    free = {name: free_slots(configs[name], owners) for name, owners in pools.items()}
    return tuple(
        replace(supply, provider=provider, slots=free[provider])
        if (provider := provider_of.get(supply.name))
        else supply
        for supply in supplies
    )
