"""What is said about a pool: counts, conditions, its ledger and what waiting leases hear."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api import codec
from bullpen.api.exporter_template import Template
from bullpen.api.kinds.exporterset import (
    DECISIONS_MAX,
    SET_UID,
    Decision,
    ExporterSet,
    ExporterSetSpec,
    ExporterSetStatus,
)
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core import conditions
from bullpen.core.matcher import Device
from bullpen.core.pools import decision_log, forecast, pool_status, start_throttle
from bullpen.core.pools.boot_times import UNMEASURED, BootTimes
from bullpen.core.pools.demand import Source
from bullpen.core.pools.member_index import MemberIndex
from bullpen.core.pools.members import Phase, Stage
from bullpen.core.pools.pool_status import Problem, Report
from bullpen.core.pools.scale_plan import Create, Delete, Drain, Pool, Rule, Surplus, plan
from bullpen.core.pools.start_throttle import UNTRIED, StartHistory
from support.scaling_helpers import NOON, TRUSTED, member, pool, seconds

BOOT = timedelta(seconds=4)
BOOTS = BootTimes((BOOT,))


def owner(status: ExporterSetStatus | None = None) -> ExporterSet:
    return ExporterSet(
        metadata=ObjectMeta(name="rpi4", namespace="lab", uid="s", generation=3),
        spec=ExporterSetSpec(
            virtual_target_class_name="qemu",
            selector=LabelSelector(match_labels={"board": "rpi4"}),
            template=Template(),
        ),
        status=status or ExporterSetStatus(),
    )


def report(given_pool: Pool, **more: object) -> Report:
    made = plan(given_pool, now=NOON)
    fields: dict[str, object] = {
        "pool": given_pool,
        "plan": made,
        "start_history": made.start_history,
        "done": made.actions,
        "revision": "r1",
        "generation": 3,
        **more,
    }
    return Report(**fields)  # type: ignore[arg-type]


def status(given_pool: Pool, **more: object) -> ExporterSetStatus:
    return pool_status.status(owner(), report(given_pool, **more), now=NOON)


def failed_once() -> StartHistory:
    dead = member(0, Phase.FAILED, cause="StartFailed", detail="no such file")
    return start_throttle.failed(UNTRIED, [dead], now=NOON, chance=random.Random(1))


def test_members_are_counted_by_what_is_observed() -> None:
    found = status(
        pool(
            member(0),
            member(1, leased=True),
            member(2, Phase.STARTING),
            member(3, Phase.HELD, stage=Stage.HELD),
            member(4, Phase.OFFLINE),
            member(5, Phase.DRAINING),
            member(6, Phase.CRASHED, stage=Stage.EXITED),
            member(7, Phase.SPENT, stage=Stage.EXITED),
            member(8, Phase.ENDING),
            replicas_max=None,
        )
    )
    assert (found.replicas, found.ready_replicas, found.available_replicas) == (9, 2, 1)
    assert (found.unavailable_replicas, found.leased_replicas) == (4, 1)
    assert (found.pods_pending, found.pods_running, found.pods_failed) == (2, 4, 1)
    assert (found.pods_unknown, found.exporters_disabled, found.exporters_idle) == (1, 1, 1)
    assert found.selector == f"{SET_UID}=s"
    assert found.observed_generation == 3


def test_a_status_survives_being_written_and_read() -> None:
    found = status(
        pool(member(0), member(1, Phase.FAILED, cause="BootTimeout"), replicas_max=1),
        start_history=failed_once(),
        boots=BOOTS,
    )
    written = codec.decode(ExporterSet, codec.encode(owner(found))).status
    assert written == replace(
        found,
        conditions=written.conditions,
        surplus=written.surplus,
        start_failures=written.start_failures,
        decisions=written.decisions,
    )
    assert written.start_failures is not None
    assert found.start_failures is not None
    assert written.start_failures.retry_time == found.start_failures.retry_time


@pytest.mark.parametrize(
    ("given_report", "type_", "holds", "reason"),
    [
        pytest.param(
            report(pool(member(0), replicas_min=1)),
            "Available",
            True,
            "MinimumReplicasReady",
            id="enough are ready",
        ),
        pytest.param(
            report(pool(member(0, Phase.STARTING), replicas_min=1)),
            "Available",
            False,
            "MinimumReplicasNotReady",
            id="too few are ready",
        ),
        pytest.param(
            report(pool(replicas_min=1, on_demand=True)),
            "Available",
            True,
            "OnDemand",
            id="targets are started for leases only",
        ),
        pytest.param(
            report(pool(), problem=Problem(reason="VirtualTargetClassNotFound", message="spec.x")),
            "Available",
            False,
            "VirtualTargetClassNotFound",
            id="the class is missing",
        ),
        pytest.param(
            report(pool(member(0, Phase.STARTING), replicas_min=1)),
            "Progressing",
            True,
            "Starting",
            id="one is starting",
        ),
        pytest.param(
            report(pool(member(0, Phase.ENDING))), "Progressing", True, "Changing", id="one leaves"
        ),
        pytest.param(
            report(pool(member(0), available_min=1)), "Progressing", False, "Settled", id="at rest"
        ),
        pytest.param(
            report(pool(member(0), available_min=1)), "Degraded", False, "Healthy", id="all is well"
        ),
        pytest.param(
            report(pool(), start_history=failed_once()),
            "Degraded",
            True,
            "StartFailing",
            id="one failed",
        ),
        pytest.param(
            report(pool(member(0, Phase.HELD, cause="NoCapacity"), replicas_min=1)),
            "Degraded",
            True,
            "NoCapacity",
            id="the backend has no room",
        ),
        pytest.param(
            report(pool(), problem=Problem(reason="InvalidParameters", message="spec.x")),
            "Degraded",
            True,
            "InvalidParameters",
            id="the parameters are wrong",
        ),
        pytest.param(
            report(pool(waiting=9)), "ScalingLimited", True, "CeilingReached", id="at the ceiling"
        ),
        pytest.param(
            report(pool()), "ScalingLimited", False, "WithinLimits", id="below the ceiling"
        ),
        pytest.param(report(pool()), "SetHealthy", True, "Healthy", id="healthy"),
        pytest.param(
            report(pool(), start_history=failed_once()),
            "SetHealthy",
            False,
            "StartFailing",
            id="not healthy, for the same reason as degraded",
        ),
        pytest.param(
            report(pool(replicas_min=1)),
            "SetHealthy",
            False,
            "MinimumReplicasNotReady",
            id="not healthy, for the same reason as unavailable",
        ),
    ],
)
def test_conditions(given_report: Report, type_: str, holds: bool, reason: str) -> None:
    found = conditions.get(pool_status.status(owner(), given_report, now=NOON).conditions, type_)
    assert found is not None
    assert (found.status == "True", found.reason) == (holds, reason)


def test_a_pool_at_rest_has_nothing_new_to_say() -> None:
    at_rest = pool(member(0), available_min=1)
    first = pool_status.status(owner(), report(at_rest), now=NOON)
    again = pool_status.status(owner(first), report(at_rest), now=NOON + seconds(60))
    assert again == first


def test_what_the_next_pass_must_remember_is_in_the_status() -> None:
    first = pool_status.status(
        owner(), report(pool(member(0)), start_history=failed_once()), now=NOON
    )
    kept = pool_status.surplus(owner(first), watched_since=NOON - seconds(1), now=NOON)
    assert kept == Surplus(since=NOON, count=1)
    later = NOON + seconds(60)
    unwatched = pool_status.surplus(owner(first), watched_since=later, now=later)
    assert unwatched == Surplus(since=NOON + seconds(60), count=1)
    assert (
        pool_status.start_history(owner(first), "r1", now=NOON).failures == failed_once().failures
    )


def test_failures_of_an_older_revision_are_forgotten() -> None:
    first = pool_status.status(owner(), report(pool(), start_history=failed_once()), now=NOON)
    assert pool_status.start_history(owner(first), "r2", now=NOON) == UNTRIED


def test_a_revision_that_started_is_trusted_until_it_fails() -> None:
    good = pool_status.status(owner(), report(pool(), start_history=TRUSTED), now=NOON)
    assert pool_status.start_history(owner(good), "r1", now=NOON).trusted
    assert not pool_status.start_history(owner(good), "r2", now=NOON).trusted
    bad = pool_status.status(owner(good), report(pool(), start_history=failed_once()), now=NOON)
    assert bad.proven_revision == ""


# The ledger


def test_the_same_thing_done_to_many_is_one_entry() -> None:
    done = plan(pool(waiting=3), now=NOON).actions
    (entry,) = decision_log.decisions(done, now=NOON)
    assert (entry.action, entry.name, entry.count) == ("Create", "rpi4-0 to rpi4-2", 3)
    assert entry.rule == "LeasesWaiting"
    assert entry.message == "0 leased, 3 waiting, 0 idle, 0 starting; target 3, ceiling 4"


def test_the_ledger_keeps_the_last_twenty() -> None:
    kept: tuple[Decision, ...] = ()
    for number in range(30):
        done = Create(name=f"rpi4-{number}", rule=Rule.MIN_REPLICAS, message="")
        kept = decision_log.recorded(kept, [done], now=NOON)
    assert len(kept) == DECISIONS_MAX
    assert kept[-1].name == "rpi4-29"


@pytest.mark.parametrize(
    ("action", "reason", "warning", "text"),
    [
        pytest.param(
            Create(name="a-0", rule=Rule.LEASES_WAITING, message="1 waiting"),
            "ScaleUp",
            False,
            "created a-0 by rule LeasesWaiting: 1 waiting",
            id="growing",
        ),
        pytest.param(
            Drain(name="a-0", rule=Rule.SURPLUS, message="1 more"),
            "ScaleDown",
            False,
            "drained a-0 by rule Surplus: 1 more",
            id="shrinking",
        ),
        pytest.param(
            Delete(name="a-0", rule=Rule.SPENT, message="it served its one lease"),
            "Recycle",
            False,
            "deleted a-0 by rule Spent: it served its one lease",
            id="recycling",
        ),
        pytest.param(
            Delete(name="a-0", rule=Rule.FAILED_TO_START, message="BootTimeout"),
            "MemberFailed",
            True,
            "deleted a-0 by rule FailedToStart: BootTimeout",
            id="failing",
        ),
    ],
)
def test_every_act_is_an_event_with_its_rule_and_numbers(
    action: Create | Drain | Delete, reason: str, warning: bool, text: str
) -> None:
    (note,) = decision_log.notes([action], now=NOON)
    assert (note.reason, note.warning, note.message) == (reason, warning, text)


def test_conditions_that_turn_are_events() -> None:
    fine = pool_status.status(
        owner(), report(pool(member(0), available_min=1)), now=NOON
    ).conditions
    bad = pool_status.status(
        owner(ExporterSetStatus(conditions=fine)),
        report(pool(waiting=9), start_history=failed_once()),
        now=NOON,
    ).conditions
    assert [n.reason for n in pool_status.transitions((), fine)] == ["ExporterSetAvailable"]
    assert [n.reason for n in pool_status.transitions(fine, bad)] == [
        "ExporterSetDegraded",
        "ScalingLimited",
    ]
    assert pool_status.transitions(bad, bad) == ()


# What waiting leases hear


def told(given_pool: Pool, boots: BootTimes = BOOTS) -> str:
    return forecast.message(given_pool, plan(given_pool, now=NOON), boots=boots, now=NOON)


@pytest.mark.parametrize(
    ("given_pool", "text"),
    [
        pytest.param(
            pool(member(0, Phase.STARTING, age_s=0.5), member(1, Phase.STARTING), waiting=3),
            "pool rpi4: 2 of 3 starting, about 4 s",
            id="some are starting",
        ),
        pytest.param(
            pool(waiting=1), "pool rpi4 is starting a member", id="one is about to be started"
        ),
        pytest.param(
            pool(*(member(n, leased=True) for n in range(4)), waiting=1),
            "pool rpi4 has reached its ceiling of 4: waiting for a release",
            id="the ceiling binds",
        ),
        pytest.param(
            pool(member(0, Phase.HELD, detail="the host is full"), waiting=1),
            "pool rpi4: 1 waiting for capacity: the host is full",
            id="there is no room",
        ),
        pytest.param(
            pool(waiting=1, halted="spec.virtualTargetClassName: there is none"),
            "pool rpi4: spec.virtualTargetClassName: there is none",
            id="something is wrong with the set",
        ),
        pytest.param(
            pool(waiting=1, halted="the certificate has expired"),
            "pool rpi4: the certificate has run out",
            id="a word that clients would take for a stale token is avoided",
        ),
    ],
)
def test_a_waiting_lease_hears_what_is_done_and_how_long_it_takes(
    given_pool: Pool, text: str
) -> None:
    assert told(given_pool) == text


def test_no_estimate_is_given_before_a_boot_was_measured() -> None:
    text = told(pool(member(0, Phase.STARTING), waiting=1), boots=UNMEASURED)
    assert text == "pool rpi4: 1 of 1 starting"


def test_a_slow_boot_is_announced_if_it_differs() -> None:
    slow = BootTimes((*[BOOT] * 8, 5 * BOOT, 5 * BOOT))
    text = told(pool(member(0, Phase.STARTING, age_s=0), waiting=1), boots=slow)
    assert text == "pool rpi4: 1 of 1 starting, about 4 s, at times 20 s"


def test_a_crowd_is_told_by_tens_so_that_not_every_boot_rewrites_every_lease() -> None:
    crowd = [member(n, Phase.STARTING, age_s=0) for n in range(97)]
    text = told(pool(*crowd, waiting=97, replicas_max=None))
    assert text == "pool rpi4: about 100 of about 100 starting, about 4 s"


# As demand looks at it


def test_a_pool_offers_demand_what_starts_and_what_room_it_has() -> None:
    crowd = MemberIndex(
        (member(0, Phase.STARTING), member(1, leased=True), member(2, Phase.ENDING))
    )
    member_of_p = Device(labels={})

    def source(members: MemberIndex, ceiling: int | None, *, stalled: bool = False) -> Source:
        return pool_status.source(
            "p", members, member=member_of_p, ceiling=ceiling, stalled=stalled, lead=BOOT
        )

    made = source(crowd, 4)
    assert (made.starting, made.room) == (1, 1)
    assert source(MemberIndex(), None).room is None
    assert source(MemberIndex(), 4, stalled=True).room == 0
