"""What must come true once faults have stopped: the checks fail when it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bullpen.api.kinds.lease import Lease
from bullpen.controllers.leases.lease_retention import LeaseRetentionReconciler
from bullpen.core.exporters import presence
from bullpen.core.exporters.offers import NEVER
from bullpen.core.leases import bookings, lifecycle, scheduler
from bullpen.core.leases.requests import Lab, Request
from bullpen.core.pools import sizes
from bullpen.kit.clock import VirtualClock
from bullpen.runtime.loop import ReconcileLoop
from bullpen.sim import virtual_time
from bullpen.sim.checkers import SINGLE_USE
from bullpen.sim.liveness import served_within, untidy
from bullpen.sim.plan import Home, Plan, Size, plan
from bullpen.sim.run import run
from bullpen.sim.truth import Raw
from bullpen.sim.world import World

QUIET = next(
    found
    for seed in range(1, 100)
    if not (found := plan(seed, Home.EMBEDDED, Size.SMALL)).weather.start_failed
)
ONLINE = [{"type": "Online", "status": "True"}]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def exporter(name: str, *, owner: str = "", notes: Raw | None = None, **said: Any) -> Raw:
    meta: Raw = {"name": name, "namespace": "default", "uid": f"uid-{name}", **(notes or {})}
    if owner:
        meta["ownerReferences"] = [{"uid": owner}]
    return {"kind": "Exporter", "metadata": meta, "status": said}


def pool(ceiling: int, least: int, **said: Any) -> Raw:
    spec = {"maxReplicas": ceiling, "minAvailableReplicas": least}
    return {"metadata": {"name": "pool0", "uid": "uid-pool0"}, "spec": spec, "status": said}


def complaints(*documents: Raw, found: Plan = QUIET) -> list[str]:
    clock = VirtualClock()

    async def look() -> list[str]:
        world = World(found, clock)
        for raw in documents:
            kind = raw.get("kind", "ExporterSet")
            world.truth.objects[kind, "default", raw["metadata"]["name"]] = raw
        return list(untidy(world))

    return virtual_time.run(clock, look())


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        pytest.param(
            (exporter("board0", leaseRef={"name": "a"}),), "is held by a", id="a lease is left"
        ),
        pytest.param(
            (exporter("board0", notes={"deletionTimestamp": "2026-01-01T00:00:00Z"}),),
            "is still going",
            id="an exporter does not go",
        ),
        pytest.param((pool(2, 1),), "0 free members", id="a pool has no buffer"),
        pytest.param(
            (
                pool(2, 1),
                exporter(
                    "pool0-0",
                    owner="uid-pool0",
                    notes={"annotations": {SINGLE_USE: "true"}},
                    conditions=ONLINE,
                    leaseEpoch=1,
                ),
            ),
            "0 free members",
            id="what was used is no buffer",
        ),
        pytest.param(
            (
                pool(1, 0),
                *(exporter(f"pool0-{n}", owner="uid-pool0", conditions=ONLINE) for n in range(2)),
            ),
            "more than it may",
            id="a pool is too large",
        ),
    ],
)
def test_what_is_left_lying_about_is_found(documents: tuple[Raw, ...], said: str) -> None:
    assert said in "; ".join(complaints(*documents))


def test_a_tidy_lab_is_tidy() -> None:
    free = exporter("pool0-0", owner="uid-pool0", conditions=ONLINE)
    assert complaints(pool(2, 1), free, exporter("board0", conditions=ONLINE)) == []


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param({}, 6.0, id="one boot and two seconds"),
        pytest.param(
            {"startFailures": {"retryTime": "2026-01-01T11:00:00Z"}},
            14.0,
            id="after failures one, then two more, then the rest",
        ),
        pytest.param(
            {"startFailures": {"retryTime": "2026-01-01T12:00:30Z"}},
            44.0,
            id="and the pause before",
        ),
    ],
)
def test_leases_of_a_pool_are_promised_in_time(failures: Raw, seconds: float) -> None:
    assert served_within(pool(4, 0, **failures), boot=4.0, now=NOON) == pytest.approx(seconds)


def broken_promise(found: Plan) -> str:
    outcome = run(found)
    assert not outcome.ok
    return outcome.violations[0].promise


def test_a_dead_exporter_that_is_not_noticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GRACE", timedelta(minutes=5))
    assert broken_promise(QUIET) == "once faults stop, the lab converges"


def test_leases_that_are_kept_for_ever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(*_: object) -> None:
        """Forget nothing."""

    monkeypatch.setattr(LeaseRetentionReconciler, "_sweep", keep)
    assert broken_promise(QUIET) in ("ended leases are forgotten", "the lab comes to rest")


def test_a_pool_that_stays_empty_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes.Sizes, "fitting", lambda self, count: 0)
    assert broken_promise(QUIET).startswith("once faults stop")


def test_a_lease_that_goes_on_after_the_clock_was_set_past_its_end_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def notice_nothing(loop: Any) -> None:
        """Wait as if no clock were ever set."""

    monkeypatch.setattr(ReconcileLoop, "_notice_clock_step", notice_nothing)
    assert broken_promise(QUIET) == "a lease ends in time"


def test_a_lease_that_lasts_longer_after_the_clock_was_set_back_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "holds_at_most", lambda lease: None)
    assert broken_promise(QUIET) == "a lease ends in time"


def test_a_board_that_is_booked_and_given_to_another_lease_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "fences", lambda lab: None)
    assert broken_promise(QUIET) == "what is booked is kept"


def test_a_board_that_is_booked_and_stands_idle_until_then_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookings, "ends_at", lambda request, now: NEVER)
    assert broken_promise(QUIET) == "what is booked is kept"


def test_a_request_that_overtakes_an_older_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest_first(lab: Lab, request: Request) -> tuple[float, int, str]:
        return (-request.since.timestamp(), -request.sequence, request.name)

    monkeypatch.setattr(Lab, "turn", newest_first)
    assert broken_promise(QUIET) == "equal requests are served in order"


def test_a_lease_that_lasts_longer_than_its_maximum_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = lifecycle._ends_at
    monkeypatch.setattr(lifecycle, "expires_at", asked)
    held = lifecycle.holds_at_most

    def without_maximum(lease: Lease) -> timedelta | None:
        return held(replace(lease, status=replace(lease.status, maximum_duration=None)))

    monkeypatch.setattr(lifecycle, "holds_at_most", without_maximum)
    assert broken_promise(QUIET) == "a lease ends in time"
