"""The objects that exist from the first start: namespaces, CRDs, roles; and manifests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bullpen.api.crds import served_crds
from bullpen.api.kinds.rbac import ClusterRole, ClusterRoleBinding
from bullpen.api.objects import Objects
from bullpen.api.paths import Document, decode
from bullpen.api.resources import RESOURCES
from bullpen.core.rbac.bootstrap_policy import (
    CLUSTER_ROLE_BINDINGS,
    reconciled_binding,
    reconciled_role,
    starting_roles,
)
from bullpen.errors import BadRequest, NotFound
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.registry.registry import Registry

FIELD_MANAGER = "bullpen"
NAMESPACES = ("default", "kube-system")

R = TypeVar("R", ClusterRole, ClusterRoleBinding)


async def create_initial_objects(registry: Registry) -> None:
    """Create what is missing, and restore what was removed from the default roles."""
    await registry.ensure_namespaces(NAMESPACES)
    for crd in served_crds():
        await apply(registry, crd)
    await ensure_policy(RegistryObjects(registry, manager=FIELD_MANAGER))


async def apply(registry: Registry, document: Document) -> str:
    """Server-side apply one document under our own name; returns its ``kind/name``."""
    api_version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
    resource = RESOURCES.of_kind(api_version, kind)
    if resource is None:
        raise BadRequest(f"no kind {kind!r} in version {api_version!r} is served here")
    meta = document.get("metadata") or {}
    namespace = str(meta.get("namespace") or "default") if resource.namespaced else ""
    written = await registry.patch(
        resource,
        namespace,
        str(meta.get("name", "")),
        PatchType.APPLY,
        document,
        WriteOptions(field_manager=FIELD_MANAGER, force=True),
    )
    return f"{resource.singular}/{decode(written.value)['metadata']['name']}"


async def ensure_policy(objects: Objects) -> None:
    """Create the default roles and bindings, and restore what was removed from them."""
    for role in starting_roles():
        await _ensure(objects, role, reconciled_role)
    for binding in CLUSTER_ROLE_BINDINGS:
        await _ensure(objects, binding, reconciled_binding)


async def _ensure(objects: Objects, wanted: R, reconciled: Callable[[R, R], R | None]) -> None:
    try:
        found = await objects.get(type(wanted), "", wanted.metadata.name)
    except NotFound:
        await objects.create(wanted)
        return
    changed = reconciled(wanted, found)
    if changed is not None:
        await objects.update(changed)
