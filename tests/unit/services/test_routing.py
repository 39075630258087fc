"""Which router the next stream uses, and when a router counts as gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bullpen.api.kinds.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.api.meta import ObjectMeta
from bullpen.errors import Unavailable
from bullpen.kit.clock import VirtualClock
from bullpen.services.routing import ENDPOINT_ANNOTATION, ROUTER_LABEL, Routers
from bullpen.sim.virtual_time import SkewedClock

LASTS = timedelta(seconds=10)
HOUR = timedelta(hours=1)


def announced(renewed: datetime) -> CoordinationLease:
    return CoordinationLease(
        metadata=ObjectMeta(
            name="router-a",
            namespace="kube-system",
            labels={ROUTER_LABEL: "true"},
            annotations={ENDPOINT_ANNOTATION: "a:1"},
        ),
        spec=CoordinationLeaseSpec(
            lease_duration_seconds=int(LASTS.total_seconds()), renew_time=renewed
        ),
    )


class Seat:
    def __init__(self) -> None:
        self.base = VirtualClock()
        self.clock = SkewedClock(self.base)
        self.routers = Routers(clock=self.clock)

    def is_known(self) -> bool:
        try:
            return self.routers.choose() == "a:1"
        except Unavailable:
            return False


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_router_stays_known_for_its_time_although_the_clock_is_set(step: timedelta) -> None:
    """A clock an hour ahead made every router disappear until it renewed."""
    seat = Seat()
    seat.routers.observe(None, announced(seat.clock.now()))
    seat.clock.jump(step)
    assert seat.is_known()
    seat.base.advance(LASTS)
    assert not seat.is_known()


def test_a_router_whose_clock_is_wrong_is_known_as_long_as_it_renews() -> None:
    seat = Seat()
    seat.routers.observe(None, announced(seat.clock.now() - HOUR))
    assert not seat.is_known(), "found at the start, and old as far as anybody knows"
    old = announced(seat.clock.now() - HOUR)
    new = announced(seat.clock.now() - HOUR + LASTS / 3)
    seat.routers.observe(old, new)
    assert seat.is_known()


def test_a_change_without_a_renewal_does_not_keep_a_router() -> None:
    seat = Seat()
    found = announced(seat.clock.now())
    seat.routers.observe(None, found)
    seat.base.advance(LASTS / 2)
    labelled = replace(
        found, metadata=replace(found.metadata, labels={**found.metadata.labels, "a": "b"})
    )
    seat.routers.observe(found, labelled)
    assert seat.is_known()
    seat.base.advance(LASTS / 2)
    assert not seat.is_known()


def test_a_deleted_announcement_ends_a_router_at_once() -> None:
    seat = Seat()
    found = announced(seat.clock.now())
    seat.routers.observe(None, found)
    seat.routers.observe(found, None)
    assert not seat.is_known()
