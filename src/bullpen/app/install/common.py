"""What all objects of an installation share: names, labels and ports."""

from __future__ import annotations

from bullpen.api.document import Document
from bullpen.app.install.values import Values

HTTP, GRPC, ROUTER, LOGIN = 8080, 8082, 8083, 8086


def name_of(process: str) -> str:
    return f"bullpen-{process}"


def selector(process: str) -> Document:
    return {"app.kubernetes.io/name": "bullpen", "app.kubernetes.io/component": process}


def label(values: Values, name: str, process: str, *, namespaced: bool = True) -> Document:
    """Metadata of an object of one process."""
    metadata: Document = {"name": name, "labels": selector(process)}
    return {**metadata, "namespace": values.namespace} if namespaced else metadata
