"""Puts access control together: default roles, aggregation, and the index that decides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bullpen.api.objects import Objects
from bullpen.api.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from bullpen.controllers.rbac.clusterroles import ClusterRoleAggregator, watch_cluster_roles
from bullpen.core.rbac.authorization import AccessIndex
from bullpen.core.rbac.bootstrap_policy import (
    CLUSTER_ROLE_BINDINGS,
    reconciled_binding,
    reconciled_role,
    starting_roles,
)
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.faults import Faults
from bullpen.runtime.informer import Informer
from bullpen.runtime.loop import ReconcileLoop
from bullpen.runtime.retry import Retry


async def ensure_policy(objects: Objects) -> None:
    """Create the default roles and bindings, and restore what was removed from them."""
    for role in starting_roles():
        await _ensure_role(objects, role)
    for binding in CLUSTER_ROLE_BINDINGS:
        await _ensure_binding(objects, binding)


async def _ensure_role(objects: Objects, wanted: ClusterRole) -> None:
    try:
        found = await objects.get(ClusterRole, "", wanted.metadata.name)
    except NotFound:
        await objects.create(wanted)
        return
    changed = reconciled_role(wanted, found)
    if changed is not None:
        await objects.update(changed)


async def _ensure_binding(objects: Objects, wanted: ClusterRoleBinding) -> None:
    try:
        found = await objects.get(ClusterRoleBinding, "", wanted.metadata.name)
    except NotFound:
        await objects.create(wanted)
        return
    changed = reconciled_binding(wanted, found)
    if changed is not None:
        await objects.update(changed)


@contextlib.asynccontextmanager
async def access_index(
    objects: Objects, *, clock: Clock, retry: Retry, faults: Faults | None = None
) -> AsyncIterator[AccessIndex]:
    """An index of all roles and bindings, kept current while the context is open."""
    index = AccessIndex()
    roles = Informer(objects, Role, retry=retry, faults=faults)
    cluster_roles = Informer(objects, ClusterRole, retry=retry, faults=faults)
    bindings = Informer(objects, RoleBinding, retry=retry, faults=faults)
    cluster_bindings = Informer(objects, ClusterRoleBinding, retry=retry, faults=faults)
    roles.listen(index.observe_role)
    cluster_roles.listen(index.observe_role)
    bindings.listen(index.observe_binding)
    cluster_bindings.listen(index.observe_binding)
    loop: ReconcileLoop[str] = ReconcileLoop(
        ClusterRoleAggregator(objects, cluster_roles), clock=clock, retry=retry
    )
    watch_cluster_roles(cluster_roles, loop.add)
    informers = (roles, cluster_roles, bindings, cluster_bindings)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced()
        running.append(tasks.create_task(loop.run()))
        yield index
        for task in running:
            task.cancel()
