"""What is special about a Namespace: its phase, its finalizer, who may enter.

Pure. ``Registry`` asks before it creates or deletes; ``garbage`` empties a
terminating namespace and then lets it go.
"""

from __future__ import annotations

from bullpen.api.document import Document
from bullpen.api.resources import Resource
from bullpen.errors import Forbidden
from bullpen.registry.refusals import forbidden

FINALIZER = "kubernetes"
ACTIVE = "Active"
TERMINATING = "Terminating"
NAME_LABEL = "kubernetes.io/metadata.name"
IMMORTAL = ("default", "kube-system", "kube-public")


def is_namespace(resource: Resource) -> bool:
    return resource.group == "" and resource.kind == "Namespace"


def opened(document: Document) -> Document:
    """A new namespace: active, held by the finalizer until it has been emptied."""
    metadata = document["metadata"]
    labels = {**metadata.get("labels", {}), NAME_LABEL: metadata["name"]}
    spec = document.get("spec") or {}
    held = list(dict.fromkeys([*(spec.get("finalizers") or []), FINALIZER]))
    return {
        **document,
        "metadata": {**metadata, "labels": labels},
        "spec": {**spec, "finalizers": held},
        "status": {"phase": ACTIVE},
    }


def kept(document: Document, old: Document) -> Document:
    """``document`` as an update of ``old``: only emptying a namespace changes who holds it."""
    return {**document, "spec": {**(document.get("spec") or {}), "finalizers": holders(old)}}


def terminating(document: Document) -> Document:
    """``document`` once its deletion has begun."""
    return {**document, "status": {**(document.get("status") or {}), "phase": TERMINATING}}


def released(document: Document) -> Document:
    """``document`` once nothing is left inside."""
    rest = [name for name in holders(document) if name != FINALIZER]
    return {**document, "spec": {**(document.get("spec") or {}), "finalizers": rest}}


def holders(document: Document) -> list[str]:
    """What keeps a deleted namespace from going, besides its metadata's finalizers."""
    return (document.get("spec") or {}).get("finalizers") or []


def is_terminating(document: Document) -> bool:
    deleting = bool(document["metadata"].get("deletionTimestamp"))
    return deleting or (document.get("status") or {}).get("phase") == TERMINATING


def no_entry(resource: Resource, name: str, namespace: str) -> Forbidden:
    return forbidden(
        resource,
        name,
        f"unable to create new content in namespace {namespace} because it is being terminated",
    )
