"""The values of an installation, read in two ways: as given, or as template expressions.

Every object of an installation is built by a function over ``Values``. With ``Chosen`` the
result is a manifest; with ``Written`` it is the same manifest with Helm expressions in
place of the values. So manifests and chart cannot diverge.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jsonschema_rs

from bullpen import __version__
from bullpen.api.paths import Document
from bullpen.core.targets.exporter_config import merged
from bullpen.errors import BadRequest
from bullpen.provisioners import plugins

DEVELOPMENT = "0.1.0"
"""Version of charts and images that are built from a tree between two releases."""

VERSION = DEVELOPMENT if ".dev" in __version__ else __version__

ENABLED = frozenset({"qemu.jumpstarter.dev"})
"""Provisioners that run unless the values say otherwise."""

WITHOUT_PODS = frozenset({"qemu-baremetal.jumpstarter.dev"})
"""Provisioners that run nothing in the cluster, and need no right to Pods."""


def provisioners() -> list[Document]:
    """One item for each provisioner of this package, from the same entry points as at run time."""
    return [
        {
            "name": name.partition(".")[0],
            "provisioner": name,
            "replicas": 1 if name in ENABLED else 0,
            "pods": name not in WITHOUT_PODS,
            "image": "",
        }
        for name in plugins.names(distribution="bullpen")
    ]


DEFAULTS: Document = {
    "image": {"repository": "localhost/bullpen", "tag": VERSION, "pullPolicy": "IfNotPresent"},
    "runtimeImages": {"qemu": f"localhost/bullpen-qemu:{VERSION}"},
    "imagePullSecrets": [],
    "allNamespaces": False,
    "config": {},
    "tracing": {"endpoint": "", "ratio": 1},
    "controller": {
        "replicas": 2,
        "endpoint": "",
        "service": {"type": "ClusterIP", "annotations": {}},
        "resources": {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {},
        "tolerations": [],
        "affinity": {},
    },
    "router": {
        "replicas": 2,
        "endpoint": "",
        "drainSeconds": 30,
        "replicaServices": {"enabled": False, "type": "LoadBalancer", "annotations": {}},
        "resources": {"requests": {"cpu": "100m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "nodeSelector": {},
        "tolerations": [],
        "affinity": {},
    },
    "dashboard": {
        "enabled": True,
        "image": "",
        "tlsSecret": "",
        "oidcSecret": "",
        "service": {"type": "ClusterIP", "annotations": {}},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "nodeSelector": {},
        "tolerations": [],
        "affinity": {},
    },
    "provisioners": provisioners(),
    "provisioner": {
        "resources": {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {},
        "tolerations": [],
        "affinity": {},
    },
    "apiService": {"enabled": True},
    "externalScaler": {"clientCASecret": ""},
    "certManager": {"enabled": False, "issuerRef": {}, "dnsNames": []},
    "networkPolicies": {"enabled": True, "targetEgress": [{}]},
    "podDisruptionBudgets": {"enabled": True},
    "serviceMonitor": {"enabled": False, "labels": {}, "interval": "30s"},
}

OPEN = frozenset({"resources", "runtimeImages"})
"""Values that accept any key, although some keys exist by default."""

_TYPES = {bool: "boolean", int: "integer", str: "string"}
_MARKED = re.compile(r"@@\{(.*?)\}@@")
_WHOLE = re.compile(r"'@@\{((?:[^'@]|'')*?)\}@@'")
HTTP, GRPC, ROUTER, SCALER, LOGIN, API = 8080, 8082, 8083, 8085, 8086, 8443
DASHBOARD = 8443


def schema() -> Document:
    """The schema of the values: known names, with the type of the default."""
    found = _schema(DEFAULTS)
    # Helm itself passes this value to charts.
    found["properties"]["global"] = {"type": "object"}
    return found


def _schema(value: object, *, is_open: bool = False) -> Document:
    if isinstance(value, list):
        return {"type": "array", **({"items": _item(value[0])} if value else {})}
    if not isinstance(value, dict):
        return {"type": _TYPES[type(value)]}
    if is_open or not value:
        return {"type": "object"}
    properties = {name: _schema(item, is_open=name in OPEN) for name, item in value.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


OPTIONAL: Document = {"pods": True, "image": ""}
"""What an item of a list may lack, and the value that it then has."""


def _item(example: Document) -> Document:
    return {**_schema(example), "required": sorted(example.keys() - OPTIONAL.keys())}


class Values(Protocol):
    """The values from which a document is built."""

    @property
    @abstractmethod
    def namespace(self) -> Any:
        """The namespace of the installation."""

    @abstractmethod
    def get(self, path: str) -> Any:
        """A value by its dotted path; relative to a list item if it begins with a dot."""

    @abstractmethod
    def as_json(self, path: str) -> Any:
        """A value as JSON text."""

    @abstractmethod
    def either(self, path: str, yes: str, no: str) -> Any:
        """One of two texts, by whether a value is true or not empty."""

    @abstractmethod
    def after(self, path: str, first: tuple[str, ...]) -> Any:
        """The given items, followed by those of a list value."""

    @abstractmethod
    def plus(self, path: str, more: int) -> Any:
        """A number value plus a constant."""


class Chosen:
    """Values as given by the user."""

    def __init__(self, given: Mapping[str, object], *, namespace: str, item: Any = None) -> None:
        errors = jsonschema_rs.Draft202012Validator(schema()).iter_errors(dict(given))
        problems = [
            f"{'.'.join(map(str, e.instance_path)) or 'values'}: {e.message}" for e in errors
        ]
        if problems:
            raise BadRequest("; ".join(problems))
        self._values = merged(DEFAULTS, given)
        self._item = item
        self.namespace = namespace

    def get(self, path: str) -> Any:
        found: Any = self._values
        if path.startswith("."):
            found, path = {**OPTIONAL, **self._item} if path != "." else self._item, path[1:]
        for name in filter(None, path.split(".")):
            found = found[name]
        return found

    def as_json(self, path: str) -> Any:
        return json.dumps(self.get(path), sort_keys=True, separators=(",", ":"))

    def either(self, path: str, yes: str, no: str) -> Any:
        return yes if self.get(path) else no

    def after(self, path: str, first: tuple[str, ...]) -> Any:
        return [*first, *self.get(path)]

    def plus(self, path: str, more: int) -> Any:
        return self.get(path) + more

    def holds(self, condition: str) -> bool:
        """Whether a part with this condition is enabled."""
        return bool(self.get(condition.removeprefix("!"))) != condition.startswith("!")

    def below(self, path: str) -> Iterator[Chosen]:
        """The same values, once for each item of a list, or each number below a count."""
        found = self.get(path)
        for item in range(found) if isinstance(found, int) else found:
            yield Chosen(self._values, namespace=self.namespace, item=item)


class Written:
    """Values that Helm substitutes: each is an expression, marked so that it is found again."""

    namespace = "@@{$.Release.Namespace}@@"

    def get(self, path: str) -> Any:
        return f"@@{{{expression(path)}}}@@"

    def as_json(self, path: str) -> Any:
        return f"@@{{{expression(path)} | toJson}}@@"

    def either(self, path: str, yes: str, no: str) -> Any:
        return f"@@{{ternary {_quoted(yes)} {_quoted(no)} (not (not {expression(path)}))}}@@"

    def after(self, path: str, first: tuple[str, ...]) -> Any:
        return f"@@{{concat (list {' '.join(map(_quoted, first))}) {expression(path)}}}@@"

    def plus(self, path: str, more: int) -> Any:
        return f"@@{{add {expression(path)} {more}}}@@"


def expression(path: str) -> str:
    """The Helm expression of a path: from the root, or from the current item."""
    if not path.startswith("."):
        return f"$.Values.{path}"
    name = path[1:]
    if name not in OPTIONAL:
        return path
    # Not by Helm's default, for which false is as good as missing.
    otherwise = json.dumps(OPTIONAL[name])
    return f"(ternary .{name} {otherwise} (hasKey . {json.dumps(name)}))"


def _quoted(text: str) -> str:
    """A literal; Helm substitutes the marked parts."""
    parts = _MARKED.split(text)
    if len(parts) == 1:
        return json.dumps(text)
    literal = json.dumps("%v".join(parts[::2]))
    return f"(printf {literal} {' '.join(f'({part})' for part in parts[1::2])})"


def as_template(text: str) -> str:
    """YAML with marks as a Helm template: whole scalars keep their type, parts are text."""
    whole = _WHOLE.sub(lambda m: "{{ toJson (" + m[1].replace("''", "'") + ") }}", text)
    return _MARKED.sub(r"{{ \1 }}", whole)


def name_of(process: str) -> str:
    return f"bullpen-{process}"


def selector(process: str) -> Document:
    return {"app.kubernetes.io/name": "bullpen", "app.kubernetes.io/component": process}


def label(values: Values, name: str, process: str, *, namespaced: bool = True) -> Document:
    """Metadata of an object of one process."""
    metadata: Document = {"name": name, "labels": selector(process)}
    return {**metadata, "namespace": values.namespace} if namespaced else metadata
