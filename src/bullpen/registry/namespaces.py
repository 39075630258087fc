"""The special rules of Namespaces: phase, finalizer, and creation inside them.

Pure. ``Registry`` asks before it creates or deletes; ``garbage`` empties a terminating
namespace and then removes its finalizer.
"""

from __future__ import annotations

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.errors import Cause, Forbidden
from bullpen.registry.messages import forbidden

FINALIZER = "kubernetes"
ACTIVE = "Active"
TERMINATING = "Terminating"
NAME_LABEL = "kubernetes.io/metadata.name"
IMMORTAL = ("default", "kube-system", "kube-public")


def is_namespace(resource: Resource) -> bool:
    return resource.group == "" and resource.kind == "Namespace"


def opened(document: Document) -> Document:
    """A new namespace: active, with the finalizer that holds it until it is empty."""
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
    """``document`` as an update of ``old``: updates cannot change the namespace finalizers."""
    return {**document, "spec": {**(document.get("spec") or {}), "finalizers": holders(old)}}


def terminating(document: Document) -> Document:
    """``document`` after its deletion has started."""
    return {**document, "status": {**(document.get("status") or {}), "phase": TERMINATING}}


def released(document: Document) -> Document:
    """``document`` after it has been emptied."""
    rest = [name for name in holders(document) if name != FINALIZER]
    return {**document, "spec": {**(document.get("spec") or {}), "finalizers": rest}}


def holders(document: Document) -> list[str]:
    """The finalizers in the spec of a namespace, in addition to those in its metadata."""
    return (document.get("spec") or {}).get("finalizers") or []


def is_terminating(document: Document) -> bool:
    deleting = bool(document["metadata"].get("deletionTimestamp"))
    return deleting or (document.get("status") or {}).get("phase") == TERMINATING


def no_entry(resource: Resource, name: str, namespace: str) -> Forbidden:
    return forbidden(
        resource,
        name,
        f"unable to create new content in namespace {namespace} because it is being terminated",
        Cause(
            field="metadata.namespace",
            message=f"namespace {namespace} is being terminated",
            reason="NamespaceTerminating",
        ),
    )
