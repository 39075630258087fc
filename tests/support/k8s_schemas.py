"""Kubernetes' own schemas, from a package that carries them for every release."""

from __future__ import annotations

import importlib.resources
import json
from functools import cache
from typing import Any

import jsonschema_rs

OLDEST, NEWEST = "v1.30.0", "v1.37.0"
"""The first release with admission policies, and the newest that is known here."""

RELEASES = (OLDEST, "v1.33.0", NEWEST)

_ELSEWHERE = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/", "tekton.dev/")
"""Groups of other projects, whose schemas are not at hand."""


@cache
def _definitions(release: str) -> dict[str, Any]:
    package = importlib.resources.files("kubernetes_validate")
    path = package / "kubernetes-json-schema" / f"{release}-local-strict" / "_definitions.json"
    found: dict[str, Any] = json.loads(path.read_text())["$defs"]
    return found


@cache
def _names(release: str) -> dict[tuple[str, str], str]:
    """Names of the definitions by the API version and kind they are for."""
    found = {}
    for name, definition in _definitions(release).items():
        for item in definition.get("x-kubernetes-group-version-kind", ()):
            group = f"{item['group']}/" if item["group"] else ""
            found[f"{group}{item['version']}", item["kind"]] = name
    return found


@cache
def _validator(release: str, api_version: str, kind: str) -> jsonschema_rs.Draft202012Validator:
    name = _names(release)[api_version, kind]
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/$defs/{name}", "$defs": _definitions(release)}
    )


def problems(document: dict[str, Any], release: str = NEWEST) -> list[str]:
    """What Kubernetes' schema has against a document. A kind it does not know is a problem."""
    api_version, kind = document["apiVersion"], document["kind"]
    if (api_version, kind) not in _names(release):
        return [f"{release} has no {kind} in {api_version}"]
    validator = _validator(release, api_version, kind)
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in validator.iter_errors(document)
    ]


def is_elsewhere(document: dict[str, Any]) -> bool:
    return str(document["apiVersion"]).startswith(_ELSEWHERE)
