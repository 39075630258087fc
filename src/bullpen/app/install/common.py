"""What all objects of an installation share: names, labels and what a container may not do."""

from __future__ import annotations

from bullpen.api.document import Document
from bullpen.app.install.values import Values

USER = 65532
HTTP, GRPC, ROUTER, LOGIN = 8080, 8082, 8083, 8086


def name_of(process: str) -> str:
    return f"bullpen-{process}"


def selector(process: str) -> Document:
    return {"app.kubernetes.io/name": "bullpen", "app.kubernetes.io/component": process}


def label(values: Values, name: str, process: str, *, namespaced: bool = True) -> Document:
    """Metadata of an object of one process."""
    metadata: Document = {"name": name, "labels": selector(process)}
    return {**metadata, "namespace": values.namespace} if namespaced else metadata


def pod_security() -> Document:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Document:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
