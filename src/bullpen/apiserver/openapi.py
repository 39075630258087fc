"""OpenAPI v3, derived from the resource table.

kubectl reads it for validation, ``explain`` and ``diff``. For each kind it looks for a
``patch`` operation with the kind and a ``fieldValidation`` query parameter; without it,
kubectl asks for the protobuf form of OpenAPI v2, which ``openapi2`` provides for older
clients.
"""

from __future__ import annotations

import hashlib
from typing import Any

from bullpen.api.document import Document, encode
from bullpen.api.resources import Resource, Resources

_QUERY = {
    "get": ("pretty",),
    "list": (
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "watch",
        "allowWatchBookmarks",
        "sendInitialEvents",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
    ),
    "create": ("dryRun", "fieldManager", "fieldValidation"),
    "update": ("dryRun", "fieldManager", "fieldValidation"),
    "patch": ("dryRun", "fieldManager", "fieldValidation", "force"),
    "delete": ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"),
    "deletecollection": ("labelSelector", "fieldSelector", "dryRun", "propagationPolicy"),
}

_BOOLEANS = frozenset({"watch", "allowWatchBookmarks", "sendInitialEvents", "force"})
_INTEGERS = frozenset({"limit", "timeoutSeconds", "gracePeriodSeconds"})

_PATCH_TYPES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)

_SCALE_SCHEMA: Document = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}},
        },
    },
}


class OpenApi:
    """The documents, built once and kept as bytes."""

    def __init__(self, resources: Resources, *, version: str) -> None:
        self._documents: dict[str, bytes] = {}
        for group, group_version in resources.group_versions():
            served = [r for r in resources if (r.group, r.version) == (group, group_version)]
            path = f"apis/{group}/{group_version}" if group else f"api/{group_version}"
            self._documents[path] = encode(_document(served, version))
        self.index: Document = {
            "paths": {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_digest(data)}"}
                for path, data in self._documents.items()
            }
        }

    def document(self, path: str) -> bytes | None:
        """The document of ``apis/GROUP/VERSION`` or ``api/v1``."""
        return self._documents.get(path)


def schema_name(resource: Resource) -> str:
    """The component's name: the group reversed, as Kubernetes names them."""
    if not resource.group:
        return f"io.k8s.api.core.{resource.version}.{resource.kind}"
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32].upper()


def _document(resources: list[Resource], version: str) -> Document:
    paths: Document = {}
    schemas: Document = {}
    for resource in resources:
        name = schema_name(resource)
        gvk = [{"group": resource.group, "version": resource.version, "kind": resource.kind}]
        schemas[name] = {**resource.schema, "x-kubernetes-group-version-kind": gvk}
        schemas[f"{name}List"] = _list_schema(resource, name)
        paths.update(_paths(resource, name))
        if resource.scale:
            schemas["io.k8s.api.autoscaling.v1.Scale"] = _SCALE_SCHEMA
    return {
        "openapi": "3.0.0",
        "info": {"title": "Bullpen", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"BearerToken": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"BearerToken": []}],
    }


def _list_schema(resource: Resource, name: str) -> Document:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
        },
        "x-kubernetes-group-version-kind": [
            {
                "group": resource.group,
                "version": resource.version,
                "kind": f"{resource.kind}List",
            }
        ],
    }


def _paths(resource: Resource, name: str) -> Document:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    root = f"{root}/{resource.version}"
    scoped = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    collection, item = f"{scoped}/{resource.plural}", f"{scoped}/{resource.plural}/{{name}}"
    verbs = ["get", "list"] if resource.read_only else [*_QUERY]
    paths: Document = {
        collection: _path(resource, name, verbs, on=("list", "create", "deletecollection")),
        item: _path(resource, name, verbs, on=("get", "update", "patch", "delete"), named=True),
    }
    if resource.namespaced:
        everywhere = _path(resource, name, verbs, on=("list",))
        everywhere.pop("parameters", None)
        paths[f"{root}/{resource.plural}"] = everywhere
    on = ("get", "update", "patch")
    if resource.status:
        paths[f"{item}/status"] = _path(resource, name, verbs, on=on, named=True)
    if resource.scale:
        scale = "io.k8s.api.autoscaling.v1.Scale"
        paths[f"{item}/scale"] = _path(resource, scale, verbs, on=on, named=True)
    return paths


def _path(
    resource: Resource, schema: str, verbs: list[str], *, on: tuple[str, ...], named: bool = False
) -> Document:
    methods = {
        "get": "get",
        "list": "get",
        "create": "post",
        "update": "put",
        "patch": "patch",
        "delete": "delete",
        "deletecollection": "delete",
    }
    path: Document = {
        methods[verb]: _operation(resource, schema, verb) for verb in on if verb in verbs
    }
    names = (["namespace"] if resource.namespaced else []) + (["name"] if named else [])
    if names:
        path["parameters"] = [
            {"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names
        ]
    return path


def _operation(resource: Resource, schema: str, verb: str) -> Document:
    answer = f"{schema}List" if verb == "list" else schema
    operation: Document = {
        "tags": [f"{resource.group or 'core'}_{resource.version}"],
        "parameters": [_parameter(name) for name in _QUERY[verb]],
        "responses": {
            "200": {"description": "OK", "content": _content("application/json", answer)},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
    }
    if verb == "create":
        created = {"description": "Created", "content": _content("application/json", schema)}
        operation["responses"]["201"] = created
    if verb in ("create", "update"):
        content = _content("application/json", schema)
        operation["requestBody"] = {"required": True, "content": content}
    if verb == "patch":
        types = _PATCH_TYPES if resource.custom else (*_PATCH_TYPES, _STRATEGIC)
        content = {t: {"schema": {}} for t in types}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_STRATEGIC = "application/strategic-merge-patch+json"


def _content(media_type: str, schema: str) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _parameter(name: str) -> Document:
    kind = "boolean" if name in _BOOLEANS else "integer" if name in _INTEGERS else "string"
    return {"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": True}}
