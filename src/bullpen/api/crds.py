"""The CustomResourceDefinitions of our kinds, complete, ready to be applied.

``crds`` is what a cluster installs. ``served_crds`` adds the status that a cluster would
add, for our own server, which always serves these kinds.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from bullpen.api.columns import AGE, Column
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES

_ESTABLISHED_SINCE = "2026-01-01T00:00:00Z"
"""When a built-in kind was accepted: any fixed time will do."""


def crds() -> tuple[Document, ...]:
    """One definition per custom kind, in the order of the table."""
    return tuple(crd(resource) for resource in RESOURCES if resource.custom)


def served_crds() -> tuple[Document, ...]:
    """The same definitions as objects of a server that has accepted them."""
    return tuple({**definition, "status": _status(definition)} for definition in crds())


def crd(resource: Resource) -> Document:
    """The definition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": _names(resource),
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [_version(resource)],
        },
    }


def _names(resource: Resource) -> Document:
    names: Document = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _version(resource: Resource) -> Document:
    version: Document = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _object_schema(resource)},
        "additionalPrinterColumns": [_column(column) for column in (*resource.columns, AGE)],
    }
    subresources: Document = {}
    if resource.status:
        subresources["status"] = {}
    if resource.scale:
        subresources["scale"] = {
            "specReplicasPath": _path(resource.scale.spec),
            "statusReplicasPath": _path(resource.scale.status),
            "labelSelectorPath": _path(resource.scale.selector),
        }
    if subresources:
        version["subresources"] = subresources
    return version


def _object_schema(resource: Resource) -> Document:
    """The schema without that of metadata, which a cluster knows and does not accept."""
    schema: dict[str, Any] = deepcopy(dict(resource.schema))
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _column(column: Column) -> Document:
    written: Document = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.format:
        written["format"] = column.format
    if column.description:
        written["description"] = column.description
    if column.priority:
        written["priority"] = column.priority
    return written


def _path(keys: tuple[str, ...]) -> str:
    return "".join(f".{key}" for key in keys)


def _status(definition: Document) -> Document:
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": _ESTABLISHED_SINCE,
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    return {
        "conditions": conditions,
        "acceptedNames": definition["spec"]["names"],
        "storedVersions": [version["name"] for version in definition["spec"]["versions"]],
    }
