"""The scale subresource: three fields of an object as an autoscaling/v1 Scale.

Pure translation in both directions, by the paths in the resource's ``Scale``.
"""

from __future__ import annotations

from typing import Any

from bullpen.api.paths import Document
from bullpen.api.resource import Resource, Scale
from bullpen.errors import BadRequest, Cause
from bullpen.registry.messages import invalid_kind

KIND = "Scale"
VERSION = "v1"
API_VERSION = f"autoscaling/{VERSION}"
REPLICAS_MAX = 2**31 - 1

_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def paths(resource: Resource) -> Scale:
    """The scale fields of a resource, which must have the subresource."""
    assert resource.scale is not None
    return resource.scale


def to_scale(resource: Resource, document: Document) -> Document:
    """The Scale of an object."""
    scale = paths(resource)
    metadata = document["metadata"]
    status: Document = {"replicas": _at(document, scale.status) or 0}
    if selector := _at(document, scale.selector):
        status["selector"] = selector
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {key: metadata[key] for key in _IDENTITY if key in metadata},
        "spec": {"replicas": _at(document, scale.spec) or 0},
        "status": status,
    }


def replicas(resource: Resource, name: str, scale: Document) -> int:
    """The requested replicas of a Scale; raises ``BadRequest`` or ``Invalid``."""
    kind, version = scale.get("kind") or KIND, scale.get("apiVersion") or API_VERSION
    if (kind, version) != (KIND, API_VERSION):
        raise BadRequest(f"the scale subresource takes {API_VERSION} {KIND}, not {version} {kind}")
    # Kubernetes takes a missing number for 0. Here 0 can mean "no limit", so it is required.
    spec = scale.get("spec")
    wanted = spec.get("replicas") if isinstance(spec, dict) else None
    if type(wanted) is not int or wanted > REPLICAS_MAX:
        raise BadRequest("spec.replicas of a Scale must be a whole number")
    why = "must be greater than or equal to 0" if wanted < 0 else ""
    if wanted == 0:
        why = paths(resource).zero
    if why:
        message = f"Invalid value: {wanted}: {why}"
        raise invalid_kind(f"{KIND}.autoscaling", name, (Cause("spec.replicas", message),))
    return wanted


def with_replicas(resource: Resource, document: Document, wanted: int) -> Document:
    """``document`` scaled to ``wanted``."""
    return _set(document, paths(resource).spec, wanted)


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _set(document: Document, path: tuple[str, ...], value: object) -> Document:
    key, *rest = path
    if not rest:
        return {**document, key: value}
    inner = document.get(key)
    return {**document, key: _set(inner if isinstance(inner, dict) else {}, tuple(rest), value)}
