"""Fills the rules of aggregated ClusterRoles from the roles that their selectors choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bullpen.api.kinds.rbac import ClusterRole
from bullpen.api.objects import Objects
from bullpen.core.rbac.bootstrap_policy import aggregated_rules
from bullpen.runtime.informer import Informer
from bullpen.runtime.loop import Outcome


class ClusterRoleAggregator:
    """Reconciles the rules of one ClusterRole."""

    name = "clusterrole-aggregation"

    def __init__(self, objects: Objects, roles: Informer[ClusterRole]) -> None:
        self._objects = objects
        self._roles = roles

    async def reconcile(self, name: str) -> Outcome:
        role = self._roles.get("", name)
        if role is None or role.metadata.deletion_timestamp is not None:
            return Outcome()
        rules = aggregated_rules(role, self._roles.all())
        if rules is not None and rules != role.policy_rules:
            written = await self._objects.update(replace(role, policy_rules=rules))
            self._roles.observe(written)
        return Outcome()


def watch_cluster_roles(roles: Informer[ClusterRole], add: Callable[[str], None]) -> None:
    """Start a pass for every aggregated role whenever any ClusterRole changes."""

    def changed(old: ClusterRole | None, new: ClusterRole | None) -> None:
        for role in roles.all():
            if role.aggregation_rule is not None:
                add(role.metadata.name)

    roles.listen(changed)
