"""Discovery of the served resources, in both of Kubernetes' formats.

Old clients ask group by group; kubectl since 1.27 asks for everything at once and
recognises the answer by its content type.
"""

from __future__ import annotations

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import Resources
from bullpen.apiserver.http import JSON
from bullpen.apiserver.routes import (
    NAMESPACED_REVIEWS,
    REVIEWS,
    SCALE_DOWN_WITH,
    SUBRESOURCES,
)

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"

REMOVAL_KIND = "ScaleDownWith"
"""The kind of the answers to removals by name."""

READ_VERBS = ["get", "list", "watch"]
WRITE_VERBS = ["create", "update", "patch", "delete", "deletecollection"]


def verbs(resource: Resource) -> list[str]:
    return sorted(READ_VERBS if resource.read_only else [*READ_VERBS, *WRITE_VERBS])


def aggregated_type(accept: str) -> str | None:
    """The content type of an aggregated answer, if the client accepts one."""
    for wanted in accept.split(","):
        parameters = dict(
            part.strip().partition("=")[::2] for part in wanted.split(";")[1:] if "=" in part
        )
        version = parameters.get("v", "")
        if (
            parameters.get("g") == "apidiscovery.k8s.io"
            and parameters.get("as") == "APIGroupDiscoveryList"
            and version in ("v2", "v2beta1")
        ):
            return AGGREGATED.format(version=version)
    return None


def aggregated(resources: Resources, *, core: bool, version: str) -> Document:
    """``/api`` (core) or ``/apis`` (the rest) as one APIGroupDiscoveryList."""
    groups: dict[str, dict[str, list[Document]]] = {}
    for resource in resources:
        if (resource.group == "") == core:
            versions = groups.setdefault(resource.group, {})
            versions.setdefault(resource.version, []).append(_aggregated_resource(resource))
    for (group, group_version, plural), kind in REVIEWS.items():
        if not core:
            versions = groups.setdefault(group, {})
            entry = _aggregated_review(group, group_version, plural, kind)
            versions.setdefault(group_version, []).append(entry)
    for resource in _with_named_removal(resources):
        # Last, so that a plural without a group means the resource itself.
        if not core:
            versions = groups.setdefault(f"{SUBRESOURCES}{resource.group}", {})
            versions.setdefault(resource.version, []).append(_aggregated_removal(resource))
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None},
                "versions": [
                    {"version": name, "resources": entries, "freshness": "Current"}
                    for name, entries in versions.items()
                ],
            }
            for group, versions in groups.items()
        ],
    }


def _aggregated_resource(resource: Resource) -> Document:
    entry: Document = {
        "resource": resource.plural,
        "responseKind": _kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = [
        {
            "subresource": name,
            "responseKind": _kind(group, version, kind),
            "verbs": _subresource_verbs(name),
        }
        for name, group, version, kind in _subresources(resource)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


def _aggregated_review(group: str, version: str, plural: str, kind: str) -> Document:
    return {
        "resource": plural,
        "responseKind": _kind(group, version, kind),
        "scope": "Namespaced" if kind in NAMESPACED_REVIEWS else "Cluster",
        "singularResource": kind.lower(),
        "verbs": ["create"],
    }


def _with_named_removal(resources: Resources) -> list[Resource]:
    return [resource for resource in resources if resource.named_removal]


def _aggregated_removal(resource: Resource) -> Document:
    """A subresource has an entry of its resource around it, here one without verbs."""
    kind = _kind(f"{SUBRESOURCES}{resource.group}", resource.version, REMOVAL_KIND)
    return {
        "resource": resource.plural,
        "responseKind": _kind("", "", ""),
        "scope": "Namespaced",
        "singularResource": "",
        "verbs": [],
        "subresources": [
            {"subresource": SCALE_DOWN_WITH, "responseKind": kind, "verbs": ["create"]}
        ],
    }


def _kind(group: str, version: str, kind: str) -> Document:
    return {"group": group, "version": version, "kind": kind}


def _subresources(resource: Resource) -> list[tuple[str, str, str, str]]:
    found = []
    if resource.status:
        found.append(("status", resource.group, resource.version, resource.kind))
    if resource.scale:
        found.append(("scale", "autoscaling", "v1", "Scale"))
    if resource.tokens:
        found.append(("token", "authentication.k8s.io", "v1", "TokenRequest"))
    return found


def _subresource_verbs(name: str) -> list[str]:
    return ["create"] if name == "token" else ["get", "patch", "update"]


def api_versions() -> Document:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_groups(resources: Resources) -> Document:
    groups = {r.group: r.version for r in resources if r.group}
    groups.update({group: version for group, version, _ in REVIEWS})
    removals = _with_named_removal(resources)
    groups.update({f"{SUBRESOURCES}{found.group}": found.version for found in removals})
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, version) for name, version in groups.items()],
    }


def api_group(resources: Resources, name: str) -> Document | None:
    """``/apis/GROUP``, or None if that group is not served."""
    found = [g for g in api_groups(resources)["groups"] if g["name"] == name]
    return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None


def _group(name: str, version: str) -> Document:
    entry = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def api_resources(resources: Resources, group: str, version: str) -> Document | None:
    """``/api/v1`` or ``/apis/GROUP/VERSION``, or None if it is not served."""
    found = [
        entry
        for resource in resources
        if (resource.group, resource.version) == (group, version)
        for entry in _legacy_entries(resource)
    ]
    found += [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": kind in NAMESPACED_REVIEWS,
            "kind": kind,
            "verbs": ["create"],
        }
        for (review_group, review_version, plural), kind in REVIEWS.items()
        if (review_group, review_version) == (group, version)
    ]
    found += [
        {
            "name": f"{resource.plural}/{SCALE_DOWN_WITH}",
            "singularName": "",
            "namespaced": True,
            "kind": REMOVAL_KIND,
            "verbs": ["create"],
        }
        for resource in _with_named_removal(resources)
        if (f"{SUBRESOURCES}{resource.group}", resource.version) == (group, version)
    ]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }


def _legacy_entries(resource: Resource) -> list[Document]:
    main: Document = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs(resource),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    rest: list[Document] = []
    for name, group, version, kind in _subresources(resource):
        entry: Document = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": _subresource_verbs(name),
        }
        if kind != resource.kind:
            entry.update(group=group, version=version)
        rest.append(entry)
    return [main, *rest]


def content_type(accept: str) -> str:
    return aggregated_type(accept) or JSON
