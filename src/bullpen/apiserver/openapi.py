"""OpenAPI documents of the served resources, v3 and v2.

OpenAPI v3, derived from the resource table. kubectl reads it for validation, ``explain``
and ``diff``. For each kind it looks for a ``patch`` operation with the kind and a
``fieldValidation`` query parameter; without it, kubectl asks for the protobuf form of
OpenAPI v2, which the second half of this module provides for older clients.

OpenAPI v2 in the protobuf form that kubectl before 1.27 requires. Debian's kubectl is 1.20:
it validates, explains and checks for dry run with this document and accepts no other form
of it. Only the parts it reads are written: the definitions of the kinds, and their patch
operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from bullpen.api.paths import Document, encode
from bullpen.api.resource import Resource
from bullpen.api.resources import Resources

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


ASKED_AS = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
ANSWERED_AS = "application/octet-stream"
"""Old clients cannot parse the type they ask for; real servers answer with this one."""

_GVK = "x-kubernetes-group-version-kind"
_KEPT_EXTENSIONS = (
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)


def document(resources: Resources, *, version: str) -> bytes:
    """The whole document: every served kind."""
    return b"".join(
        (
            _text(1, "2.0"),
            _message(2, _text(1, "Bullpen") + _text(2, version)),
            _message(8, b"".join(_message(2, _v2_path(resource)) for resource in resources)),
            _message(9, b"".join(_message(1, _definition(resource)) for resource in resources)),
        )
    )


def _v2_path(resource: Resource) -> bytes:
    """A NamedPathItem with the patch operation, which announces support for dry run."""
    parameters = b"".join(
        _message(8, _message(1, _message(2, _message(3, _query(name)))))
        for name in ("dryRun", "fieldManager", "force")
    )
    operation = parameters + _extension(13, _GVK, _gvk(resource))
    root = f"/apis/{resource.group}" if resource.group else "/api"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    name = f"{root}/{resource.version}{scope}/{resource.plural}/{{name}}"
    return _text(1, name) + _message(2, _message(8, operation))


def _query(name: str) -> bytes:
    return _text(2, "query") + _text(4, name) + _text(6, "string")


def _definition(resource: Resource) -> bytes:
    schema = _schema(resource.schema) + _extension(31, _GVK, [_gvk(resource)])
    return _text(1, schema_name(resource)) + _message(2, schema)


def _gvk(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(schema: Mapping[str, Any]) -> bytes:
    """A Schema message. A value that may be anything has no type, so that all are accepted."""
    parts = [_text(4, str(schema.get("description", "")))]
    if schema.get("x-kubernetes-int-or-string") or _is_anything(schema):
        return b"".join(parts)
    parts.append(_message(22, _text(1, str(schema.get("type", "")))))
    if "format" in schema:
        parts.append(_text(2, str(schema["format"])))
    parts += [_text(19, name) for name in schema.get("required", ())]
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        parts.append(_message(21, _message(1, _schema(extra))))
    if "items" in schema:
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if "properties" in schema:
        named = (_named(name, item) for name, item in schema["properties"].items())
        parts.append(_message(25, b"".join(_message(1, item) for item in named)))
    parts += _extensions(schema)
    return b"".join(parts)


def _is_anything(schema: Mapping[str, Any]) -> bool:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    known = ("properties", "additionalProperties")
    return schema.get("type") in (None, "object") and not any(name in schema for name in known)


def _named(name: str, schema: Mapping[str, Any]) -> bytes:
    return _text(1, name) + _message(2, _schema(schema))


def _extensions(schema: Mapping[str, Any]) -> Iterable[bytes]:
    return [_extension(31, name, schema[name]) for name in _KEPT_EXTENSIONS if name in schema]


def _extension(number: int, name: str, value: object) -> bytes:
    """A NamedAny. The reader expects YAML, of which JSON is a subset."""
    return _message(number, _text(1, name) + _message(2, _text(2, encode(value).decode())))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
