"""The life of one lease, one sentence per test."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.lease import IDLE_TAG, Lease, LeaseSession, LeaseSpec, LeaseStatus
from bullpen.api.meta import ConditionStatus, LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.core.leases import lifecycle
from bullpen.core.leases.access import Approval
from bullpen.core.leases.lifecycle import Phase
from bullpen.kit import durations, times
from bullpen.kit.clock import EPOCH

NOON = EPOCH + timedelta(hours=12)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def lease(*, status: LeaseStatus | None = None, **spec: object) -> Lease:
    fields: dict[str, object] = {
        "client_ref": LocalObjectReference(name="alice"),
        "selector": LabelSelector(match_labels={"board": "rpi4"}),
        **spec,
    }
    return Lease(
        metadata=ObjectMeta(name="l1", namespace="lab", generation=1),
        spec=LeaseSpec(**fields),  # type: ignore[arg-type]
        status=status or LeaseStatus(),
    )


def given_out(found: Lease, *, now: datetime = NOON, maximum: timedelta | None = None) -> Lease:
    right = Approval(maximum=maximum)
    status = lifecycle.assigned(found, exporter="e1", approval=right, epoch=1, now=now)
    return replace(found, status=status)


@pytest.mark.parametrize(
    ("given_lease", "expected"),
    [
        pytest.param(lease(duration=HOUR), Phase.WAITING, id="a new one waits"),
        pytest.param(
            lease(duration=HOUR, begin_time=NOON + HOUR),
            Phase.SCHEDULED,
            id="a booked one is early",
        ),
        pytest.param(
            lease(duration=HOUR, begin_time=NOON), Phase.WAITING, id="a booked one becomes due"
        ),
        pytest.param(
            lease(duration=HOUR, end_time=NOON + 2 * HOUR),
            Phase.SCHEDULED,
            id="an end and a duration make a begin",
        ),
        pytest.param(given_out(lease(duration=HOUR)), Phase.ACTIVE, id="an assigned one is active"),
        pytest.param(lease(status=LeaseStatus(ended=True)), Phase.ENDED, id="an ended one is over"),
    ],
)
def test_phase(given_lease: Lease, expected: Phase) -> None:
    assert lifecycle.phase(given_lease, now=NOON) is expected


@pytest.mark.parametrize(
    ("given_lease", "expected"),
    [
        pytest.param(lease(duration=HOUR), None, id="no end before the begin"),
        pytest.param(given_out(lease(duration=HOUR)), NOON + HOUR, id="counted from assignment"),
        pytest.param(
            given_out(lease(duration=HOUR, begin_time=NOON - HOUR / 3)),
            NOON + HOUR * 2 / 3,
            id="a booked lease that got its exporter late is not extended",
        ),
        pytest.param(
            lease(duration=HOUR, end_time=NOON), NOON, id="an explicit end wins over a duration"
        ),
        pytest.param(given_out(lease()), None, id="without either it has no end"),
        pytest.param(
            given_out(lease(end_time=NOON + 300 * DAY, duration=HOUR / 2), maximum=HOUR),
            NOON + HOUR,
            id="no later than the maximum, whatever the spec says",
        ),
        pytest.param(
            given_out(lease(), maximum=HOUR), NOON + HOUR, id="also where the spec has no end"
        ),
        pytest.param(
            given_out(lease(duration=HOUR / 2), maximum=HOUR),
            NOON + HOUR / 2,
            id="a maximum makes no lease longer",
        ),
    ],
)
def test_expires_at(given_lease: Lease, expected: datetime | None) -> None:
    assert lifecycle.expires_at(given_lease) == expected


@pytest.mark.parametrize(
    ("given_lease", "expected"),
    [
        pytest.param(lease(duration=HOUR), HOUR, id="a duration"),
        pytest.param(lease(), None, id="no end"),
        pytest.param(
            lease(begin_time=NOON + HOUR, end_time=NOON + 3 * HOUR), 2 * HOUR, id="two moments"
        ),
        pytest.param(
            lease(begin_time=NOON, end_time=NOON + 300 * DAY, duration=HOUR),
            300 * DAY,
            id="an end wins over a duration that contradicts it",
        ),
        pytest.param(
            lease(end_time=NOON + 300 * DAY, duration=HOUR), HOUR, id="booked for the last hour"
        ),
        pytest.param(
            given_out(lease(end_time=NOON + 300 * DAY, duration=HOUR)),
            300 * DAY,
            id="once begun it lasts to its end, whatever the duration",
        ),
        pytest.param(lease(end_time=NOON + 3 * HOUR), 3 * HOUR, id="from now to an end"),
        pytest.param(
            given_out(lease(begin_time=NOON - HOUR / 3, duration=HOUR)),
            HOUR * 2 / 3,
            id="booked and begun late",
        ),
    ],
)
def test_how_long_a_lease_lasts_from_begin_to_end(
    given_lease: Lease, expected: timedelta | None
) -> None:
    assert lifecycle.lasts(given_lease, now=NOON) == expected


def test_a_spec_beyond_the_maximum_is_told_in_a_condition_before_ready() -> None:
    active = given_out(lease(duration=HOUR), maximum=HOUR)
    assert lifecycle.limited(active, maximum=HOUR, now=NOON) == active.status
    extended = replace(active, spec=replace(active.spec, end_time=NOON + 300 * DAY))
    status = lifecycle.limited(extended, maximum=HOUR, now=NOON)
    assert [c.type for c in status.conditions] == ["Pending", "Limited", "Ready"]
    assert "allow alice at most 1h0m0s" in status.conditions[1].message
    held = replace(extended, status=status)
    raised = lifecycle.limited(held, maximum=None, now=NOON)
    assert raised.conditions[1].status is ConditionStatus.FALSE
    assert lifecycle.expires_at(replace(held, status=raised)) == NOON + 300 * DAY


def test_a_lease_ends_when_released_or_run_out_and_only_once() -> None:
    active = given_out(lease(duration=HOUR))
    assert lifecycle.due_to_end(active, now=NOON) is None
    assert lifecycle.due_to_end(active, now=NOON + HOUR) == "Expired"
    released = replace(active, spec=replace(active.spec, release=True))
    assert lifecycle.due_to_end(released, now=NOON) == "Released"
    over = replace(released, status=replace(released.status, ended=True))
    assert lifecycle.due_to_end(over, now=NOON + 9 * HOUR) is None
    assert lifecycle.due_to_end(active, client_exists=False, now=NOON) == "ClientRemoved"


def test_ready_is_the_last_condition_and_pending_turns_false() -> None:
    waited = lease(duration=HOUR)
    waited = replace(
        waited, status=lifecycle.waiting(waited, reason="Offline", message="none", now=NOON)
    )
    status = given_out(waited).status
    assert [c.type for c in status.conditions] == ["Pending", "Ready"]
    assert [c.status for c in status.conditions] == [ConditionStatus.FALSE, ConditionStatus.TRUE]
    assert status.begin_time == NOON


@pytest.mark.parametrize("reason", ["Released", "Expired", "Evicted"])
def test_an_end_keeps_the_exporter_and_never_says_the_word_for_stale_tokens(reason: str) -> None:
    active = given_out(lease(duration=HOUR))
    status = lifecycle.ended(active, reason=reason, message=lifecycle.end_message(reason), now=NOON)
    assert status.ended
    assert status.exporter_ref == LocalObjectReference(name="e1")
    assert status.conditions[-1].type == "Ready"
    assert status.conditions[-1].status is ConditionStatus.FALSE
    assert "expired" not in status.conditions[-1].message.lower()


def test_a_refusal_is_the_last_condition_and_final() -> None:
    status = lifecycle.refused(
        lease(), type="Unsatisfiable", reason="NoAccess", message="nothing matches", now=NOON
    )
    assert status.ended
    assert status.conditions[-1].reason == "NoAccess"


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = lease(duration=HOUR)
    one = lifecycle.waiting(first, reason="Offline", message="a", now=NOON)
    again = replace(first, status=one)
    two = lifecycle.waiting(again, reason="NotReady", message="b", now=NOON + HOUR)
    assert two.conditions[0].last_transition_time == NOON
    assert two.conditions[0].reason == "NotReady"


def transferred(found: Lease, to: str) -> Lease:
    return replace(found, spec=replace(found.spec, client_ref=LocalObjectReference(name=to)))


def test_a_transfer_is_under_way_until_the_new_client_has_a_new_epoch() -> None:
    active = given_out(lease(duration=HOUR))
    assert lifecycle.holder(active) == "alice"
    assert not lifecycle.handing_over(active)
    moving = transferred(active, "bob")
    assert lifecycle.holder(moving) == "alice"
    assert lifecycle.handing_over(moving)
    done = replace(moving, status=lifecycle.handed_over(moving, epoch=2, maximum=None))
    assert lifecycle.holder(done) == "bob"
    assert not lifecycle.handing_over(done)
    assert done.status.begin_time == active.status.begin_time, "its time goes on"


def test_a_waiting_lease_that_changes_hands_needs_no_handing_over() -> None:
    assert not lifecycle.handing_over(transferred(lease(duration=HOUR), "bob"))


def over(found: Lease) -> Lease:
    status = lifecycle.ended(found, reason="Released", message="over", now=NOON + HOUR)
    return replace(found, status=status)


ACTIVE = given_out(lease(duration=HOUR))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, lease(), None, id="a new lease has no streams"),
        pytest.param(lease(), ACTIVE, 0, id="an assigned one never had any of before"),
        pytest.param(None, ACTIVE, 0, id="those of an earlier holder nobody told us of are over"),
        pytest.param(ACTIVE, ACTIVE, None, id="nothing happened"),
        pytest.param(ACTIVE, over(ACTIVE), 1, id="its end ends all of them"),
        pytest.param(lease(), over(ACTIVE), 1, id="also when its beginning was not seen"),
        pytest.param(None, over(ACTIVE), 1, id="also when it was over before we looked"),
        pytest.param(ACTIVE, None, 1, id="so does its deletion"),
        pytest.param(
            ACTIVE,
            replace(
                ACTIVE,
                status=lifecycle.handed_over(transferred(ACTIVE, "bob"), epoch=5, maximum=None),
            ),
            4,
            id="a transfer ends those of the client before",
        ),
    ],
)
def test_fenced(old: Lease | None, new: Lease | None, expected: int | None) -> None:
    assert lifecycle.fenced(old, new) == expected


@pytest.mark.parametrize("reason", ["ClientRemoved", "ExporterRemoved", "ExporterTaken"])
def test_every_end_has_its_sentence(reason: str) -> None:
    assert lifecycle.end_message(reason).endswith(("removed", "assigned to another lease"))


_ANY_TIME = st.none() | st.sampled_from(
    (times.EARLIEST, times.LATEST, NOON, times.parse("9999-12-31T23:59:59Z"))
)
_ANY_DURATION = st.none() | st.sampled_from(
    (durations.parse("2562047h"), -durations.parse("2562047h"), HOUR, timedelta(0))
)


@given(begin=_ANY_TIME, end=_ANY_TIME, duration=_ANY_DURATION, assigned=_ANY_TIME)
def test_no_times_of_a_lease_make_its_life_fail(
    begin: datetime | None,
    end: datetime | None,
    duration: timedelta | None,
    assigned: datetime | None,
) -> None:
    """A begin at the end of the year 9999 with a duration stopped the service for good."""
    found = lease(begin_time=begin, end_time=end, duration=duration)
    found = replace(found, status=replace(found.status, begin_time=assigned))
    assert lifecycle.phase(found, now=NOON) in Phase
    lifecycle.due_to_end(found, now=NOON)
    lifecycle.expires_at(found)
    lifecycle.length(found.spec)


@pytest.mark.parametrize(
    ("tag", "allowed", "expected"),
    [
        (None, None, None),
        (None, HOUR, HOUR),
        ("20m", None, HOUR / 3),
        ("20m", HOUR, HOUR / 3),
        ("2h", HOUR, HOUR),
        ("soon", HOUR, HOUR),
        ("1s", HOUR, HOUR),
    ],
)
def test_a_client_can_shorten_the_idle_timeout_of_its_lease(
    tag: str | None, allowed: timedelta | None, expected: timedelta | None
) -> None:
    """Invalid tags are refused when a lease is made; one that is there is ignored."""
    asked = lease(duration=DAY, tags={} if tag is None else {IDLE_TAG: tag})
    status = lifecycle.assigned(
        asked, exporter="e1", approval=Approval(idle=allowed), epoch=1, now=NOON
    )
    assert status.idle_timeout == expected


def connection(begin: timedelta, end: timedelta | None) -> LeaseSession:
    return LeaseSession(
        stream=str(begin),
        client="alice",
        start_time=NOON + begin,
        end_time=NOON + end if end is not None else None,
    )


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ((), HOUR),
        ((connection(HOUR / 2, None),), None),
        ((connection(HOUR / 4, HOUR / 2),), HOUR / 2 + HOUR),
        ((connection(HOUR / 4, 2 * HOUR), connection(HOUR / 2, HOUR)), 3 * HOUR),
        ((connection(HOUR / 4, None), connection(HOUR / 2, HOUR)), None),
    ],
)
def test_a_lease_without_connections_ends_after_its_idle_timeout(
    sessions: tuple[LeaseSession, ...], expected: timedelta | None
) -> None:
    held = given_out(lease(duration=DAY))
    assert lifecycle.idle_at(held) is None, "there is no idle time-out unless somebody sets one"
    idle = replace(held, status=replace(held.status, idle_timeout=HOUR, sessions=sessions))
    assert lifecycle.idle_at(idle) == (NOON + expected if expected is not None else None)
    if expected is None:
        assert lifecycle.due_to_end(idle, now=NOON + 20 * HOUR) is None
        return
    second = timedelta(seconds=1)
    assert lifecycle.due_to_end(idle, now=NOON + expected - second) is None
    assert lifecycle.due_to_end(idle, now=NOON + expected) == "Idle"
    assert lifecycle.idle_at(lease(duration=DAY)) is None, "a waiting lease is not idle"
