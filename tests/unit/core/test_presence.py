"""Whether an exporter is there, what it is doing, and whether it should be left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from bullpen.kit.clock import EPOCH

NOW = EPOCH
LATER = EPOCH + timedelta(minutes=1)
S = ExporterStatusValue


def exporter(status: ExporterStatusValue | None = None, *, leased: bool = False) -> Exporter:
    ref = LocalObjectReference(name="l1") if leased else None
    return Exporter(
        metadata=ObjectMeta(name="e1", namespace="lab"),
        status=ExporterStatus(exporter_status=status, lease_ref=ref),
    )


def after(found: Exporter, status: ExporterStatus) -> Exporter:
    return replace(found, status=status)


def reported(value: ExporterStatusValue, message: str = "so I say") -> Exporter:
    found = exporter()
    return after(found, presence.reported(found, value=value, message=message, now=NOW))


def test_a_connection_makes_an_exporter_online() -> None:
    found = exporter()
    assert not presence.online(found)
    found = after(found, presence.seen(found, now=NOW))
    assert presence.online(found)
    assert found.status.last_seen == NOW


def test_a_lost_one_is_offline_keeps_its_lease_and_may_come_back() -> None:
    found = exporter(S.LEASE_READY, leased=True)
    gone = after(found, presence.lost(found, now=NOW))
    assert not presence.online(gone)
    assert gone.status.exporter_status is S.OFFLINE
    assert gone.status.lease_ref == LocalObjectReference(name="l1")
    assert not presence.leaving(gone), "it did not say that it goes"
    back = after(gone, presence.seen(gone, now=LATER))
    assert presence.online(back)
    assert back.status.exporter_status is S.LEASE_READY
    assert back.status.status_before_loss is None
    assert back.status.status_message == ""


@pytest.mark.parametrize(
    ("before", "leased", "back"),
    [
        (S.AVAILABLE, False, S.AVAILABLE),
        (S.LEASE_READY, True, S.LEASE_READY),
        (S.BEFORE_LEASE_HOOK, True, S.BEFORE_LEASE_HOOK),
        (S.LEASE_READY, False, S.UNSPECIFIED),
        (S.AFTER_LEASE_HOOK, False, S.UNSPECIFIED),
        (S.OFFLINE, True, S.UNSPECIFIED),
        (None, False, S.UNSPECIFIED),
    ],
)
def test_an_exporter_that_is_back_has_its_true_status_as_far_as_it_is_known(
    before: ExporterStatusValue | None, leased: bool, back: ExporterStatusValue
) -> None:
    """Without a lease, a report that it is available may have been lost meanwhile."""
    gone = after(found := exporter(before, leased=leased), presence.lost(found, now=NOW))
    assert presence.seen(gone, now=LATER).exporter_status is back
    assert presence.registered_anew(gone).exporter_status is S.UNSPECIFIED, "it is a new process"
    said = presence.reported(gone, value=S.AVAILABLE, message="", now=LATER)
    assert (said.exporter_status, said.status_before_loss) == (S.AVAILABLE, None)


def test_what_it_says_is_kept_with_the_time() -> None:
    found = reported(S.LEASE_READY, "Ready for commands")
    assert presence.online(found)
    assert found.status.status_message == "Ready for commands"
    assert found.status.last_seen == NOW


def test_one_that_says_it_is_offline_is_leaving_until_it_registers_again() -> None:
    found = reported(S.OFFLINE, "Exporter shutting down")
    assert not presence.online(found)
    assert presence.leaving(found)
    anew = after(found, presence.registered_anew(found))
    assert not presence.leaving(anew)
    assert anew.status.exporter_status is S.UNSPECIFIED
    ready = reported(S.LEASE_READY)
    assert presence.registered_anew(ready) == ready.status, "only its farewell is void"


@pytest.mark.parametrize(
    ("status", "idle"),
    [
        (None, True),
        (S.UNSPECIFIED, True),
        (S.AVAILABLE, True),
        (S.OFFLINE, False),
        (S.BEFORE_LEASE_HOOK, False),
        (S.LEASE_READY, False),
        (S.AFTER_LEASE_HOOK, False),
        (S.BEFORE_LEASE_HOOK_FAILED, False),
        (S.AFTER_LEASE_HOOK_FAILED, False),
    ],
)
def test_idle_and_settling_exclude_each_other(status: S | None, idle: bool) -> None:
    assert presence.idle(exporter(status)) is idle
    assert presence.settling(exporter(status)) is (not idle and status is not S.OFFLINE)
    assert not presence.settling(exporter(status, leased=True)), "a leased one is meant to be busy"


@pytest.mark.parametrize(
    ("status", "patience"),
    [
        (None, timedelta(0)),
        (S.AVAILABLE, timedelta(0)),
        (S.LEASE_READY, timedelta(0)),
        (S.OFFLINE, timedelta(0)),
        (S.BEFORE_LEASE_HOOK, presence.HOOK_PATIENCE),
        (S.AFTER_LEASE_HOOK, presence.HOOK_PATIENCE),
        (S.BEFORE_LEASE_HOOK_FAILED, presence.FAILURE_PATIENCE),
        (S.AFTER_LEASE_HOOK_FAILED, presence.FAILURE_PATIENCE),
    ],
)
def test_only_hooks_are_waited_for(status: S | None, patience: timedelta) -> None:
    assert presence.patience(exporter(status)) == patience


def test_a_hung_one_is_reported_and_cleared_without_touching_anything_else() -> None:
    found = exporter(S.AFTER_LEASE_HOOK)
    hung = after(found, presence.hung(found, since=NOW, now=LATER))
    assert presence.stuck(hung)
    assert hung.status.exporter_status is S.AFTER_LEASE_HOOK
    item = get(hung.status.conditions, "Stuck")
    assert item is not None
    assert item.last_transition_time == LATER
    assert "reports AfterLeaseHook since its lease ended at 00:00:00 UTC" in item.message
    well = after(hung, presence.settled(hung, now=LATER + timedelta(minutes=1)))
    assert not presence.stuck(well)
    assert [c.type for c in well.status.conditions] == ["Stuck"]


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        pytest.param(None, NOW, id="nobody ever heard of it"),
        pytest.param(NOW - timedelta(minutes=1), NOW, id="we were the last to hear of it"),
        pytest.param(NOW, NOW + presence.GRACE, id="somebody else heard of it since"),
        pytest.param(NOW + timedelta(hours=1), NOW, id="the clock was set back since"),
    ],
)
def test_who_is_missed_here_may_have_been_heard_of_elsewhere(
    heard: datetime | None, expected: datetime
) -> None:
    found = after(exporter(), replace(exporter().status, last_seen=heard))
    assert presence.gone_at(found, NOW, now=NOW) == expected
