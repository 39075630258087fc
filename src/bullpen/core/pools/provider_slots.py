"""How many instances a provider can still make: free slots of hosts, quota, and limits.

A pool may have room under its ceiling and still start nothing, because its provider is full. What
several pools could start on one provider, they share.
"""

from __future__ import annotations

from collections.abc import Iterable

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.providerconfig import ProviderConfig


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
