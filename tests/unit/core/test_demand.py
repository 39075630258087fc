"""Which waiting leases make which pool grow, one sentence per test."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases.access import Policies, Rule
from bullpen.core.leases.requests import Lab, Request, Want
from bullpen.core.matcher import ANY, Device, Matcher
from bullpen.core.pools.demand import Share, Source, next_booking, share
from bullpen.kit.clock import EPOCH
from bullpen.kit.selectors import parse_labels

NOON = EPOCH + timedelta(hours=12)
QEMU = {"board": "qemu"}


def request(
    name: str = "l1", selector: str = "board=qemu", exporter: str = "", **more: object
) -> Request:
    fields: dict[str, object] = {
        "name": name,
        "client": "alice",
        "client_labels": {"team": "a"},
        "wants": (Want(matcher=Matcher(selector=parse_labels(selector), exporter=exporter)),),
        "since": NOON - timedelta(seconds=1),
        "duration": timedelta(hours=1),
        **more,
    }
    return Request(**fields)  # type: ignore[arg-type]


def source(name: str = "pool", **more: object) -> Source:
    return Source(**{"name": name, "member": Device(labels=QEMU), **more})  # type: ignore[arg-type]


def offer(name: str, **more: object) -> Offer:
    return Offer(**{"name": name, "labels": QEMU, **more})  # type: ignore[arg-type]


def shares(
    requests: tuple[Request, ...],
    *sources: Source,
    offers: tuple[Offer, ...] = (),
    members: dict[str, str] | None = None,
    policies: Policies | None = None,
) -> dict[str, Share]:
    lab = Lab(offers=OfferIndex(offers), requests=requests, policies=policies or Policies())
    return share(lab, sources, pool_of=(members or {}).get, now=NOON)


def test_a_waiting_lease_counts_for_a_pool_that_makes_what_it_asks_for() -> None:
    assert shares((request(),), source())["pool"].waiting == ("l1",)


@pytest.mark.parametrize(
    "given_request",
    [
        pytest.param(request(selector="board=rpi4"), id="it asks for something else"),
        pytest.param(request(exporter="pool-0"), id="it asks for one exporter by name"),
        pytest.param(request(client_labels=None), id="its client does not exist"),
        pytest.param(request(selector=""), id="it asks for nothing"),
        pytest.param(request(begin=NOON + timedelta(minutes=5)), id="it is booked for later"),
    ],
)
def test_a_lease_that_the_pool_cannot_serve_does_not_count(given_request: Request) -> None:
    assert shares((given_request,), source(lead=timedelta(seconds=17))) == {"pool": Share()}


def test_a_lease_that_no_policy_allows_does_not_count() -> None:
    others = Rule(
        exporters=ANY,
        clients=(parse_labels("team=b"),),
        priority=0,
        maximum=None,
        spot=False,
        description="",
    )
    denied = Policies(enforced=True, rules=(others,))
    assert shares((request(),), source(), policies=denied) == {"pool": Share()}


def test_a_booked_lease_counts_as_soon_as_booting_must_begin() -> None:
    booked = request(begin=NOON + timedelta(seconds=10))
    assert shares((booked,), source(lead=timedelta(seconds=9)))["pool"] == Share()
    assert shares((booked,), source(lead=timedelta(seconds=10)))["pool"].waiting == ("l1",)


def test_the_pass_for_a_booked_lease_is_known_before() -> None:
    requests = (request(begin=NOON + timedelta(seconds=60)), request("now"))
    assert next_booking(requests, timedelta(seconds=17), now=NOON) == NOON + timedelta(seconds=43)
    assert next_booking((), timedelta(seconds=17), now=NOON) is None


@pytest.mark.parametrize(
    ("given_offer", "waiting"),
    [
        pytest.param(offer("e1"), (), id="one is free"),
        pytest.param(offer("e1", idle=False), (), id="one winds down and is free in a moment"),
        pytest.param(offer("e1", idle=False, stuck=True), ("l1",), id="one hangs"),
        pytest.param(offer("e1", holder="other"), ("l1",), id="one is leased"),
        pytest.param(offer("e1", enabled=False), ("l1",), id="one is disabled"),
        pytest.param(offer("e1", online=False), ("l1",), id="one is offline"),
        pytest.param(offer("e1", labels={"board": "rpi4"}), ("l1",), id="one does not match"),
    ],
)
def test_a_lease_that_a_free_exporter_will_serve_does_not_grow_a_pool(
    given_offer: Offer, waiting: tuple[str, ...]
) -> None:
    assert shares((request(),), source(), offers=(given_offer,))["pool"].waiting == waiting


def test_a_lease_that_will_have_a_free_member_claims_it() -> None:
    found = shares((request(),), source(), offers=(offer("pool-0"),), members={"pool-0": "pool"})
    assert found["pool"] == Share(claimed=("l1",))


def test_a_physical_exporter_serves_a_lease_without_any_pool() -> None:
    found = shares((request(), request("l2")), source(), offers=(offer("shelf"),))
    assert found["pool"] == Share(waiting=("l2",))


@pytest.mark.parametrize(
    ("sources", "chosen"),
    [
        pytest.param((source("a"), source("b")), "a", id="the first by name"),
        pytest.param((source("a"), source("b", starting=1)), "b", id="where one is starting"),
        pytest.param((source("a", room=0), source("b", room=1)), "b", id="where there is room"),
        pytest.param(
            (source("a", starting=1, room=0), source("b")), "a", id="what starts needs no room"
        ),
        pytest.param((source("a", room=0), source("b", room=0)), "a", id="nobody has room"),
    ],
)
def test_a_lease_that_two_pools_could_serve_counts_for_one(
    sources: tuple[Source, ...], chosen: str
) -> None:
    found = shares((request(),), *sources)
    assert [name for name, got in found.items() if got.waiting] == [chosen]


def test_leases_fill_one_pool_and_then_the_next() -> None:
    five = tuple(request(f"l{n}") for n in range(5))
    found = shares(five, source("a", room=2), source("b", starting=1, room=1))
    assert found["b"].waiting == ("l0", "l3"), "what is starting, later its last place"
    assert found["a"].waiting == ("l1", "l2", "l4"), "its two places, and one that must wait"


selectors = st.sampled_from(("board=qemu", "board=rpi4", "board", "arch=arm64"))
labels = st.sampled_from(({"board": "qemu"}, {"board": "qemu", "arch": "arm64"}, {"board": "rpi4"}))
requests = st.lists(
    st.builds(
        lambda name, selector, age_s: request(
            name, selector, since=NOON - timedelta(seconds=age_s)
        ),
        st.sampled_from([f"l{n}" for n in range(8)]),
        selectors,
        st.integers(-20, 5),
    ),
    unique_by=lambda r: r.name,
    max_size=8,
)
sources_drawn = st.lists(
    st.builds(
        Source,
        name=st.sampled_from(("a", "b", "c")),
        member=labels.map(lambda found: Device(labels=found)),
        starting=st.integers(0, 2),
        room=st.sampled_from((None, 0, 1, 3)),
        lead=st.sampled_from((timedelta(0), timedelta(seconds=15))),
    ),
    unique_by=lambda s: s.name,
    max_size=3,
)
offers_drawn = st.lists(
    st.builds(
        Offer,
        name=st.sampled_from([f"e{n}" for n in range(4)]),
        labels=labels,
        holder=st.sampled_from(("", "", "x")),
        idle=st.booleans(),
    ),
    unique_by=lambda o: o.name,
    max_size=4,
)


@given(requests, sources_drawn, offers_drawn)
def test_no_lease_counts_twice(
    wanted: list[Request], sources: list[Source], offers: list[Offer]
) -> None:
    found = shares(tuple(wanted), *sources, offers=tuple(offers))
    counted = Counter(name for got in found.values() for name in (*got.waiting, *got.claimed))
    assert all(count == 1 for count in counted.values())


@given(requests, sources_drawn)
def test_a_lease_counts_only_where_its_selector_matches(
    wanted: list[Request], sources: list[Source]
) -> None:
    by_name = {request.name: request.wants[0].matcher for request in wanted}
    found = shares(tuple(wanted), *sources)
    for pool in sources:
        assert all(by_name[name].matches(pool.member) for name in found[pool.name].waiting)


@given(requests, sources_drawn, offers_drawn, st.integers())
def test_the_order_things_are_listed_in_does_not_matter(
    wanted: list[Request], sources: list[Source], offers: list[Offer], seed: int
) -> None:
    chance = random.Random(seed)
    one = shares(tuple(wanted), *sources, offers=tuple(offers))
    other = shares(
        tuple(chance.sample(wanted, len(wanted))),
        *chance.sample(sources, len(sources)),
        offers=tuple(chance.sample(offers, len(offers))),
    )
    assert one == other


def test_demand_looks_only_at_exporters_that_a_waiting_lease_could_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One lease waiting beside 2,000 unrelated free exporters cost every pool 139 ms a look."""
    filed: list[str] = []
    real = OfferIndex.put

    def put(self: OfferIndex, given: Offer) -> None:
        filed.append(given.name)
        real(self, given)

    others = tuple(offer(f"other-{n}", labels={"board": "other"}) for n in range(2_000))
    lab = Lab(offers=OfferIndex((*others, offer("mine", idle=False))), requests=(request(),))
    monkeypatch.setattr(OfferIndex, "put", put)
    found = share(lab, (source(),), pool_of={"mine": "pool"}.get, now=NOON)
    assert found["pool"].claimed == ("l1",)
    assert filed == ["mine"]
