"""An index of lasting members decides as if all of them had been looked at."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.virtualdisk import DiskPhase, VirtualDisk, VirtualDiskSpec, VirtualDiskStatus
from bullpen.api.kinds.virtualtarget import (
    TargetDisk,
    VirtualTarget,
    VirtualTargetSpec,
    VirtualTargetStatus,
)
from bullpen.api.kinds.virtualtargetpool import (
    DISK_TEMPLATE,
    FREE_SINCE,
    TEMPLATE_HASH,
    DiskTemplate,
    MemberTemplate,
    OnScaleDown,
    Reclaim,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
    VirtualTargetPoolStatus,
)
from bullpen.api.meta import Condition, ConditionStatus, ObjectMeta, OwnerReference
from bullpen.api.scale_down import Removal, ScaleDownPolicy
from bullpen.core.pools import lasting_disks, lasting_pool, lasting_status
from bullpen.core.pools.lasting_disks import Assignment
from bullpen.core.pools.lasting_members import LastingMembers
from bullpen.core.pools.lasting_pool import LastingMember, LastingPool, Usual
from bullpen.core.pools.lasting_status import LastingReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = VirtualTargetSpec(virtual_target_class_name="fake", disks=(TargetDisk(virtual_disk="root"),))
NAMES = [f"p-{number}" for number in range(4)]
DISKS = [f"p-root-{number}" for number in range(4)]


def owner(name: str, uid: str) -> OwnerReference:
    return OwnerReference(api_version="v", kind="k", name=name, uid=uid, controller=True)


@st.composite
def pools(draw: st.DrawFn) -> VirtualTargetPool:
    # Mostly as the members are, so that usual ones come and go.
    rule = draw(st.sampled_from([OnScaleDown.RETAIN] * 5 + [OnScaleDown.DELETE]))
    size = draw(st.sampled_from(["8Mi"] * 5 + ["16Mi"]))
    disk = DiskTemplate(
        name="root", reclaim=Reclaim(on_scale_down=rule), spec=VirtualDiskSpec(size=size)
    )
    named = draw(st.sets(st.sampled_from(NAMES), max_size=1))
    spec = VirtualTargetPoolSpec(
        replicas=draw(st.integers(0, 5)),
        scale_down_policy=draw(st.sampled_from(ScaleDownPolicy)),
        template=MemberTemplate(spec=SPEC),
        virtual_disk_templates=(disk,),
        removals=tuple(Removal(name=name, uid=f"uid-{name}") for name in named),
    )
    meta = ObjectMeta(name="p", namespace="lab", uid="pool")
    return VirtualTargetPool(metadata=meta, spec=spec, status=VirtualTargetPoolStatus(created=4))


HASH = lasting_pool.template_hash(
    VirtualTargetPool(
        spec=VirtualTargetPoolSpec(
            scale_down_policy=ScaleDownPolicy.EXPLICIT, template=MemberTemplate(spec=SPEC)
        )
    )
)


def usual(name: str, disk: str, *, leased: bool = False) -> LastingMember:
    """A member that is as it should be."""
    meta = ObjectMeta(
        name=name,
        namespace="lab",
        uid=f"uid-{name}",
        generation=1,
        creation_timestamp=NOW,
        labels={TEMPLATE_HASH: HASH},
        owner_references=(owner("p", "pool"),),
    )
    status = VirtualTargetStatus(
        observed_generation=1,
        effective_revision="r",
        written_revision="r",
        disks=(disk,),
        conditions=(ready(ConditionStatus.TRUE),),
    )
    spec = replace(SPEC, disks=(TargetDisk(virtual_disk=disk),))
    target = VirtualTarget(metadata=meta, spec=spec, status=status)
    return LastingMember(target=target, leased=leased)


def ready(status: ConditionStatus) -> Condition:
    return Condition(
        type="Ready", status=status, last_transition_time=NOW, reason="Ready", message=""
    )


@st.composite
def members(draw: st.DrawFn) -> LastingMember:
    name = draw(st.sampled_from(NAMES))
    disk = f"p-root-{name[-1]}" if draw(st.integers(0, 2)) else draw(st.sampled_from(DISKS))
    made = usual(name, disk, leased=draw(st.booleans()))
    target = made.target
    meta, status = target.metadata, target.status
    # Mostly nothing is wrong.
    match draw(st.integers(0, 9)):
        case 0:
            meta = replace(meta, deletion_timestamp=NOW)
        case 1:
            meta = replace(meta, labels={TEMPLATE_HASH: "old"})
        case 2:
            status = replace(status, written_revision="newer")
        case 3:
            status = replace(status, disks=(draw(st.sampled_from(DISKS)),))
        case 4:
            status = replace(status, conditions=(ready(ConditionStatus.FALSE),))
        case _:
            pass
    return replace(made, target=replace(target, metadata=meta, status=status))


def disk(name: str) -> VirtualDisk:
    """A retained disk that is in use."""
    meta = ObjectMeta(
        name=name,
        namespace="lab",
        labels={DISK_TEMPLATE: "root"},
        owner_references=(owner("p", "pool"),),
    )
    status = VirtualDiskStatus(phase=DiskPhase.READY, capacity="8Mi")
    return VirtualDisk(metadata=meta, spec=VirtualDiskSpec(size="8Mi"), status=status)


@st.composite
def disks(draw: st.DrawFn) -> VirtualDisk:
    number = draw(st.integers(0, 3))
    found = disk(DISKS[number])
    meta = found.metadata
    match draw(st.integers(0, 6)):
        case 0:
            meta = replace(meta, labels={DISK_TEMPLATE: "gone"})
        case 1:
            meta = replace(meta, annotations={FREE_SINCE: "2025-12-31T00:00:00Z"})
        case 2:
            meta = replace(meta, deletion_timestamp=NOW)
        case 3:
            name = NAMES[number]
            meta = replace(meta, owner_references=(owner(name, f"uid-{name}"),))
        case _:
            pass
    return replace(found, metadata=meta)


changes = st.lists(
    st.one_of(members(), members(), disks(), disks(), pools(), st.sampled_from([*NAMES, *DISKS])),
    min_size=10,
    max_size=30,
)


def decided(pool: VirtualTargetPool, assigned: Assignment, seen: LastingPool) -> tuple[Any, ...]:
    plan = lasting_pool.plan(seen, now=NOW)
    about = lasting_disks.plan(assigned, now=NOW)
    counts = lasting_status.status(pool, LastingReport(seen=seen, plan=plan), now=NOW)
    return plan, about.created, about.wake_at, sorted(map(repr, about.actions)), counts


def by_index(pool: VirtualTargetPool, index: LastingMembers) -> tuple[Any, ...]:
    index.settle(pool)
    assigned = Assignment(
        pool=pool,
        targets=tuple(member.target for member in index.unusual),
        found=index.loose_disks,
        next_number=index.highest_disk,
    )
    usual = Usual(
        count=index.usual,
        leased=index.usual_leased,
        first_number=index.highest,
        members=index.ordinary,
    )
    seen = LastingPool(
        pool=pool,
        members=index.unusual,
        usual=usual,
        taken=NAMES,
        spec_of=assigned.spec_of,
    )
    return decided(pool, assigned, seen)


def one_by_one(
    pool: VirtualTargetPool,
    found: dict[str, LastingMember],
    stored: dict[str, VirtualDisk],
    highest_disk: int,
) -> tuple[Any, ...]:
    known = tuple(found[name] for name in sorted(found))
    assigned = Assignment(
        pool=pool,
        targets=tuple(member.target for member in known),
        found=dict(stored),
        next_number=highest_disk,
    )
    seen = LastingPool(pool=pool, members=known, taken=NAMES, spec_of=assigned.spec_of)
    return decided(pool, assigned, seen)


@given(pools(), changes)
def test_decisions_are_those_of_looking_at_every_member(
    pool: VirtualTargetPool, history: list[Any]
) -> None:
    index = settled()
    found = {name: usual(name, DISKS[number]) for number, name in enumerate(NAMES)}
    stored = {name: disk(name) for name in DISKS}
    for step, change in enumerate((pool, *history)):
        match change:
            case LastingMember():
                index.put(change)
                found[change.name] = change
            case VirtualDisk():
                index.put_disk(change)
                stored[change.metadata.name] = change
            case str() if change in NAMES:
                index.remove(change)
                found.pop(change, None)
            case str():
                index.remove_disk(change)
                stored.pop(change, None)
            case VirtualTargetPool():
                pool = replace(change, metadata=replace(change.metadata, generation=step))
            case _:
                raise AssertionError(change)
        expected = one_by_one(pool, found, stored, index.highest_disk)
        assert by_index(pool, index) == expected
        assert index.usual + len(index.unusual) == len(index) == len(found)


def test_members_in_order_are_counted_and_not_looked_at() -> None:
    """An index that finds nobody usual would pass the test above."""
    index = settled()
    index.put(usual(NAMES[2], DISKS[2], leased=True))
    template = DiskTemplate(
        name="root",
        reclaim=Reclaim(on_scale_down=OnScaleDown.RETAIN),
        spec=VirtualDiskSpec(size="8Mi"),
    )
    spec = VirtualTargetPoolSpec(
        scale_down_policy=ScaleDownPolicy.EXPLICIT,
        template=MemberTemplate(spec=SPEC),
        virtual_disk_templates=(template,),
    )
    index.settle(VirtualTargetPool(metadata=ObjectMeta(name="p", uid="pool"), spec=spec))
    assert (index.usual, index.usual_leased, index.unusual) == (4, 1, ())
    assert not index.loose_disks


def settled() -> LastingMembers:
    """Four members with a disk each."""
    index = LastingMembers()
    for number, name in enumerate(NAMES):
        index.put(usual(name, DISKS[number]))
        index.put_disk(disk(DISKS[number]))
    return index
