"""What is booked is kept from requests that would still hold it then, one sentence per test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.exporterset import SET_UID
from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases.access import OPEN, Policies, Rule
from bullpen.core.leases.requests import (
    Assign,
    Bookings,
    Decision,
    Lab,
    Request,
    RequestIndex,
    Supply,
    Wait,
    Want,
)
from bullpen.core.leases.scheduler import schedule
from bullpen.core.matcher import ANY, Device, Matcher
from bullpen.core.pools.demand import Source, share
from bullpen.kit.clock import EPOCH
from bullpen.kit.selectors import parse_labels

NOON = EPOCH + timedelta(hours=12)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
BOARD = {"board": "x"}
MEMBER = Device(labels={**BOARD, SET_UID: "pool-uid"})


def offer(name: str = "e1", **more: object) -> Offer:
    return Offer(**{"name": name, "labels": BOARD, **more})  # type: ignore[arg-type]


def request(
    name: str, *, selector: str = "board=x", asked: datetime = NOON, **more: object
) -> Request:
    fields: dict[str, object] = {
        "name": name,
        "client": "alice",
        "client_labels": {"team": name},
        "wants": (Want(matcher=Matcher(selector=parse_labels(selector))),),
        "since": asked,
        "duration": HOUR,
        **more,
    }
    return Request(**fields)  # type: ignore[arg-type]


def booking(name: str = "booked", *, begin: datetime = NOON + HOUR, **more: object) -> Request:
    fields: dict[str, object] = {"asked": NOON - HOUR, "begin": begin, **more}
    return request(name, **fields)  # type: ignore[arg-type]


def decided(
    *requests: Request,
    offers: Iterable[Offer] = (offer(),),
    booked: Iterable[Request] = (booking(),),
    ends: Mapping[str, datetime] | None = None,
    policies: Policies = OPEN,
    supplies: tuple[Supply, ...] = (),
) -> dict[str, Decision]:
    lab = Lab(
        offers=OfferIndex(offers),
        requests=requests,
        policies=policies,
        supplies=supplies,
        bookings=Bookings(requests=tuple(booked), ends=ends or {}, now=NOON),
    )
    return {d.request: d for d in schedule(lab) if isinstance(d, Assign | Wait)}


def is_served(decisions: Mapping[str, Decision], name: str = "walk-in") -> bool:
    return isinstance(decisions[name], Assign)


@pytest.mark.parametrize(
    ("duration", "served"),
    [
        pytest.param(HOUR, True, id="it is over when the booking begins"),
        pytest.param(HOUR + MINUTE, False, id="it would be over a minute late"),
        pytest.param(None, False, id="it has no end"),
    ],
)
def test_a_request_gets_what_is_booked_only_if_it_is_over_by_then(
    duration: timedelta | None, served: bool
) -> None:
    assert is_served(decided(request("walk-in", duration=duration))) is served


def test_the_waiting_request_is_told_until_when_and_what_would_fit() -> None:
    waits = decided(request("walk-in", duration=2 * HOUR))["walk-in"]
    assert isinstance(waits, Wait)
    assert waits.reason == "Booked"
    assert waits.message == (
        "position 1 in the queue: what is free is booked from 2026-01-01T13:00:00Z"
        " to 2026-01-01T14:00:00Z; a lease that ends before 2026-01-01T13:00:00Z can have it now"
    )


def test_shorter_work_overtakes_a_request_that_waits_for_a_booking() -> None:
    decisions = decided(
        request("long", asked=NOON - MINUTE, duration=2 * HOUR), request("short", duration=MINUTE)
    )
    assert not is_served(decisions, "long")
    assert is_served(decisions, "short")


def test_a_request_that_was_made_before_the_booking_goes_first() -> None:
    """Nobody gets to the front of the queue by booking the next second."""
    earlier = request("walk-in", asked=NOON - 2 * HOUR, duration=None)
    assert is_served(decided(earlier, booked=(booking(begin=NOON + timedelta(seconds=1)),)))


def test_a_booking_takes_one_exporter_and_leaves_the_others() -> None:
    two = (offer("e1"), offer("e2"))
    requests = (request("first", duration=None), request("walk-in", duration=None))
    decisions = decided(*requests, offers=two)
    assert is_served(decisions, "first")
    assert not is_served(decisions)


def test_an_exporter_that_becomes_free_in_time_serves_the_booking() -> None:
    offers = (offer("e1"), offer("e2", holder="other"))
    walk_in = request("walk-in", duration=None)
    assert is_served(decided(walk_in, offers=offers, ends={"other": NOON + HOUR}))
    assert not is_served(decided(walk_in, offers=offers, ends={"other": NOON + 2 * HOUR}))
    assert not is_served(decided(walk_in, offers=offers)), "the other lease has no end"


def test_an_exporter_that_is_not_online_keeps_no_other_free() -> None:
    offers = (offer("e1"), offer("e2", online=False))
    assert not is_served(decided(request("walk-in", duration=None), offers=offers))


def test_two_bookings_one_after_the_other_need_one_exporter() -> None:
    booked = (booking("a"), booking("b", begin=NOON + 2 * HOUR))
    walk_in = request("walk-in", duration=None)
    assert is_served(decided(walk_in, offers=(offer("e1"), offer("e2")), booked=booked))
    both = (booking("a"), booking("b", begin=NOON + HOUR + MINUTE))
    assert not is_served(decided(walk_in, offers=(offer("e1"), offer("e2")), booked=both))


def test_a_booking_moves_when_another_exporter_will_do() -> None:
    """The booking is placed on e2, which is the only one that the request can use."""
    offers = (offer("e1"), offer("e2", labels={**BOARD, "usb": "yes"}))
    walk_in = request("walk-in", selector="usb=yes", duration=None)
    found = decided(walk_in, offers=offers)
    assert is_served(found)
    stays = booking(selector="board=x,usb=yes")
    assert not is_served(decided(walk_in, offers=offers, booked=(stays,)))


def test_a_better_right_is_not_kept_out() -> None:
    def rule(team: str, **more: object) -> Rule:
        fields: dict[str, object] = {
            "exporters": ANY,
            "clients": (parse_labels(f"team={team}"),),
            "priority": 0,
            "maximum": None,
            "spot": False,
            "description": "",
            **more,
        }
        return Rule(**fields)  # type: ignore[arg-type]

    def served(walk_in: Rule, booked: Rule) -> bool:
        policies = Policies(enforced=True, rules=(walk_in, booked))
        return is_served(decided(request("walk-in", duration=None), policies=policies))

    assert not served(rule("walk-in"), rule("booked"))
    assert served(rule("walk-in", priority=9), rule("booked"))
    assert not served(rule("walk-in"), rule("booked", priority=9))
    assert served(rule("walk-in"), rule("booked", spot=True))


@pytest.mark.parametrize(
    ("ceiling", "served"),
    [
        pytest.param(None, True, id="without a limit"),
        pytest.param(2, True, id="with room for one more"),
        pytest.param(1, False, id="at its ceiling"),
        pytest.param(0, False, id="that creates nothing"),
    ],
)
def test_a_pool_that_can_create_another_exporter_serves_the_booking(
    ceiling: int | None, served: bool
) -> None:
    member = offer(labels=MEMBER.labels)
    pool = Supply(name="pool", member=MEMBER, ceiling=ceiling)
    found = decided(request("walk-in", duration=None), offers=(member,), supplies=(pool,))
    assert is_served(found) is served


def test_the_last_place_of_a_pool_is_kept_and_the_request_is_told() -> None:
    pool = Supply(name="pool", member=MEMBER, ceiling=2)
    held = offer(labels=MEMBER.labels, holder="other")
    waits = decided(request("walk-in", duration=None), offers=(held,), supplies=(pool,))["walk-in"]
    assert isinstance(waits, Wait)
    assert waits.reason == "Booked"


@pytest.mark.parametrize(
    ("duration", "waiting"), [(None, ()), (HOUR, ("walk-in",))], ids=["too long", "short enough"]
)
def test_a_pool_does_not_start_its_last_member_for_a_request_that_is_kept_out(
    duration: timedelta | None, waiting: tuple[str, ...]
) -> None:
    booked, walk_in = booking(), request("walk-in", duration=duration)
    lab = Lab(
        offers=OfferIndex((offer(holder="other"),)),
        requests=(booked, walk_in),
        bookings=Bookings(requests=(booked,), ends={}, now=NOON),
    )
    pool = Source(name="pool", member=MEMBER, room=1, lead=MINUTE)
    shares = share(lab, (pool,), pool_of=lambda exporter: None, now=NOON)
    assert shares["pool"].waiting == waiting


def test_a_cancelled_booking_makes_waiting_requests_look_again() -> None:
    index = RequestIndex()
    index.put(request("walk-in", duration=None))
    index.take()
    index.book(booking())
    assert index.take() == (), "it takes nothing from those that wait"
    index.remove("booked")
    assert [found.name for found in index.take()] == ["walk-in"]


def test_a_changed_end_of_a_lease_makes_waiting_requests_look_again() -> None:
    index = RequestIndex()
    index.put(request("walk-in", duration=None))
    index.take()
    index.ends_changed(offer())
    assert index.take() == (), "nothing is booked"
    index.book(booking())
    index.ends_changed(offer())
    assert [found.name for found in index.take()] == ["walk-in"]


@given(
    exporters=st.integers(1, 4),
    begins=st.lists(st.integers(1, 6), max_size=5),
    walk_ins=st.lists(st.one_of(st.none(), st.integers(1, 8)), min_size=1, max_size=5),
)
def test_what_could_be_served_at_its_time_still_can_after_the_pass(
    exporters: int, begins: list[int], walk_ins: list[int | None]
) -> None:
    """With exporters that are all alike it is enough to count them."""
    booked = [booking(f"b{n}", begin=NOON + at * HOUR) for n, at in enumerate(begins)]
    requests = [
        request(f"w{n}", duration=None if hours is None else hours * HOUR)
        for n, hours in enumerate(walk_ins)
    ]
    decisions = decided(*requests, offers=[offer(f"e{n}") for n in range(exporters)], booked=booked)
    served = [r for r in requests if is_served(decisions, r.name)]
    for hour in range(9):
        moment = NOON + hour * HOUR
        wanted = sum(b.begin is not None and b.begin <= moment < b.begin + HOUR for b in booked)
        held = sum(r.duration is None or NOON + r.duration > moment for r in served)
        assert held + min(wanted, exporters) <= exporters
    if not all(is_served(decisions, r.name) for r in requests):
        shortest = min(
            (r for r in requests if r not in served), key=lambda r: r.duration or 99 * HOUR
        )
        idle = exporters - len(served)
        soonest = min((b.begin for b in booked if b.begin), default=None)
        fits = soonest is None or (shortest.duration and NOON + shortest.duration <= soonest)
        assert not (idle and fits), "what ends before every booking is not kept out"


class CountingOffers(OfferIndex):
    """Counts the offers that are looked at one by one."""

    looked_at = 0

    def enabled(self, matcher: Matcher) -> Iterator[Offer]:
        for found in super().enabled(matcher):
            self.looked_at += 1
            yield found


@pytest.mark.parametrize(
    ("count", "duration", "looks"),
    [
        pytest.param(0, None, 0, id="nothing is booked"),
        pytest.param(50, HOUR, 0, id="the request is over before all of it"),
        pytest.param(50, None, 1, id="bookings of many clients"),
    ],
)
def test_a_pass_looks_at_each_exporter_once_and_only_if_a_booking_matters(
    count: int, duration: timedelta | None, looks: int
) -> None:
    """Fifty clients that booked made a pass look at every exporter fifty times."""
    offers = CountingOffers(offer(f"e{n}") for n in range(200))
    booked = tuple(booking(f"b{n}", begin=NOON + HOUR + n * MINUTE) for n in range(count))
    lab = Lab(
        offers=offers,
        requests=(request("walk-in", duration=duration),),
        bookings=Bookings(requests=booked, ends={}, now=NOON) if booked else None,
    )
    assert isinstance(schedule(lab)[0], Assign)
    assert offers.looked_at == looks * 200
