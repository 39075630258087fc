"""The meaning of a request's path, and its attributes for the authorizer.

What a path means. Pure: a path in, a route out, no lookup of objects.

/api/v1/namespaces/NS/secrets/NAME             core group
/apis/GROUP/VERSION/namespaces/NS/PLURAL/NAME/SUBRESOURCE
/apis/GROUP/VERSION/PLURAL                     all namespaces, or cluster-scoped
/apis/subresources.GROUP/VERSION/namespaces/NS/PLURAL/NAME/scaledownwith

The attributes of a request for the authorizer, and the message of a refusal. Pure. Follows
Kubernetes' RequestInfo: a request about a Namespace object has that namespace, and a list
or watch of exactly one name has that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never
from urllib.parse import unquote

from bullpen.api.resource import Resource
from bullpen.api.resources import Resources
from bullpen.apiserver.http import Request
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.errors import BadRequest, NotFound
from bullpen.kit.fieldselectors import parse_fields

SEGMENTS_MAX = 10

SUBRESOURCES = "subresources."
"""Prefix of the group of requests that are no subresources of the object's own group."""

SCALE_DOWN_WITH = "scaledownwith"
"""Removes members of a pool by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRoute:
    """A collection (``name`` empty) or one object, possibly a subresource of it."""

    resource: Resource
    namespace: str | None
    """None: across all namespaces. Empty: the resource is cluster-scoped."""

    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRoute:
    """A question about rights or identities, answered and not stored."""

    group: str
    kind: str
    plural: str
    namespace: str = ""
    """Set for a review that is about one namespace."""


@dataclass(frozen=True, slots=True)
class PlainRoute:
    """Everything else: discovery, OpenAPI, health, version, metrics."""

    path: str


Route = ObjectRoute | ReviewRoute | PlainRoute

AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"

REVIEWS = {
    (AUTHORIZATION, "v1", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    (AUTHORIZATION, "v1", "selfsubjectrulesreviews"): "SelfSubjectRulesReview",
    (AUTHORIZATION, "v1", "subjectaccessreviews"): "SubjectAccessReview",
    (AUTHORIZATION, "v1", "localsubjectaccessreviews"): "LocalSubjectAccessReview",
    (AUTHENTICATION, "v1", "selfsubjectreviews"): "SelfSubjectReview",
    (AUTHENTICATION, "v1", "tokenreviews"): "TokenReview",
}

NAMESPACED_REVIEWS = frozenset({"LocalSubjectAccessReview"})


def route(path: str, resources: Resources) -> Route:
    """The route of ``path``; raises ``NotFound`` for a path that is not served."""
    segments = [_unquote(part) for part in path.strip("/").split("/")]
    if len(segments) > SEGMENTS_MAX:
        raise NotFound("the server could not find the requested resource")
    if segments[0] == "api" and len(segments) > 2:
        return _object_route("", segments[1], segments[2:], resources)
    if segments[0] == "apis" and segments[-1] == SCALE_DOWN_WITH:
        return _scale_down_route(segments, resources)
    if segments[0] == "apis" and len(segments) > 3:
        return _object_route(segments[1], segments[2], segments[3:], resources)
    return PlainRoute("/" + "/".join(segments))


def _scale_down_route(segments: list[str], resources: Resources) -> ObjectRoute:
    """In a cluster, another API server answers these, so they have a group of their own."""
    group, *rest = segments[1:]
    if group.startswith(SUBRESOURCES) and len(rest) == 6 and rest[1] == "namespaces":
        version, _, namespace, plural, name, subresource = rest
        resource = resources.find(group.removeprefix(SUBRESOURCES), version, plural)
        if resource is not None and resource.named_removal:
            return ObjectRoute(
                resource=resource, namespace=namespace, name=name, subresource=subresource
            )
    raise NotFound("the server could not find the requested resource")


def _unquote(part: str) -> str:
    text = unquote(part, errors="replace")
    if "/" in text or "\x00" in text or text in (".", ".."):
        raise BadRequest(f"{part!r} is not a valid path segment")
    return text


def _object_route(group: str, version: str, rest: list[str], resources: Resources) -> Route:
    review = _review_route(group, version, rest)
    if review is not None:
        return review
    # /namespaces/NS/PLURAL… is a namespaced collection; /namespaces/NS[/status] is the Namespace.
    if rest[0] == "namespaces" and len(rest) > 2:
        resource = resources.find(group, version, rest[2])
        if resource is not None and resource.namespaced:
            return _build(resource, rest[1], rest[3:])
    resource = resources.find(group, version, rest[0])
    if resource is None:
        raise NotFound("the server could not find the requested resource")
    if not resource.namespaced:
        return _build(resource, "", rest[1:])
    if len(rest) > 1:
        raise NotFound(
            f"{resource.plural} are namespaced; use /namespaces/NAMESPACE/{resource.plural}"
        )
    return ObjectRoute(resource=resource, namespace=None)


def _review_route(group: str, version: str, rest: list[str]) -> ReviewRoute | None:
    namespaced = len(rest) == 3 and rest[0] == "namespaces"
    plural = rest[-1]
    kind = REVIEWS.get((group, version, plural))
    if kind is None or namespaced != (kind in NAMESPACED_REVIEWS) or len(rest) not in (1, 3):
        return None
    namespace = rest[1] if namespaced else ""
    return ReviewRoute(group=group, kind=kind, plural=plural, namespace=namespace)


def _build(resource: Resource, namespace: str, rest: list[str]) -> ObjectRoute:
    if len(rest) > 2 or (len(rest) == 2 and not _has_subresource(resource, rest[1])):
        raise NotFound("the server could not find the requested resource")
    return ObjectRoute(
        resource=resource,
        namespace=namespace,
        name=rest[0] if rest else "",
        subresource=rest[1] if len(rest) == 2 else "",
    )


def _has_subresource(resource: Resource, name: str) -> bool:
    if name == "status":
        return resource.status
    if name == "token":
        return resource.tokens
    return name == "scale" and resource.scale is not None


_COLLECTION_VERBS = ("list", "watch", "deletecollection")


def attributes_of(target: Route, request: Request, verb: str) -> Attributes:
    """The attributes of ``request``; raises ``BadRequest`` for an unreadable field selector."""
    match target:
        case ObjectRoute(resource=resource, subresource=subresource):
            name = target.name or _selected_name(request, verb)
            removal = subresource == SCALE_DOWN_WITH
            is_namespace = (resource.group, resource.plural) == ("", "namespaces")
            return Attributes(
                verb=verb,
                group=f"{SUBRESOURCES}{resource.group}" if removal else resource.group,
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
