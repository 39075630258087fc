"""What a claim's status records about its classes and devices."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api import codec
from bullpen.api.claim_allocation import AllocatedClass, AllocationSource
from bullpen.api.kinds.deviceclaim import (
    ClaimMember,
    DeviceClaim,
    DeviceClaimStatus,
)
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporter import Exporter
from bullpen.core.claims.allocation_record import CONFIG_BYTES_MAX, AllocationRecords
from bullpen.core.claims.allocator import Allocator, Answer, Member, Verdict
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.lab_inventory import class_definition, inventory_of


def device_class(name: str, *, generation: int = 1, **spec: object) -> DeviceClass:
    meta = {"name": name, "labels": {"role": "board"}, "generation": generation}
    return codec.decode(DeviceClass, {"metadata": meta, "spec": spec})


def leaf(name: str, **more: object) -> DeviceClass:
    selector = {"labels": {"matchLabels": {"kind": name}}}
    return device_class(name, selectors=[selector], config={"driver": name}, **more)  # type: ignore[arg-type]


GROUP = device_class("boards", classSelector={"matchLabels": {"role": "board"}})
EXPORTERS = tuple(
    codec.decode(Exporter, {"metadata": {"name": name, "labels": {"kind": kind}, "generation": 7}})
    for name, kind in (("a", "x"), ("b", "y"))
)
POOL = codec.decode(
    DevicePool,
    {
        "metadata": {"name": "licences", "generation": 3},
        "spec": {"attributes": {"kind": {"string": "z"}}, "devices": [{"name": "seat"}]},
    },
)
CLAIM = codec.decode(
    DeviceClaim,
    {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "clientRef": {"name": "alice"},
            "duration": "1h",
            "requests": [
                {"name": "dut", "exactly": {"deviceClassName": "boards"}},
                {"name": "seat", "exactly": {"deviceClassName": "z"}},
            ],
        },
    },
)


def records(*classes: DeviceClass) -> AllocationRecords:
    index = InventoryIndex(inventory_of(EXPORTERS, (), (POOL,)))
    allocator = Allocator(index, CriteriaIndex(index, map(class_definition, classes)))
    return AllocationRecords(allocator, classes, EXPORTERS, (POOL,))


def answer(**devices: str) -> Answer:
    members = tuple(Member(request=r, alternative=0, device=d) for r, d in devices.items())
    return Answer(verdict=Verdict.SATISFIED, members=members)


def test_a_group_is_recorded_with_those_of_its_classes_that_have_the_device() -> None:
    found = records(GROUP, leaf("x"), leaf("y"), leaf("z")).of(
        CLAIM, answer(dut="b", seat="licences/seat")
    )
    assert [(c.name, c.requests, c.config) for c in found.classes] == [
        ("boards", ("dut",), {}),
        ("y", ("dut",), {"driver": "y"}),
        ("z", ("seat",), {"driver": "z"}),
    ]
    assert found.inventory == (
        AllocationSource(kind="DevicePool", name="licences", generation=3),
        AllocationSource(kind="Exporter", name="b", generation=7),
    )


def test_a_replaced_member_adds_to_the_record_and_changes_nothing_in_it() -> None:
    before = records(GROUP, leaf("x"), leaf("z")).of(CLAIM, answer(dut="a", seat="licences/seat"))
    member = ClaimMember(request="seat", device="licences/seat")
    claim = replace(CLAIM, status=DeviceClaimStatus(members=(member,), allocation=before))
    edited = records(GROUP, leaf("x", generation=2), leaf("z"))
    found = edited.of(claim, answer(dut="a"))
    assert found.classes == (
        *before.classes,
        AllocatedClass(name="x", generation=2, requests=("dut",), config={"driver": "x"}),
    )
    assert {source.name for source in found.inventory} == {"a", "licences"}


def test_a_config_that_does_not_fit_into_a_claim_is_named() -> None:
    z = leaf("z")
    large = replace(z, spec=replace(z.spec, config={"text": "x" * CONFIG_BYTES_MAX}))
    found = records(GROUP, leaf("x"), large)
    kept = found.of(CLAIM, answer(dut="a"))
    assert found.problem(kept) == ""
    refused = found.of(CLAIM, answer(dut="a", seat="licences/seat"))
    assert "DeviceClass z" in found.problem(refused)
