"""Manifests that the embedded home refuses although each satisfies its schema.

Each is a valid object with one section replaced.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from support.extremes import base

Json = Any

SELECTORS: dict[str, Json] = {
    "a key that is none": {"matchLabels": {"-a": "b"}},
    "a prefix that is too long": {"matchLabels": {f"{'x' * 254}/a": "b"}},
    "a value that is too long": {"matchLabels": {"a": "x" * 64}},
    "an unknown operator": {"matchExpressions": [{"key": "a", "operator": "Like"}]},
    "In without values": {"matchExpressions": [{"key": "a", "operator": "In"}]},
    "Exists with a value": {
        "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
    },
    "a value with a blank": {
        "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b c"]}]
    },
    "too many requirements": {"matchLabels": {f"k{n}": "v" for n in range(1_001)}},
}


@dataclass(frozen=True)
class Invalid:
    kind: str
    why: str
    path: tuple[str | int, ...]
    value: Json
    old: tuple[tuple[str | int, ...], Json] | None = None
    """What was at a path before an update; None for a creation."""

    @property
    def resource(self) -> Resource:
        return next(resource for resource in RESOURCES if resource.kind == self.kind)

    @property
    def document(self) -> dict[str, Json]:
        return _with(named(self.resource), self.path, self.value)

    @property
    def before(self) -> dict[str, Json] | None:
        return _with(named(self.resource), *self.old) if self.old else None

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


def named(resource: Resource) -> dict[str, Json]:
    """A valid object of the kind, with a name."""
    document = base(resource)
    return {**document, "metadata": {"name": "odd", **document.get("metadata", {})}}


def _with(document: dict[str, Json], path: tuple[str | int, ...], value: Json) -> dict[str, Json]:
    written = copy.deepcopy(document)
    place: Json = written
    for step in path[:-1]:
        place = place.setdefault(step, {}) if isinstance(step, str) else place[step]
    place[path[-1]] = value
    return written


def _selectors(kind: str, *path: str | int) -> list[Invalid]:
    return [Invalid(kind, f"{why} in {path[-1]}", path, value) for why, value in SELECTORS.items()]


_METADATA = ("spec", "template", "metadata")
_TOO_MUCH = {f"k{number}": "x" * 65_000 for number in range(5)}
_FORM = ("spec", "requests", 0, "exactly")


def _request(**form: Json) -> Json:
    return {"deviceClassName": "odd", **form}


def _alternatives(*after: str) -> Json:
    return [
        {
            "name": "dut",
            "firstAvailable": [
                {"name": f"a{n}", "deviceClassName": "odd", "after": t} for n, t in enumerate(after)
            ],
        }
    ]


INVALID = (
    *_selectors("ExporterAccessPolicy", "spec", "exporterSelector"),
    *_selectors("ExporterAccessPolicy", "spec", "policies", 0, "from", 0, "clientSelector"),
    Invalid(
        "ExporterAccessPolicy",
        "an idle time-out that is too short",
        ("spec", "policies", 0, "idleTimeout"),
        "1s",
    ),
    Invalid("ExporterAccessPolicy", "days", ("spec", "policies", 0, "maximumDuration"), "3 days"),
    *_selectors("Lease", "spec", "selector"),
    Invalid("Lease", "no time", ("spec", "duration"), "0s"),
    Invalid("Lease", "negative", ("spec", "duration"), "-1h"),
    Invalid("Lease", "days", ("spec", "duration"), "3 days"),
    Invalid("Lease", "an idle tag that is none", ("spec", "tags"), {"idle-timeout": "soon"}),
    Invalid("Lease", "an idle tag too short", ("spec", "tags"), {"idle-timeout": "1s"}),
    Invalid("Lease", "a begin long ago", ("spec", "beginTime"), "1960-01-01T00:00:00Z"),
    Invalid("Lease", "an end far away", ("spec", "endTime"), "3000-01-01T00:00:00Z"),
    *_selectors("ExporterSet", "spec", "selector"),
    Invalid("ExporterSet", "other labels", (*_METADATA, "labels"), {"pool": "other"}),
    Invalid("ExporterSet", "no labels", _METADATA, {}),
    Invalid("ExporterSet", "a label value", (*_METADATA, "labels"), {"pool": "odd", "a": "b c"}),
    Invalid("ExporterSet", "a label key", (*_METADATA, "labels"), {"pool": "odd", "a/b/c": "d"}),
    Invalid("ExporterSet", "an annotation's key", (*_METADATA, "annotations"), {"a b": "c"}),
    Invalid("ExporterSet", "large annotations", (*_METADATA, "annotations"), _TOO_MUCH),
    Invalid(
        "ExporterSet",
        "a selector that excludes what the controller sets",
        ("spec", "selector"),
        {
            "matchLabels": {"pool": "odd"},
            "matchExpressions": [
                {"key": "exporterset.jumpstarter.dev/name", "operator": "DoesNotExist"}
            ],
        },
    ),
    Invalid("ExporterSet", "a negative cooldown", ("spec", "scaleDownCooldown"), "-1s"),
    Invalid("VirtualTargetClass", "days", ("spec", "bootTimeout"), "3 days"),
    Invalid("VirtualDisk", "too small", ("spec", "size"), "1Ki"),
    Invalid("VirtualDisk", "too large", ("spec", "size"), "65Ti"),
    Invalid("VirtualDisk", "far too large", ("spec", "size"), "9999999999999999999E"),
    Invalid("VirtualDisk", "smaller", ("spec", "size"), "1Mi", old=(("spec", "size"), "2Mi")),
    Invalid("VirtualTarget", "a dot in its name", ("metadata", "name"), "a.b"),
    Invalid("VirtualTarget", "a name of 64 characters", ("metadata", "name"), "a" * 64),
    Invalid(
        "VirtualTarget",
        "one disk twice",
        ("spec", "disks"),
        [{"virtualDisk": "odd"}, {"virtualDisk": "odd"}],
    ),
    Invalid("VirtualTargetPool", "a name of 53 characters", ("metadata", "name"), "a" * 53),
    Invalid("VirtualTargetPool", "a dot in its name", ("metadata", "name"), "a.b"),
    Invalid("VirtualTargetPool", "a label value", (*_METADATA, "labels"), {"a": "b c"}),
    Invalid(
        "VirtualTargetPool",
        "a label of the controller",
        (*_METADATA, "labels"),
        {"virtualtarget.jumpstarter.dev/pool": "mine"},
    ),
    Invalid(
        "VirtualTargetPool",
        "an annotation of the controller",
        (*_METADATA, "annotations"),
        {"virtualtarget.jumpstarter.dev/x": "mine"},
    ),
    Invalid("VirtualTargetPool", "large annotations", (*_METADATA, "annotations"), _TOO_MUCH),
    Invalid("VirtualTargetPool", "no update", ("spec", "updateStrategy"), {"maxUnavailable": 0}),
    Invalid(
        "VirtualTargetPool",
        "a disk too small",
        ("spec", "virtualDiskTemplates", 0, "spec", "size"),
        "1Ki",
    ),
    Invalid(
        "VirtualTargetPool",
        "a negative ttl",
        ("spec", "virtualDiskTemplates", 0, "reclaim", "ttl"),
        "-1s",
    ),
    *_selectors("DeviceClass", "spec", "classSelector"),
    Invalid(
        "DeviceClass",
        "a selector of labels",
        ("spec", "selectors"),
        [{"labels": {"matchLabels": {"-a": "b"}}}],
    ),
    Invalid(
        "DevicePool",
        "an unknown counter",
        ("spec", "devices"),
        [{"name": "a", "consumesCounters": {"slots": "1"}}],
    ),
    Invalid("DevicePool", "a negative counter", ("spec", "sharedCounters"), {"slots": "-1"}),
    Invalid("DevicePool", "a large counter", ("spec", "sharedCounters"), {"slots": "2Ei"}),
    Invalid(
        "DevicePool",
        "a negative capacity",
        ("spec", "devices"),
        [{"name": "a", "capacity": {"memory": "-1Gi"}}],
    ),
    Invalid("DeviceClaim", "All with a count", _FORM, _request(allocationMode="All", count=2)),
    Invalid(
        "DeviceClaim", "All with totals", _FORM, _request(allocationMode="All", totals={"m": "1"})
    ),
    Invalid("DeviceClaim", "maxCount without totals", _FORM, _request(maxCount=2)),
    Invalid(
        "DeviceClaim",
        "maxCount below count",
        _FORM,
        _request(count=3, maxCount=2, totals={"m": "1"}),
    ),
    Invalid("DeviceClaim", "a negative capacity", _FORM, _request(capacity={"m": "-1"})),
    Invalid(
        "DeviceClaim",
        "a selector of labels",
        _FORM,
        _request(selectors=[{"labels": {"matchLabels": {"-a": "b"}}}]),
    ),
    Invalid(
        "DeviceClaim",
        "too many devices",
        ("spec", "requests"),
        [{"name": f"r{n}", "exactly": _request(count=20)} for n in range(5)],
    ),
    Invalid(
        "DeviceClaim",
        "an unknown request in a constraint",
        ("spec", "constraints"),
        [{"matchAttribute": "site", "requests": ["other"]}],
    ),
    Invalid("DeviceClaim", "no time", ("spec", "duration"), "0s"),
    Invalid("DeviceClaim", "a begin long ago", ("spec", "beginTime"), "1960-01-01T00:00:00Z"),
    Invalid(
        "DeviceClaim",
        "a later alternative that is due earlier",
        ("spec", "requests"),
        _alternatives("0s", "2m", "1m"),
    ),
    Invalid("DeviceClaim", "a negative wait", ("spec", "requests"), _alternatives("-1m", "0s")),
)

COMPILED = (
    Invalid(
        "DeviceClass",
        "an expression that does not compile",
        ("spec", "selectors"),
        [{"cel": {"expression": "device.attributes["}}],
    ),
    Invalid(
        "DeviceClaim",
        "an expression that does not compile",
        _FORM,
        _request(selectors=[{"cel": {"expression": "1 +"}}]),
    ),
)
"""What only the embedded home refuses; in a cluster a condition of the object says it."""

IN_MAPS = (
    Invalid(
        "DevicePool",
        "two values of an attribute",
        ("spec", "attributes"),
        {"site": {"string": "a", "int": 1}},
    ),
)
"""Rules of the schema inside maps, which only a cluster evaluates; here they are checks."""
