"""Requests for several exporters: all of them or none, compared with a search of all sets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases.access import Policies, Rule
from bullpen.core.leases.requests import (
    Assign,
    Decision,
    Evict,
    Lab,
    Refuse,
    Request,
    Supply,
    Wait,
    Want,
)
from bullpen.core.leases.scheduler import schedule
from bullpen.core.leases.target_set import complete_set, largest_matching
from bullpen.core.matcher import ANY, Device, Matcher
from bullpen.core.pools.demand import Share, Source, share
from bullpen.kit.clock import EPOCH
from bullpen.kit.selectors import EVERYTHING, parse_labels

DUT, PEER = {"role": "dut"}, {"role": "peer"}


def want(name: str, selector: str, count: int = 1) -> Want:
    return Want(name=name, matcher=Matcher(selector=parse_labels(selector)), count=count)


PAIR = (want("dut", "role=dut"), want("peer", "role=peer"))


def request(name: str = "r1", wants: Sequence[Want] = PAIR, age_s: int = 0, **more: str) -> Request:
    return Request(
        name=name,
        client="alice",
        client_labels=more,
        wants=tuple(wants),
        since=EPOCH - timedelta(seconds=age_s),
        duration=timedelta(hours=1),
    )


def decide(
    offers: Sequence[Offer], *requests: Request, policies: Policies | None = None
) -> tuple[Decision, ...]:
    found = OfferIndex(offers)
    return schedule(Lab(offers=found, requests=requests, policies=policies or Policies()))


def granted(decisions: Sequence[Decision]) -> dict[str, list[str]]:
    return {
        decision.request: [grant.exporter for grant in decision.grants]
        for decision in decisions
        if isinstance(decision, Assign)
    }


def test_each_want_gets_its_exporter_under_its_name() -> None:
    offers = (Offer(name="a", labels=PEER), Offer(name="b", labels=DUT))
    (decision,) = decide(offers, request())
    assert isinstance(decision, Assign)
    assert [(g.want, g.exporter) for g in decision.grants] == [("dut", "b"), ("peer", "a")]


def test_a_request_that_lacks_one_exporter_takes_none_and_says_which_want_is_short() -> None:
    offers = (Offer(name="a", labels=DUT), Offer(name="b", labels=PEER, holder="other"))
    decisions = decide(offers, request(), request("r2", PAIR[:1]))
    assert granted(decisions) == {"r2": ["a"]}
    (waiting,) = (d for d in decisions if isinstance(d, Wait))
    assert (waiting.request, waiting.reason) == ("r1", "NotAvailable")
    assert "peer needs 1 of 1 exporter that match" in waiting.message


def test_an_early_want_gives_up_its_favourite_if_a_later_want_needs_it() -> None:
    offers = (Offer(name="a", labels={**DUT, "fast": "1"}), Offer(name="b", labels=DUT))
    wants = (want("any", "role=dut"), want("fast", "fast=1"))
    assert granted(decide(offers, request(wants=wants))) == {"r1": ["b", "a"]}


@pytest.mark.parametrize(
    ("wants", "offers"),
    [
        pytest.param((want("d", "role=dut", 3),), 2, id="one want asks for too many"),
        pytest.param((want("a", "role=dut"), want("b", "role", 2)), 2, id="two wants compete"),
    ],
)
def test_a_request_that_all_exporters_together_cannot_serve_is_refused(
    wants: tuple[Want, ...], offers: int
) -> None:
    held = [Offer(name=f"e{n}", labels=DUT, holder="x") for n in range(offers)]
    (decision,) = decide(held, request(wants=wants))
    assert isinstance(decision, Refuse)
    assert decision.reason == "TooFewExporters"


def test_a_pool_that_could_create_the_missing_exporters_keeps_the_request_waiting() -> None:
    pool = Supply(name="p", member=Device(labels=PEER), message="1 starting")
    lab = Lab(
        offers=OfferIndex((Offer(name="a", labels=DUT),)), requests=(request(),), supplies=(pool,)
    )
    assert schedule(lab) == (Wait(request="r1", reason="Provisioning", message="1 starting"),)


def test_a_refused_want_refuses_the_request() -> None:
    (decision,) = decide((Offer(name="a", labels=DUT),), request())
    assert isinstance(decision, Refuse)
    assert decision.message == "no exporter and no pool matches role=peer"


def test_spot_leases_are_evicted_only_if_that_completes_the_set() -> None:
    spot = Offer(name="a", labels=DUT, holder="guest", holder_spot=True)
    peer = Offer(name="b", labels=PEER)
    assert Evict(lease="guest", exporter="a", by="r1") in decide((spot, peer), request())
    busy = replace(peer, holder="other")
    assert not any(isinstance(d, Evict) for d in decide((spot, busy), request()))


def test_free_exporters_are_kept_while_the_rest_of_the_set_is_winding_down() -> None:
    offers = (Offer(name="a", labels=DUT, idle=False), Offer(name="b", labels=PEER))
    decisions = decide(offers, request(age_s=9), request("later", PAIR[1:]))
    assert granted(decisions) == {}
    stuck = (replace(offers[0], stuck=True), offers[1])
    decisions = decide(stuck, request(age_s=9), request("later", PAIR[1:]))
    assert granted(decisions) == {"later": ["b"]}


def test_the_weakest_right_of_a_request_determines_its_turn() -> None:
    urgent = Matcher(selector=parse_labels("role=dut"))
    rules = tuple(
        Rule(
            exporters=exporters,
            clients=(EVERYTHING,),
            priority=priority,
            maximum=None,
            spot=False,
            description="",
        )
        for exporters, priority in ((ANY, 1), (urgent, 5))
    )
    offers = (Offer(name="a", labels=DUT), Offer(name="b", labels=PEER))
    decisions = decide(
        offers,
        request("pair", age_s=9),
        request("dut-only", PAIR[:1]),
        policies=Policies(enforced=True, rules=rules),
    )
    assert granted(decisions) == {"dut-only": ["a"]}


def test_pools_grow_by_the_exporters_a_request_lacks_and_by_no_others() -> None:
    lab = Lab(
        offers=OfferIndex((Offer(name="a", labels=DUT),)),
        requests=(request(wants=(want("dut", "role=dut"), want("peer", "role=peer", 2))),),
    )
    pools = [Source(name=found["role"], member=Device(labels=found)) for found in (DUT, PEER)]
    found = share(lab, pools, pool_of=lambda _: None, now=EPOCH)
    assert found == {"dut": Share(), "peer": Share(waiting=("r1", "r1"))}


# Compared with a search of all sets


choices_drawn = st.lists(
    st.lists(st.sampled_from("abcde"), unique=True, min_size=1, max_size=3), max_size=4
)


def _sets(choices: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All sets without duplicates, best first: earlier places decide."""
    return (found for found in product(*choices) if len(set(found)) == len(found))


@settings(max_examples=500)
@given(choices_drawn)
@example([["a", "c"], ["b", "d"], ["a", "b"]])
def test_the_complete_set_is_the_first_that_a_search_finds(choices: list[list[str]]) -> None:
    assert complete_set(choices) == next(_sets(choices), None)


@given(choices_drawn)
def test_the_largest_matching_fills_as_many_places_as_a_search(choices: list[list[str]]) -> None:
    found = largest_matching(choices)
    assert all(exporter in choices[place] for exporter, place in found.items())
    optional = [[*names, f"none-{place}"] for place, names in enumerate(choices)]
    filled = max(sum(len(name) == 1 for name in names) for names in _sets(optional))
    assert len(found) == len(set(found.values())) == filled


wants_drawn = st.lists(
    st.builds(
        lambda selector, count: (selector, count),
        st.sampled_from(("role=dut", "role=peer", "role", "rev=1", "role=dut,rev=1")),
        st.sampled_from((1, 1, 1, 2)),
    ),
    min_size=1,
    max_size=3,
).map(lambda found: tuple(want(f"w{n}", *parts) for n, parts in enumerate(found)))
requests_drawn = st.lists(
    st.builds(
        lambda name, wants, age_s, team: request(name, wants, age_s, team=team),
        st.sampled_from([f"r{n}" for n in range(5)]),
        wants_drawn,
        st.integers(0, 3),
        st.sampled_from("ab"),
    ),
    unique_by=lambda r: r.name,
    max_size=5,
)
labels_drawn = st.builds(
    lambda role, rev: {"role": role, "rev": rev},
    st.sampled_from(("dut", "peer")),
    st.sampled_from("12"),
)
names_drawn = st.sampled_from([f"e{n}" for n in range(7)])
steady = st.lists(
    st.builds(
        Offer, name=names_drawn, labels=labels_drawn, holder=st.sampled_from(("", "", "", "x"))
    ),
    unique_by=lambda o: o.name,
    max_size=7,
)
changing = st.lists(
    st.builds(
        Offer,
        name=names_drawn,
        labels=labels_drawn,
        holder=st.sampled_from(("", "", "x")),
        holder_spot=st.booleans(),
        idle=st.booleans(),
        online=st.sampled_from((True, True, False)),
    ),
    unique_by=lambda o: o.name,
    max_size=7,
)
URGENT = Policies(
    enforced=True,
    rules=tuple(
        Rule(
            exporters=ANY,
            clients=(clients,),
            priority=priority,
            maximum=None,
            spot=False,
            description="",
        )
        for clients, priority in ((EVERYTHING, 1), (parse_labels("team=a"), 2))
    ),
)
policies_drawn = st.sampled_from((Policies(), URGENT))


def _searched(
    offers: list[Offer], requests: list[Request], *, urgent: bool
) -> dict[str, list[str]]:
    """Each request in turn takes the first complete set that a search of all sets finds."""
    free = {offer.name: offer for offer in sorted(offers, key=lambda o: o.name) if offer.free}
    found = {}

    def turn(asked: Request) -> tuple[bool, object, str]:
        assert asked.client_labels is not None
        return (urgent and asked.client_labels["team"] != "a", asked.since, asked.name)

    for asked in sorted(requests, key=turn):
        choices = [
            [name for name, offer in free.items() if part.matcher.matches(offer)]
            for part in asked.wants
            for _ in range(part.count)
        ]
        chosen = next(_sets(choices), None)
        if chosen is not None:
            found[asked.name] = list(chosen)
            for name in chosen:
                del free[name]
    return found


@given(steady, requests_drawn, policies_drawn)
def test_the_assignments_are_those_of_a_search_in_queue_order(
    offers: list[Offer], requests: list[Request], policies: Policies
) -> None:
    decisions = decide(offers, *requests, policies=policies)
    # A request without any right to what it asks for comes last; it takes nothing anyway.
    assert granted(decisions) == _searched(offers, requests, urgent=policies is URGENT)


@given(changing, requests_drawn, policies_drawn)
def test_every_request_gets_all_its_exporters_or_none_and_no_exporter_goes_to_two(
    offers: list[Offer], requests: list[Request], policies: Policies
) -> None:
    decisions = decide(offers, *requests, policies=policies)
    by_name = {offer.name: offer for offer in offers}
    sizes = {asked.name: asked.size for asked in requests}
    given_out = granted(decisions)
    assert all(len(names) == sizes[name] for name, names in given_out.items())
    counted = Counter(name for names in given_out.values() for name in names)
    assert set(counted.values()) <= {1}
    assert all(by_name[name].free for name in counted)
    for decision in decisions:
        if isinstance(decision, Assign):
            parts = {part.name: part.matcher for part in request_named(requests, decision).wants}
            assert all(parts[g.want].matches(by_name[g.exporter]) for g in decision.grants)
    answered = Counter(d.request for d in decisions if not isinstance(d, Evict))
    assert answered == Counter(asked.name for asked in requests)


def request_named(requests: list[Request], decision: Assign) -> Request:
    return next(asked for asked in requests if asked.name == decision.request)


@given(changing, requests_drawn, policies_drawn, st.integers())
def test_the_order_in_which_offers_and_requests_are_listed_does_not_matter(
    offers: list[Offer], requests: list[Request], policies: Policies, seed: int
) -> None:
    chance = random.Random(seed)
    shuffled = decide(
        chance.sample(offers, len(offers)),
        *chance.sample(requests, len(requests)),
        policies=policies,
    )
    assert shuffled == decide(offers, *requests, policies=policies)
