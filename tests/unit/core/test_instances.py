"""What happens next to the instance behind a pool member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.exporter import (
    Exporter,
    ExporterSpec,
    ExporterStatus,
    ExporterStatusValue,
)
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.core.pools.members import SINGLE_USE, Backing, Stage
from bullpen.core.targets.instances import (
    CAPACITY_RETRY,
    REMOVAL_MAX,
    UNLISTED_RETRY,
    Create,
    Delete,
    Desired,
    ExitReason,
    Instance,
    InstancePhase,
    Observed,
    Release,
    Retire,
    Step,
    Wait,
    Withdraw,
    after_failed_removal,
    backing,
    capacity_retry,
    desired,
    next_steps,
)
from bullpen.core.targets.profiles import FINALIZER, PROVISIONER

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = ("lab", "pool-0")
MEMBER = Desired(uid="uid", provisioner="qemu")


def instance(
    uid: str = "uid", phase: InstancePhase = InstancePhase.RUNNING, provisioner: str = "qemu"
) -> Instance:
    reason = ExitReason.CRASHED if phase is InstancePhase.EXITED else None
    return Instance(key=KEY, owner_uid=uid, provisioner=provisioner, phase=phase, reason=reason)


RUNNING = Observed(instances=(instance(),))
INCOMPLETE = replace(instance(phase=InstancePhase.BOOTING), incomplete=True)
ENDANGERED = Observed(instances=(replace(instance(), notice="spot"),))
GONE = instance(phase=InstancePhase.EXITED)
DELETE = Delete(provisioner="qemu", owner_uid="uid", reason="its Exporter is deleted")
UNLISTED = Wait(until=NOON + UNLISTED_RETRY, reason="qemu has not listed its instances")
DELETED = replace(MEMBER, deletion_began=NOON)
LAST = replace(MEMBER, in_last_lease=True)


@pytest.mark.parametrize(
    ("wanted", "seen", "steps"),
    [
        pytest.param(MEMBER, Observed(), (Create(),), id="a new member gets an instance"),
        pytest.param(MEMBER, RUNNING, (), id="an instance that runs is left alone"),
        pytest.param(
            MEMBER,
            Observed(instances=(INCOMPLETE,)),
            (Create(),),
            id="a provisioner that was restarted gets the spec again",
        ),
        pytest.param(
            MEMBER, Observed(instances=(GONE,)), (), id="one that exited is not created again"
        ),
        pytest.param(
            replace(MEMBER, registered_before=True), Observed(), (), id="nor one that vanished"
        ),
        pytest.param(replace(MEMBER, enabled=False), Observed(), (), id="a disabled member"),
        pytest.param(replace(MEMBER, startable=False), Observed(), (), id="no profile or token"),
        pytest.param(MEMBER, Observed(refused=True), (), id="a refused instance"),
        pytest.param(MEMBER, Observed(listed=False), (UNLISTED,), id="an unlisted provisioner"),
        pytest.param(
            MEMBER, Observed(available=False, listed=False), (), id="a provisioner elsewhere"
        ),
        pytest.param(LAST, RUNNING, (Retire(),), id="a single-use member exits after its lease"),
        pytest.param(LAST, replace(RUNNING, retired=True), (), id="it is told once"),
        pytest.param(LAST, ENDANGERED, (Withdraw(notice="spot"),), id="its lessee is told"),
        pytest.param(
            replace(LAST, enabled=False), ENDANGERED, (Retire(),), id="a withdrawn one goes on"
        ),
        pytest.param(LAST, Observed(instances=(GONE,)), (), id="an exited one is not retired"),
        pytest.param(DELETED, RUNNING, (DELETE, Release()), id="a deleted member"),
        pytest.param(DELETED, Observed(), (DELETE, Release()), id="even if it is not listed"),
        pytest.param(replace(DELETED, finalizer=False), RUNNING, (), id="a released member"),
        pytest.param(
            DELETED,
            Observed(available=False),
            (Release(warning="provisioner qemu is not available here"),),
            id="a deleted member whose provisioner is gone",
        ),
    ],
)
def test_the_next_steps_for_a_member(
    wanted: Desired, seen: Observed, steps: tuple[Step, ...]
) -> None:
    assert next_steps(wanted, seen, now=NOON) == steps


def test_the_instance_of_an_earlier_member_of_this_name_is_deleted_first() -> None:
    seen = Observed(instances=(instance("earlier"),))
    orphan = Delete(provisioner="qemu", owner_uid="earlier", reason="its Exporter does not exist")

    assert next_steps(MEMBER, seen, now=NOON) == (orphan, Create())
    assert next_steps(None, seen, now=NOON) == (orphan,)


uids = st.sampled_from(("uid", "earlier"))
provisioners = st.sampled_from(("qemu", "mock"))
desires = st.builds(
    Desired,
    uid=st.just("uid"),
    provisioner=st.just("qemu"),
    deletion_began=st.none() | st.just(NOON),
    finalizer=st.booleans(),
    enabled=st.booleans(),
    startable=st.booleans(),
    registered_before=st.booleans(),
    in_last_lease=st.booleans(),
)
observations = st.builds(
    Observed,
    # A provisioner has one instance of a name.
    instances=st.dictionaries(
        provisioners, st.tuples(uids, st.sampled_from(InstancePhase)), max_size=2
    ).map(lambda found: tuple(instance(*facts, provisioner=name) for name, facts in found.items())),
    available=st.booleans(),
    listed=st.booleans(),
    refused=st.booleans(),
    retired=st.booleans(),
)


def performed(wanted: Desired, seen: Observed, steps: tuple[Step, ...]) -> tuple[Desired, Observed]:
    """The state after the steps, with a backend that obeys."""
    for step in steps:
        match step:
            case Delete(provisioner=name):
                kept = tuple(found for found in seen.instances if found.provisioner != name)
                seen = replace(seen, instances=kept)
            case Create():
                made = instance(wanted.uid, InstancePhase.BOOTING, wanted.provisioner)
                seen = replace(seen, instances=(*seen.instances, made))
            case Retire():
                seen = replace(seen, retired=True)
            case Withdraw():
                wanted = replace(wanted, enabled=False)
            case Release():
                wanted = replace(wanted, finalizer=False)
            case Wait():
                pass
    return wanted, seen


def own(seen: Observed) -> Iterator[Instance]:
    return (found for found in seen.instances if found.owner_uid == "uid")


@given(desires, observations)
def test_an_instance_is_created_only_if_there_is_none_and_never_was(
    wanted: Desired, seen: Observed
) -> None:
    if Create() not in next_steps(wanted, seen, now=NOON):
        return
    assert not list(own(seen))
    assert wanted.startable
    assert wanted.enabled
    assert not wanted.registered_before
    assert wanted.deletion_began is None
    assert seen.available
    assert seen.listed
    assert not seen.refused


@given(desires, observations)
def test_no_instance_of_another_owner_survives_and_no_own_one_is_lost(
    wanted: Desired, seen: Observed
) -> None:
    steps = next_steps(wanted, seen, now=NOON)
    _, after = performed(wanted, seen, steps)

    assert {found.owner_uid for found in after.instances} <= {"uid"}
    assert len({found.provisioner for found in after.instances}) == len(after.instances)
    if wanted.deletion_began is None:
        assert set(own(seen)) <= set(after.instances)


@given(desires, observations)
def test_a_deleted_member_is_released_after_its_instance_is_removed(
    wanted: Desired, seen: Observed
) -> None:
    steps = next_steps(wanted, seen, now=NOON)
    releases = [step for step in steps if isinstance(step, Release)]

    assert bool(releases) == (wanted.deletion_began is not None and wanted.finalizer)
    if releases and not releases[0].warning:
        assert steps[-2:] == (DELETE, releases[0])


@given(desires, observations)
def test_only_a_single_use_instance_in_its_lease_is_retired(
    wanted: Desired, seen: Observed
) -> None:
    if Retire() in next_steps(wanted, seen, now=NOON):
        assert wanted.in_last_lease
        assert not seen.retired
        assert any(found.up for found in own(seen))


@given(desires, observations)
def test_after_the_steps_nothing_is_left_to_do_but_to_wait(wanted: Desired, seen: Observed) -> None:
    steps = next_steps(wanted, seen, now=NOON)
    again = next_steps(*performed(wanted, seen, steps), now=NOON)

    # A member may be retired in the pass after its instance was created: never in the same one.
    assert [step for step in again if not isinstance(step, Wait | Retire)] == []


@given(observations)
def test_without_a_member_every_instance_of_the_name_is_deleted(seen: Observed) -> None:
    steps = next_steps(None, seen, now=NOON)

    assert [step.provisioner for step in steps if isinstance(step, Delete)] == [
        found.provisioner for found in seen.instances
    ]
    assert len(steps) == len(seen.instances)


def test_a_backend_that_does_not_answer_delays_a_deletion_for_a_bounded_time() -> None:
    last = NOON + REMOVAL_MAX - timedelta(microseconds=1)

    assert after_failed_removal(DELETED, "no answer", now=last) is None
    assert after_failed_removal(DELETED, "no answer", now=NOON + REMOVAL_MAX) == Release(
        warning="no answer"
    )


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.99])
def test_backends_without_capacity_are_not_all_asked_at_once(chance: float) -> None:
    wait = capacity_retry(now=NOON, chance=chance).until - NOON

    assert wait == CAPACITY_RETRY * (0.5 + chance)


def exporter(
    *, online: bool, leased: bool, single_use: bool, says: ExporterStatusValue
) -> Exporter:
    conditions = tuple(
        Condition(
            type=name,
            status=ConditionStatus.TRUE if online else ConditionStatus.FALSE,
            reason="Test",
            message="",
            last_transition_time=NOON,
        )
        for name in ("Registered", "Online")
    )
    return Exporter(
        metadata=ObjectMeta(
            name="pool-0",
            namespace="lab",
            uid="uid",
            annotations={PROVISIONER: "qemu", **({SINGLE_USE: "true"} if single_use else {})},
            finalizers=(FINALIZER,),
        ),
        spec=ExporterSpec(),
        status=ExporterStatus(
            endpoint="lab:1",
            conditions=conditions,
            exporter_status=says,
            lease_ref=LocalObjectReference(name="lease") if leased else None,
        ),
    )


READY = ExporterStatusValue.LEASE_READY


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        pytest.param(
            exporter(online=True, leased=True, single_use=True, says=READY), True, id="it"
        ),
        pytest.param(
            exporter(online=False, leased=True, single_use=True, says=READY), False, id="offline"
        ),
        pytest.param(
            exporter(online=True, leased=False, single_use=True, says=READY), False, id="free"
        ),
        pytest.param(
            exporter(online=True, leased=True, single_use=False, says=READY), False, id="reused"
        ),
        pytest.param(
            exporter(online=True, leased=True, single_use=True, says=ExporterStatusValue.AVAILABLE),
            False,
            id="an exporter that does not know of its lease yet",
        ),
    ],
)
def test_a_member_in_its_last_lease_is_recognised(member: Exporter, expected: bool) -> None:
    found = desired(member, startable=True)

    assert found.in_last_lease is expected
    assert (found.uid, found.provisioner, found.finalizer) == ("uid", "qemu", True)
    assert found.registered_before
    assert found.startable


def test_an_exporter_without_an_endpoint_is_not_startable() -> None:
    member = exporter(online=False, leased=False, single_use=True, says=READY)
    bare = replace(member, status=replace(member.status, endpoint=""))

    assert not desired(bare, startable=True).startable
    assert not desired(member, startable=False).startable


DENIED = Backing(stage=Stage.HELD, reason="NoCapacity", since=NOON)
HELD = replace(instance(phase=InstancePhase.BOOTING), held="NoCapacity", detail="full")


@pytest.mark.parametrize(
    ("own", "denied", "waits_for", "managed_by", "registered_before", "stage", "reason"),
    [
        pytest.param(GONE, None, None, None, True, Stage.EXITED, "Crashed", id="exited"),
        pytest.param(HELD, None, None, None, False, Stage.HELD, "NoCapacity", id="held"),
        pytest.param(instance(), DENIED, None, None, True, Stage.UP, "", id="up after a denial"),
        pytest.param(None, DENIED, "qemu", "qemu", True, Stage.HELD, "NoCapacity", id="denied"),
        pytest.param(None, None, None, "qemu", True, Stage.UP, "", id="of another process"),
        pytest.param(None, None, "qemu", None, True, Stage.UP, "", id="not listed yet"),
        pytest.param(None, None, None, None, True, Stage.EXITED, "Lost", id="vanished"),
        pytest.param(None, None, None, None, False, Stage.ABSENT, "", id="not created yet"),
    ],
)
def test_a_pool_sees_the_instance_as(
    own: Instance | None,
    denied: Backing | None,
    waits_for: str | None,
    managed_by: str | None,
    registered_before: bool,
    stage: Stage,
    reason: str,
) -> None:
    found = backing(
        own,
        denied,
        since=NOON,
        waits_for=waits_for,
        managed_by=managed_by,
        registered_before=registered_before,
    )
    assert (found.stage, found.reason, found.since) == (stage, reason, NOON)


@pytest.mark.parametrize(
    ("own", "registered_before", "stage"),
    [
        pytest.param(None, True, Stage.UP, id="the listing lacks what is in use"),
        pytest.param(None, False, Stage.ABSENT, id="it never existed"),
        pytest.param(GONE, True, Stage.EXITED, id="the listing says that it has exited"),
    ],
)
def test_a_listing_that_lacks_a_member_in_use_is_doubted(
    own: Instance | None, registered_before: bool, stage: Stage
) -> None:
    found = backing(
        own,
        None,
        since=NOON,
        waits_for=None,
        managed_by=None,
        registered_before=registered_before,
        doubted=True,
    )
    assert found.stage is stage
