"""DeviceClass, DevicePool and DeviceClaim: what is accepted, and what is refused by its path."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.deviceclaim import AllocationMode, DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES

GROUP_VERSION = "device.jumpstarter.dev/v1alpha1"

CLASS: Document = {
    "apiVersion": GROUP_VERSION,
    "kind": "DeviceClass",
    "metadata": {"name": "rpi4", "labels": {"kind": "board"}},
    "spec": {
        "selectors": [
            {"labels": {"matchLabels": {"board": "rpi4"}}},
            {"cel": {"expression": "device.slots > 3"}},
        ]
    },
}
POOL: Document = {
    "apiVersion": GROUP_VERSION,
    "kind": "DevicePool",
    "metadata": {"name": "host-1", "namespace": "default"},
    "spec": {
        "driver": "qemu",
        "attributes": {"site": {"string": "brno"}, "lanes": {"strings": ["a", "b"]}},
        "sharedCounters": {"slots": 4, "memory": "8Gi"},
        "devices": [
            {
                "name": "vm-0",
                "attributes": {"firmware": {"version": "1.2.3"}, "spare": {"bool": False}},
                "capacity": {"memory": "2Gi"},
                "consumesCounters": {"slots": 1, "memory": "2Gi"},
                "taints": [{"key": "flaky"}],
            }
        ],
    },
}
CLAIM: Document = {
    "apiVersion": GROUP_VERSION,
    "kind": "DeviceClaim",
    "metadata": {"name": "bench", "namespace": "default"},
    "spec": {
        "clientRef": {"name": "alice"},
        "duration": "2h",
        "requests": [
            {
                "name": "dut",
                "firstAvailable": [
                    {"name": "hw", "deviceClassName": "rpi4"},
                    {"name": "qemu", "deviceClassName": "rpi4", "after": "10m"},
                ],
            },
            {"name": "peer", "exactly": {"deviceClassName": "can-node", "count": 2}},
        ],
        "constraints": [
            {"matchAttribute": "site", "requests": ["dut", "peer"]},
            {"distinctAttribute": "host", "requests": ["dut/hw"], "prefer": True},
        ],
    },
}
BY_KIND = {"DeviceClass": CLASS, "DevicePool": POOL, "DeviceClaim": CLAIM}


def causes(document: Document, old: Document | None = None) -> list[tuple[str, str]]:
    resource = RESOURCES.of_kind(GROUP_VERSION, document["kind"])
    assert resource is not None
    found = resource.validate(resource.default(document), old)
    return [(cause.field, cause.message) for cause in found]


@pytest.mark.parametrize("kind", list(BY_KIND))
def test_a_complete_example_is_accepted(kind: str) -> None:
    assert causes(BY_KIND[kind]) == []


def test_the_values_have_what_the_documents_say() -> None:
    found = codec.decode(DeviceClass, CLASS)
    assert found.spec.selectors[1].cel is not None
    pool = codec.decode(DevicePool, POOL)
    assert pool.spec.devices[0].attributes["spare"].bool_ is False
    claim = codec.decode(DeviceClaim, CLAIM)
    exact = claim.spec.requests[1].exactly
    assert exact is not None
    assert exact.count == 2
    assert exact.allocation_mode is AllocationMode.EXACT_COUNT


def changed(kind: str, path: str, value: Any) -> Document:
    """The example with one field replaced; None removes it."""
    document = deepcopy(BY_KIND[kind])
    *steps, last = path.split(".")
    place: Any = document
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is None:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return document


@pytest.mark.parametrize(
    ("kind", "path", "value", "field", "said"),
    [
        (
            "DeviceClass",
            "spec.selectors.1.cel.expression",
            "device.slots >",
            "spec.selectors[1].cel.expression",
            "does not compile",
        ),
        (
            "DeviceClass",
            "spec.selectors.0.cel",
            {"expression": "true"},
            "spec.selectors[0]",
            "either cel or labels",
        ),
        ("DeviceClass", "spec.selectors", None, "spec", "needs selectors, or a classSelector"),
        (
            "DevicePool",
            "spec.devices.0.consumesCounters",
            {"slots-00": 1},
            "spec.devices[0].consumesCounters[slots-00]",
            "spec.sharedCounters has memory, slots",
        ),
        (
            "DevicePool",
            "spec.sharedCounters.slots",
            "-1",
            "spec.sharedCounters[slots]",
            "must not be negative",
        ),
        (
            "DevicePool",
            "spec.attributes.site.int",
            3,
            "spec.attributes",
            "exactly one of string",
        ),
        (
            "DeviceClaim",
            "spec.requests.1.exactly.selectors",
            [{"cel": {"expression": "("}}],
            "spec.requests[1].exactly.selectors[0].cel.expression",
            "open bracket",
        ),
        (
            "DeviceClaim",
            "spec.requests.1.exactly",
            None,
            "spec.requests[1]",
            "either exactly or firstAvailable",
        ),
        (
            "DeviceClaim",
            "spec.requests.1.exactly.maxCount",
            4,
            "spec.requests[1].exactly.maxCount",
            "only with totals",
        ),
        (
            "DeviceClaim",
            "spec.requests.1.exactly.allocationMode",
            "All",
            "spec.requests[1].exactly.count",
            "All takes no count",
        ),
        (
            "DeviceClaim",
            "spec.requests.0.firstAvailable.0.after",
            "20m",
            "spec.requests[0].firstAvailable[1].after",
            "must not be shorter",
        ),
        (
            "DeviceClaim",
            "spec.constraints.0.requests",
            ["nobody"],
            "spec.constraints[0].requests[0]",
            "no request and no alternative has this name",
        ),
        (
            "DeviceClaim",
            "spec.constraints.0.distinctAttribute",
            "host",
            "spec.constraints[0]",
            "either matchAttribute or distinctAttribute",
        ),
        ("DeviceClaim", "spec.duration", "0s", "spec.duration", "must be positive"),
        ("DeviceClaim", "spec.requests.1.name", "dut", "spec.requests[1]", "Duplicate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_refused_by_its_path(
    kind: str, path: str, value: Any, field: str, said: str
) -> None:
    found = causes(changed(kind, path, value))
    assert [(f, m) for f, m in found if f.startswith(field) and said in m], found


def test_a_claim_for_more_than_64_devices_is_refused() -> None:
    request = {"name": "x", "exactly": {"deviceClassName": "c", "count": 40}}
    document = changed("DeviceClaim", "spec.requests", [request, {**request, "name": "y"}])
    document["spec"]["constraints"] = []
    assert causes(document)[0][0] == "spec.requests"


def test_requests_of_a_claim_cannot_be_changed_later() -> None:
    resource = RESOURCES.of(DeviceClaim)
    old = resource.default(CLAIM)
    new = deepcopy(old)
    new["spec"]["requests"][1]["exactly"]["count"] = 3
    assert [field for field, _ in causes(new, old)] == ["spec.requests"]
    longer = deepcopy(old)
    longer["spec"]["duration"] = "4h"
    assert causes(longer, old) == []
