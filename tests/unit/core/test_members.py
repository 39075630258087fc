"""What a member of a pool is doing, one sentence per case."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.exporter import Exporter, ExporterSpec, ExporterStatus, ExporterStatusValue
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.core.pools import members
from bullpen.core.pools.members import REVISION, SINGLE_USE, Backing, Member, Phase, Sighting, Stage
from bullpen.kit.clock import EPOCH

NOON = EPOCH + timedelta(hours=12)
HOUR = timedelta(hours=1)
AVAILABLE = ExporterStatusValue.AVAILABLE
HOOK = ExporterStatusValue.AFTER_LEASE_HOOK


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def condition(type_: str, status: str = "True", *, since: datetime = NOON - HOUR) -> Condition:
    return Condition(
        type=type_,
        status=ConditionStatus(status),
        reason="Test",
        message="",
        last_transition_time=since,
    )


ONLINE = (condition("Registered"), condition("Online"))
OFFLINE = (condition("Registered"), condition("Online", "False", since=ago(10)))


def exporter(
    *conditions: Condition,
    single_use: bool = True,
    epoch: int = 0,
    enabled: bool = True,
    says: ExporterStatusValue | None = AVAILABLE,
    lease: str = "",
    deleted: bool = False,
) -> Exporter:
    return Exporter(
        metadata=ObjectMeta(
            name="rpi4-0",
            namespace="lab",
            uid="u",
            creation_timestamp=NOON - HOUR,
            deletion_timestamp=NOON if deleted else None,
            labels={REVISION: "r1"},
            annotations={SINGLE_USE: "true"} if single_use else {},
        ),
        spec=ExporterSpec(enabled=enabled),
        status=ExporterStatus(
            conditions=conditions,
            lease_epoch=epoch,
            exporter_status=says,
            lease_ref=LocalObjectReference(name=lease) if lease else None,
        ),
    )


def backing(stage: Stage = Stage.UP, reason: str = "", *, age_s: float = 3600) -> Backing:
    return Backing(stage=stage, reason=reason, since=ago(age_s))


def look(found: Exporter, behind: Backing | None = None, *, unleased_s: float = 1) -> Member:
    seen = Sighting(
        exporter=found,
        backing=behind or backing(),
        leased=found.status.lease_ref is not None,
        unleased_since=ago(unleased_s),
    )
    return members.member(seen, revision="r1", now=NOON)


@pytest.mark.parametrize(
    ("found", "behind", "phase"),
    [
        pytest.param(exporter(), backing(age_s=9), Phase.STARTING, id="it boots"),
        pytest.param(
            exporter(condition("Registered")),
            backing(age_s=9),
            Phase.STARTING,
            id="it has registered and not yet connected",
        ),
        pytest.param(exporter(), backing(Stage.HELD, "NoCapacity"), Phase.HELD, id="no room"),
        pytest.param(exporter(), backing(), Phase.FAILED, id="it boots for too long"),
        pytest.param(
            exporter(), backing(Stage.REFUSED, "Refused"), Phase.FAILED, id="it was refused"
        ),
        pytest.param(
            exporter(),
            backing(Stage.EXITED, "StartFailed", age_s=2),
            Phase.FAILED,
            id="it ended before it was ready",
        ),
        pytest.param(
            exporter(condition("Registered", since=ago(3)), condition("Online", since=ago(3))),
            backing(Stage.EXITED, "Crashed"),
            Phase.FAILED,
            id="it ended right after it was ready",
        ),
        pytest.param(
            exporter(condition("Registered", "False", since=ago(1)), condition("Online", "False")),
            backing(Stage.EXITED, "Completed"),
            Phase.CRASHED,
            id="it said goodbye after a long life",
        ),
        pytest.param(
            exporter(*ONLINE), backing(Stage.EXITED, "Crashed"), Phase.CRASHED, id="it crashed"
        ),
        pytest.param(
            exporter(),
            backing(Stage.EXITED, "Lost", age_s=2),
            Phase.CRASHED,
            id="whoever ran it ended, which is not its fault",
        ),
        pytest.param(
            exporter(*ONLINE, lease="l1", epoch=1),
            backing(Stage.EXITED, "Crashed"),
            Phase.CRASHED,
            id="it crashed while it was leased",
        ),
        pytest.param(exporter(*ONLINE), backing(), Phase.READY, id="it is ready"),
        pytest.param(exporter(*ONLINE, lease="l1", epoch=1), backing(), Phase.READY, id="leased"),
        pytest.param(
            exporter(*ONLINE, single_use=False, epoch=7),
            backing(),
            Phase.READY,
            id="it is used again and again",
        ),
        pytest.param(exporter(*ONLINE, epoch=1), backing(), Phase.SPENT, id="it served its lease"),
        pytest.param(
            exporter(*ONLINE, epoch=1, says=HOOK),
            backing(),
            Phase.FINISHING,
            id="it runs its after-lease hook",
        ),
        pytest.param(
            exporter(*ONLINE, epoch=1),
            backing(Stage.EXITED, "Completed"),
            Phase.SPENT,
            id="it served its lease and ended",
        ),
        pytest.param(
            exporter(*OFFLINE, epoch=1), backing(), Phase.SPENT, id="it served its lease and left"
        ),
        pytest.param(exporter(*OFFLINE), backing(), Phase.OFFLINE, id="it lost its connection"),
        pytest.param(
            exporter(condition("Registered"), condition("Online", "False", since=ago(31))),
            backing(),
            Phase.CRASHED,
            id="it lost its connection for too long",
        ),
        pytest.param(
            exporter(
                condition("Registered"),
                condition("Online", "False", since=ago(999)),
                lease="l1",
                epoch=1,
            ),
            backing(),
            Phase.OFFLINE,
            id="a lease waits for it as long as it likes",
        ),
        pytest.param(
            exporter(*ONLINE, condition("Stuck"), single_use=False, epoch=2, says=HOOK),
            backing(),
            Phase.CRASHED,
            id="it never became available again",
        ),
        pytest.param(exporter(*ONLINE, enabled=False), backing(), Phase.DRAINING, id="disabled"),
        pytest.param(exporter(*ONLINE, deleted=True), backing(), Phase.ENDING, id="deleted"),
    ],
)
def test_phase(found: Exporter, behind: Backing, phase: Phase) -> None:
    assert look(found, behind).phase is phase


def test_only_a_ready_member_without_a_lease_that_says_so_is_idle() -> None:
    assert look(exporter(*ONLINE)).idle
    assert not look(exporter(*ONLINE, lease="l1", epoch=1)).idle
    assert not look(exporter(*ONLINE, single_use=False, says=HOOK)).idle
    assert not look(exporter(*ONLINE, enabled=False)).idle


def test_the_after_lease_hook_may_not_take_for_ever() -> None:
    found = look(exporter(*ONLINE, epoch=1, says=HOOK), unleased_s=151)
    assert found.phase is Phase.SPENT


@pytest.mark.parametrize(
    ("found", "behind", "due"),
    [
        pytest.param(exporter(), backing(age_s=9), ago(9) + timedelta(minutes=3), id="booting"),
        pytest.param(exporter(*OFFLINE), backing(), ago(10 - 30), id="offline"),
        pytest.param(exporter(*ONLINE, epoch=1, says=HOOK), backing(), ago(1 - 150), id="hook"),
        pytest.param(exporter(*ONLINE), backing(), None, id="nothing is due for one at rest"),
    ],
)
def test_it_is_known_when_time_alone_changes_the_phase(
    found: Exporter, behind: Backing, due: datetime | None
) -> None:
    assert look(found, behind).due == due


def test_a_failure_keeps_its_cause_and_what_the_backend_said() -> None:
    said = Backing(stage=Stage.UP, detail="fetching firmware", since=ago(600))
    found = look(exporter(), said)
    assert found.cause == "BootTimeout"
    assert found.detail == "not registered within 180 s; fetching firmware"


def test_a_member_of_another_revision_or_with_a_void_token_is_out_of_date() -> None:
    seen = Sighting(
        exporter=exporter(*ONLINE), backing=backing(), leased=False, unleased_since=NOON
    )
    assert members.member(seen, revision="r1", now=NOON).current
    assert not members.member(seen, revision="r2", now=NOON).current
    assert not members.member(replace(seen, stale=True), revision="r1", now=NOON).current


states = st.sampled_from(("True", "False", "Unknown"))
ages = st.integers(0, 400)
found_conditions = st.lists(
    st.builds(
        lambda type_, status, age_s: condition(type_, status, since=ago(age_s)),
        st.sampled_from(("Registered", "Online", "Stuck")),
        states,
        ages,
    ),
    unique_by=lambda c: c.type,
)


@given(
    found_conditions,
    st.sampled_from(Stage),
    st.sampled_from(("", "Lost", "Crashed", "StartFailed", "Completed")),
    st.sampled_from((None, *ExporterStatusValue)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    ages,
)
def test_every_exporter_has_a_phase_and_none_is_overdue(
    conditions: list[Condition],
    stage: Stage,
    reason: str,
    says: ExporterStatusValue | None,
    single_use: bool,
    enabled: bool,
    epoch: int,
    age_s: int,
) -> None:
    found = look(
        exporter(*conditions, says=says, single_use=single_use, enabled=enabled, epoch=epoch),
        backing(stage, reason, age_s=age_s),
    )
    assert found.due is None or found.due > NOON
    assert not (single_use and epoch and found.phase is Phase.READY), (
        "it would serve a second lease"
    )
