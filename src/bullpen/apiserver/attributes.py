"""The attributes of a request for the authorizer, and the message of a refusal.

Pure. Follows Kubernetes' RequestInfo: a request about a Namespace object has that
namespace, and a list or watch of exactly one name has that name.
"""

from __future__ import annotations

from typing import assert_never

from bullpen.apiserver.http import Request
from bullpen.apiserver.routes import ObjectRoute, PlainRoute, ReviewRoute, Route
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.kit.fieldselectors import parse_fields

_COLLECTION_VERBS = ("list", "watch", "deletecollection")


def attributes_of(target: Route, request: Request, verb: str) -> Attributes:
    """The attributes of ``request``; raises ``BadRequest`` for an unreadable field selector."""
    match target:
        case ObjectRoute(resource=resource, subresource=subresource):
            name = target.name or _selected_name(request, verb)
            is_namespace = (resource.group, resource.plural) == ("", "namespaces")
            return Attributes(
                verb=verb,
                group=resource.group,
                resource=resource.plural,
                subresource=subresource,
                namespace=target.name if is_namespace else target.namespace or "",
                name=name,
            )
        case ReviewRoute(group=group, plural=plural, namespace=namespace):
            return Attributes(verb="create", group=group, resource=plural, namespace=namespace)
        case PlainRoute(path):
            return Attributes(verb=verb, path=path)
        case _:
            assert_never(target)


def _selected_name(request: Request, verb: str) -> str:
    selector = request.query.get("fieldSelector", "")
    if verb not in _COLLECTION_VERBS or "metadata.name" not in selector:
        return ""
    return parse_fields(selector).exact("metadata.name") or ""


def refusal(user: User, request: Attributes) -> str:
    """Why ``user`` is refused, in Kubernetes' words."""
    if not request.resource:
        return f'forbidden: User "{user.name}" cannot {request.verb} path "{request.path}"'
    qualified = f"{request.resource}.{request.group}" if request.group else request.resource
    about = f'{qualified} "{request.name}"' if request.name else qualified
    resource = "/".join(part for part in (request.resource, request.subresource) if part)
    place = f'in the namespace "{request.namespace}"' if request.namespace else _CLUSTER
    return (
        f'{about} is forbidden: User "{user.name}" cannot {request.verb} resource "{resource}"'
        f' in API group "{request.group}" {place}'
    )


_CLUSTER = "at the cluster scope"
