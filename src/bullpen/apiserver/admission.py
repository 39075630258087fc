"""Checks a write on the exact state that is about to be committed.

The rights to a request are checked before it is carried out. Some checks depend on the
resulting object: whether a role or a binding grants rights its writer does not have, whether a
claim has admin access, whether the lab can accept the change of a lease or claim, and whether a
patch creates the object instead of changing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from bullpen.api.paths import Document
from bullpen.apiserver.routes import ObjectRoute, refusal
from bullpen.core.rbac.admin_access import admin_access_refusal
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User
from bullpen.core.rbac.escalation import binding_refusal, role_refusal
from bullpen.errors import Forbidden
from bullpen.registry.messages import forbidden
from bullpen.registry.options import Admit

K = TypeVar("K", bound=Kind)
_Refusal = Callable[[Document, Document | None], str | None]


Hindrance = Callable[[Kind, Kind], str]
"""Why the lab cannot accept a change from an old to a new object; empty if it can."""


def admission(
    index: AccessIndex,
    user: User,
    route: ObjectRoute,
    request: Attributes,
    hindrance: Hindrance = lambda new, old: "",
) -> Admit | None:
    """The check of one write; None if there is nothing to check."""
    refused = _refusal(index, user, route)
    booked = next((kind for kind in (Lease, DeviceClaim) if route.resource.value is kind), None)
    if refused is None and booked is None and request.verb != "patch":
        return None

    def admit(new: Document, old: Document | None) -> None:
        if old is None and request.verb == "patch":
            create = Attributes(
                verb="create",
                group=request.group,
                resource=request.resource,
                namespace=request.namespace,
                name=request.name,
            )
            if not index.decide(user, create).allowed:
                raise Forbidden(refusal(user, create))
        why = refused(new, old) if refused else None
        if not why and booked is not None and old is not None:
            why = hindrance(codec.decode(booked, new), codec.decode(booked, old))
        if why:
            raise forbidden(route.resource, new["metadata"]["name"], why)

    return admit


def _refusal(index: AccessIndex, user: User, route: ObjectRoute) -> _Refusal | None:
    value = route.resource.value
    for role in (Role, ClusterRole):
        if value is role:
            return _role_check(index, user, role)
    for binding in (RoleBinding, ClusterRoleBinding):
        if value is binding:
            return _binding_check(index, user, binding)
    if value is DeviceClaim:
        return lambda new, old: admin_access_refusal(
            index, user, codec.decode(DeviceClaim, new), _decoded(DeviceClaim, old)
        )
    return None


def _role_check(index: AccessIndex, user: User, kind: type[Role | ClusterRole]) -> _Refusal:
    return lambda new, old: role_refusal(index, user, codec.decode(kind, new), _decoded(kind, old))


def _binding_check(
    index: AccessIndex, user: User, kind: type[RoleBinding | ClusterRoleBinding]
) -> _Refusal:
    return lambda new, old: binding_refusal(
        index, user, codec.decode(kind, new), _decoded(kind, old)
    )


def _decoded(kind: type[K], document: Document | None) -> K | None:
    return None if document is None else codec.decode(kind, document)
