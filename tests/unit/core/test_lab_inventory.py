"""Exporters, leases, pools and claims of a lab, as the allocator sees them."""

from __future__ import annotations

from datetime import timedelta

from bullpen.api import codec
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.core.claims.allocator import Verdict
from bullpen.core.claims.inventory import NANOS, Version
from bullpen.core.claims.lab_inventory import class_definition, inventory_of, terms_of
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocate

GROUP = "device.jumpstarter.dev/v1alpha1"


def exporter(name: str, *, online: bool = True, **labels: str) -> Exporter:
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Registered", "Online")
    ]
    document: Document = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Exporter",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {},
        "status": {"conditions": conditions if online else []},
    }
    return codec.decode(Exporter, document)


def lease(name: str, held: str) -> Lease:
    document: Document = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clientRef": {"name": "alice"}, "selector": {}, "duration": "1h"},
        "status": {"exporterRef": {"name": held}, "beginTime": "2026-01-01T00:00:00Z"},
    }
    return codec.decode(Lease, document)


def device_class(name: str, expression: str) -> DeviceClass:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    document = {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name}}
    return codec.decode(DeviceClass, {**document, "spec": spec})


def claim(*requests: Document, constraints: tuple[Document, ...] = ()) -> DeviceClaim:
    document: Document = {
        "apiVersion": GROUP,
        "kind": "DeviceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "clientRef": {"name": "alice"},
            "duration": "1h",
            "requests": list(requests),
            "constraints": list(constraints),
        },
    }
    resource = RESOURCES.of(DeviceClaim)
    complete = resource.default(document)
    assert not resource.validate(complete)
    return codec.decode(DeviceClaim, complete)


def test_an_exporter_is_a_device_with_its_labels_as_attributes() -> None:
    found = inventory_of(
        [exporter("rpi4-0", board="rpi4"), exporter("rpi4-1", online=False, board="rpi4")],
        [lease("work", "rpi4-0")],
    )
    assert found.devices[0].attributes == {"exporter": "rpi4-0", "board": "rpi4"}
    assert not found.devices[0].blocked
    assert found.devices[1].blocked == "offline"
    assert found.uses[0].holder == "work"
    assert found.uses[0].until == EPOCH + timedelta(hours=1)


def test_a_pool_adds_devices_with_counters_of_its_own() -> None:
    document: Document = {
        "apiVersion": GROUP,
        "kind": "DevicePool",
        "metadata": {"name": "host", "namespace": "default"},
        "spec": {
            "attributes": {"site": {"string": "brno"}, "ports": {"int": 4}},
            "sharedCounters": {"slots": 1},
            "devices": [
                {
                    "name": f"vm-{n}",
                    "attributes": {"site": {"string": "prague"}, "fw": {"version": "1.2.3"}},
                    "consumesCounters": {"slots": "1"},
                    "capacity": {"memory": "1Ki"},
                }
                for n in range(2)
            ],
        },
    }
    found = inventory_of([], [], [codec.decode(DevicePool, document)])
    assert found.counters == {"host/slots": NANOS}
    device = found.devices[0]
    assert device.name == "host/vm-0"
    assert device.attributes == {"site": "prague", "ports": 4, "fw": Version("1.2.3")}
    assert device.capacity == {"memory": 1024 * NANOS}
    two = {"name": "r", "exactly": {"deviceClassName": "any", "count": 2}}
    classes = [class_definition(device_class("any", "site == 'prague'"))]
    answer = allocate(found, terms_of(claim(two).spec), classes)
    assert answer.verdict is Verdict.UNSATISFIABLE


def test_the_story_of_a_board_and_its_peers_on_one_site() -> None:
    inventory = inventory_of(
        [
            exporter("hw", board="rpi4", fidelity="full", site="brno"),
            exporter("vm", board="rpi4", fidelity="low", site="prague"),
            *(exporter(f"can-{n}", role="can", site="prague", host=f"h{n}") for n in range(2)),
        ],
        [],
    )
    classes = [
        class_definition(device_class("rpi4", "board == 'rpi4'")),
        class_definition(device_class("can-node", "role == 'can'")),
    ]
    only = {"deviceClassName": "rpi4"}
    ladder = [
        {"name": "hw", **only, "selectors": [{"cel": {"expression": "fidelity == 'full'"}}]},
        {"name": "qemu", **only, "selectors": [{"labels": {"matchLabels": {"fidelity": "low"}}}]},
    ]
    asked = claim(
        {"name": "dut", "firstAvailable": ladder},
        {"name": "peer", "exactly": {"deviceClassName": "can-node", "count": 2}},
        constraints=(
            {"matchAttribute": "site", "requests": ["dut", "peer"]},
            {"distinctAttribute": "host", "requests": ["peer"]},
        ),
    )
    answer = allocate(inventory, terms_of(asked.spec), classes)
    assert answer.devices == ("vm", "can-0", "can-1")
    assert answer.alternatives == {"dut": 1, "peer": 0}


def test_an_expression_that_a_cluster_accepted_matches_nothing_and_hinders_nobody() -> None:
    inventory = inventory_of([exporter("hw", board="rpi4")], [])
    classes = [
        class_definition(device_class("good", "board == 'rpi4'")),
        class_definition(device_class("bad", "board == ")),
    ]
    good = claim({"name": "dut", "exactly": {"deviceClassName": "good"}})
    bad = claim({"name": "dut", "exactly": {"deviceClassName": "bad"}})
    assert allocate(inventory, terms_of(good.spec), classes).devices == ("hw",)
    assert allocate(inventory, terms_of(bad.spec), classes).verdict is Verdict.UNSATISFIABLE
