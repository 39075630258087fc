"""Who gets which exporter, one sentence per test."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases.access import Approval, Policies, Rule
from bullpen.core.leases.requests import (
    Assign,
    Decision,
    Evict,
    Grant,
    Lab,
    Refuse,
    Request,
    Supply,
    Wait,
    Want,
)
from bullpen.core.leases.scheduler import schedule
from bullpen.core.matcher import ANY, Device, Matcher
from bullpen.kit.clock import EPOCH
from bullpen.kit.selectors import EVERYTHING, parse_labels

RPI = {"board": "rpi4"}
HOUR = timedelta(hours=1)


def offer(name: str = "e1", **overrides: object) -> Offer:
    return Offer(**{"name": name, "labels": RPI, **overrides})  # type: ignore[arg-type]


def a_lab(*, offers: Iterable[Offer], requests: Iterable[Request], **more: Any) -> Lab:
    return Lab(offers=OfferIndex(offers), requests=tuple(requests), **more)


def matching(selector: str, exporter: str = "") -> Matcher:
    return Matcher(selector=parse_labels(selector), exporter=exporter)


def request(
    name: str = "l1",
    selector: str = "board=rpi4",
    age_s: int = 0,
    *,
    exporter: str = "",
    **more: object,
) -> Request:
    fields: dict[str, object] = {
        "name": name,
        "client": "alice",
        "client_labels": {"team": "a"},
        "wants": (Want(matcher=matching(selector, exporter)),),
        "since": EPOCH - timedelta(seconds=age_s),
        "duration": HOUR,
        **more,
    }
    return Request(**fields)  # type: ignore[arg-type]


def rule(**overrides: object) -> Rule:
    fields: dict[str, object] = {
        "exporters": ANY,
        "clients": (EVERYTHING,),
        "priority": 0,
        "maximum": None,
        "spot": False,
        "description": "",
        **overrides,
    }
    return Rule(**fields)  # type: ignore[arg-type]


def enforced(*rules: Rule) -> Policies:
    return Policies(enforced=True, rules=rules)


def assigned(lease: str, exporter: str) -> Assign:
    grant = Grant(exporter=exporter, approval=Approval())
    return Assign(request=lease, grants=(grant,))


def granted(decisions: Iterable[Decision]) -> list[str]:
    return [g.exporter for d in decisions if isinstance(d, Assign) for g in d.grants]


def test_a_free_matching_exporter_is_assigned() -> None:
    lab = a_lab(offers=(offer(),), requests=(request(),))
    assert schedule(lab) == (assigned("l1", "e1"),)


def test_the_oldest_request_is_served_first() -> None:
    lab = a_lab(offers=(offer(),), requests=(request("young", age_s=1), request("old", age_s=9)))
    first, second = schedule(lab)
    assert first == assigned("old", "e1")
    assert isinstance(second, Wait)
    assert (second.request, second.reason) == ("young", "NotAvailable")


def test_requests_of_the_same_moment_are_served_by_name() -> None:
    lab = a_lab(offers=(offer(),), requests=(request("b"), request("a")))
    assert schedule(lab)[0] == assigned("a", "e1")


def test_a_later_request_does_not_wait_for_one_that_wants_something_else() -> None:
    lab = a_lab(
        offers=(offer("e1", holder="x"), offer("e2", labels={"board": "imx8"})),
        requests=(request("first", age_s=9), request("second", "board=imx8")),
    )
    assert assigned("second", "e2") in schedule(lab)


@pytest.mark.parametrize(
    ("given_offer", "reason"),
    [
        pytest.param(offer(online=False), "Offline", id="none online"),
        pytest.param(offer(holder="other"), "NotAvailable", id="all leased"),
        pytest.param(offer(idle=False), "NotReady", id="free but still winding down"),
    ],
)
def test_a_request_that_must_wait_says_why_and_where_it_stands(
    given_offer: Offer, reason: str
) -> None:
    (decision,) = schedule(a_lab(offers=(given_offer,), requests=(request(),)))
    assert isinstance(decision, Wait)
    assert decision.reason == reason
    assert decision.message.startswith("position 1 in the queue: 1 exporter match")


def test_positions_count_up_along_one_queue() -> None:
    lab = a_lab(
        offers=(offer(holder="x"),),
        requests=(request("a", age_s=3), request("b", age_s=2), request("c", age_s=1)),
    )
    messages = [d.message.split(" in ")[0] for d in schedule(lab) if isinstance(d, Wait)]
    assert messages == ["position 1", "position 2", "position 3"]


@pytest.mark.parametrize(
    ("given_request", "offers", "reason"),
    [
        pytest.param(request("l", ""), (offer(),), "InvalidSelector", id="asks for nothing"),
        pytest.param(request(selector="board=none"), (offer(),), "NoAccess", id="nothing matches"),
        pytest.param(request(), (offer(enabled=False),), "AllDisabled", id="all are disabled"),
        pytest.param(
            request(selector="", exporter="gone"), (offer(),), "ExporterNotFound", id="no such name"
        ),
        pytest.param(
            request(selector="board=x", exporter="e1"),
            (offer(),),
            "SelectorMismatch",
            id="the named one does not match",
        ),
        pytest.param(
            request(selector="", exporter="e1"),
            (offer(enabled=False),),
            "ExporterDisabled",
            id="the named one is disabled",
        ),
        pytest.param(
            request(client_labels=None), (offer(),), "NoAccess", id="the client does not exist"
        ),
    ],
)
def test_a_request_nothing_can_serve_is_refused(
    given_request: Request, offers: tuple[Offer, ...], reason: str
) -> None:
    (decision,) = schedule(a_lab(offers=offers, requests=(given_request,)))
    assert isinstance(decision, Refuse)
    assert decision.reason == reason


def test_a_disabled_exporter_can_be_had_by_name_when_allowed() -> None:
    wanted = request(selector="", exporter="e1", allow_disabled=True)
    assert schedule(a_lab(offers=(offer(enabled=False),), requests=(wanted,))) == (
        assigned("l1", "e1"),
    )


def test_an_empty_pool_that_matches_keeps_the_lease_waiting() -> None:
    supply = Supply(name="pool", member=Device(labels=RPI), message="1 starting, about 4 s")
    (decision,) = schedule(a_lab(offers=(), requests=(request(),), supplies=(supply,)))
    assert decision == Wait(request="l1", reason="Provisioning", message="1 starting, about 4 s")


def test_a_pool_of_other_labels_does_not_help() -> None:
    supply = Supply(name="pool", member=Device(labels={"board": "imx8"}))
    (decision,) = schedule(a_lab(offers=(), requests=(request(),), supplies=(supply,)))
    assert isinstance(decision, Refuse)


def test_any_policy_makes_the_namespace_deny_by_default() -> None:
    closed = rule(clients=(), description="ask the lab team")
    lab = a_lab(offers=(offer(),), requests=(request(),), policies=enforced(closed))
    (decision,) = schedule(lab)
    assert isinstance(decision, Refuse)
    assert decision.reason == "NoAccess"
    assert "ask the lab team" in decision.message


def test_a_lease_that_is_too_long_is_told_how_long_it_may_be() -> None:
    short = rule(maximum=timedelta(minutes=30))
    lab = a_lab(offers=(offer(),), requests=(request(),), policies=enforced(short))
    (decision,) = schedule(lab)
    assert isinstance(decision, Refuse)
    assert "at most 30m0s" in decision.message


def test_a_higher_priority_is_served_before_an_older_request() -> None:
    urgent = rule(clients=(parse_labels("team=b"),), priority=10)
    lab = a_lab(
        offers=(offer(),),
        requests=(request("old", age_s=99), request("urgent", client_labels={"team": "b"})),
        policies=enforced(rule(), urgent),
    )
    first = schedule(lab)[0]
    assert isinstance(first, Assign)
    assert first.request == "urgent"
    assert first.grants[0].approval.priority == 10


def test_the_exporter_with_the_higher_priority_is_preferred() -> None:
    lab = a_lab(
        offers=(offer("a"), offer("b", labels={**RPI, "fast": "yes"})),
        requests=(request(),),
        policies=enforced(rule(), rule(exporters=matching("fast=yes"), priority=5)),
    )
    (decision,) = schedule(lab)
    assert isinstance(decision, Assign)
    assert decision.grants[0].exporter == "b"


def test_a_lasting_right_evicts_a_spot_lease() -> None:
    held = offer(holder="guest", holder_spot=True)
    decisions = schedule(a_lab(offers=(held,), requests=(request(),)))
    assert decisions[0] == Evict(lease="guest", exporter="e1", by="l1")
    assert isinstance(decisions[1], Wait)


def test_a_spot_right_evicts_no_lease() -> None:
    held = offer(holder="guest", holder_spot=True)
    lab = a_lab(offers=(held,), requests=(request(),), policies=enforced(rule(spot=True)))
    assert [type(d) for d in schedule(lab)] == [Wait]


def test_one_spot_lease_is_evicted_for_one_request_only() -> None:
    held = offer(holder="guest", holder_spot=True)
    decisions = schedule(a_lab(offers=(held,), requests=(request("a"), request("b"))))
    assert sorted(type(d).__name__ for d in decisions) == ["Evict", "Wait", "Wait"]


def test_a_request_waits_for_what_is_winding_down_instead_of_evicting_a_second_lease() -> None:
    """The pass after an eviction: the exporter is free of its lease but not yet ready."""
    freed, other = offer("e1", idle=False), offer("e2", holder="guest", holder_spot=True)
    decisions = schedule(a_lab(offers=(freed, other), requests=(request(),)))
    assert [type(d) for d in decisions] == [Wait]


def test_what_winds_down_is_promised_to_one_request_only() -> None:
    freed, other = offer("e1", idle=False), offer("e2", holder="guest", holder_spot=True)
    decisions = schedule(a_lab(offers=(freed, other), requests=(request("a"), request("b"))))
    assert [type(d).__name__ for d in decisions] == ["Wait", "Evict", "Wait"]


def test_no_request_counts_on_an_exporter_that_is_stuck() -> None:
    hung = offer("e1", idle=False, stuck=True)
    other = offer("e2", holder="guest", holder_spot=True)
    decisions = schedule(a_lab(offers=(hung, other), requests=(request(),)))
    assert decisions[0] == Evict(lease="guest", exporter="e2", by="l1")


@pytest.mark.parametrize(
    ("offers", "text"),
    [
        pytest.param((offer(holder="x"),), "1 exporter matches, it is in use", id="one in use"),
        pytest.param(
            (offer("a", holder="x"), offer("b", holder="y")),
            "2 exporters match, all are in use",
            id="two in use",
        ),
        pytest.param(
            (offer("a", holder="x"), offer("b", online=False)),
            "2 exporters match, all online ones are in use",
            id="one in use, one away",
        ),
        pytest.param(
            tuple(offer(f"e{n}", holder="x", online=n > 0) for n in range(12)),
            "about 20 exporters match, all online ones are in use",
            id="many in use, one away",
        ),
        pytest.param(
            (offer(online=False),), "1 exporter matches, but it is not online", id="one away"
        ),
        pytest.param(
            (offer("a", online=False), offer("b", online=False)),
            "2 exporters match, but none is online",
            id="two away",
        ),
        pytest.param(
            (offer(idle=False),), "1 exporter matches, but it is not ready yet", id="one busy"
        ),
        pytest.param(
            (offer("a", idle=False), offer("b", holder="x")),
            "2 exporters match, but none is ready yet",
            id="one busy, one in use",
        ),
    ],
)
def test_what_a_waiting_client_reads(offers: tuple[Offer, ...], text: str) -> None:
    (decision,) = schedule(a_lab(offers=offers, requests=(request(),)))
    assert isinstance(decision, Wait)
    assert decision.message == f"position 1 in the queue: {text}"


def test_a_release_changes_the_message_of_the_request_it_serves_alone() -> None:
    """Otherwise each release would be written to every lease of a long queue, twice."""
    busy = (offer("a", holder="x"), offer("b", holder="y"), offer("c", holder="z"))
    queue = tuple(request(f"l{n}", sequence=n) for n in range(10))
    before = schedule(a_lab(offers=busy, requests=queue))
    after = schedule(a_lab(offers=(offer("a", idle=False), *busy[1:]), requests=queue))
    assert after[1:] == before[1:]
    assert isinstance(after[0], Wait)
    assert after[0].reason == "NotReady"


selectors = st.sampled_from(("board=rpi4", "board=imx8", "board", "!board", "board in (rpi4,imx8)"))
labels = st.sampled_from(({"board": "rpi4"}, {"board": "imx8"}, {}))
offers = st.lists(
    st.builds(
        Offer,
        name=st.sampled_from([f"e{i}" for i in range(6)]),
        labels=labels,
        enabled=st.sampled_from((True, True, False)),
        online=st.sampled_from((True, True, False)),
        idle=st.sampled_from((True, True, False)),
        holder=st.sampled_from(("", "", "held")),
        holder_spot=st.booleans(),
    ),
    unique_by=lambda o: o.name,
    max_size=6,
)
requests = st.lists(
    st.builds(
        request,
        st.sampled_from([f"l{i}" for i in range(8)]),
        selectors,
        st.integers(0, 5),
    ),
    unique_by=lambda r: r.name,
    max_size=8,
)
rules = st.lists(
    st.builds(rule, priority=st.integers(0, 2), spot=st.booleans(), exporters=st.just(ANY)),
    max_size=2,
)
labs = st.builds(
    lambda o, r, p: a_lab(
        offers=tuple(o), requests=tuple(r), policies=Policies(enforced=bool(p), rules=tuple(p))
    ),
    offers,
    requests,
    rules,
)


@given(labs)
def test_no_exporter_is_given_twice_and_none_that_is_not_free(lab: Lab) -> None:
    given_out = granted(schedule(lab))
    free = {o.name for o in lab.offers if o.free and o.enabled}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free


@given(labs)
def test_every_request_gets_exactly_one_answer(lab: Lab) -> None:
    answered = Counter(d.request for d in schedule(lab) if not isinstance(d, Evict))
    assert answered == Counter(r.name for r in lab.requests)


@given(labs, st.integers())
def test_the_order_in_which_things_are_listed_does_not_matter(lab: Lab, seed: int) -> None:
    chance = random.Random(seed)
    shuffled = a_lab(
        offers=tuple(chance.sample(list(lab.offers), len(lab.offers))),
        requests=tuple(chance.sample(lab.requests, len(lab.requests))),
        policies=lab.policies,
    )
    assert schedule(shuffled) == schedule(lab)


@given(labs)
def test_no_request_waits_while_a_free_exporter_matches(lab: Lab) -> None:
    decisions = schedule(lab)
    given_out = granted(decisions)
    waiting = {d.request for d in decisions if isinstance(d, Wait)}
    left = [o for o in lab.offers if o.free and o.enabled and o.name not in given_out]
    for wanted in lab.requests:
        if wanted.name in waiting and (not lab.policies.enforced or lab.policies.rules):
            assert not any(wanted.wants[0].matcher.matches(o) for o in left)


@given(labs)
def test_only_spot_leases_are_evicted(lab: Lab) -> None:
    spot = {o.name for o in lab.offers if o.holder and o.holder_spot}
    assert {d.exporter for d in schedule(lab) if isinstance(d, Evict)} <= spot


def refusal(lab: Lab) -> Refuse:
    (found,) = schedule(lab)
    assert isinstance(found, Refuse)
    return found


def test_a_refusal_without_a_policy_says_for_how_many_exporters() -> None:
    elsewhere = enforced(rule(exporters=matching("board=imx8")))
    named = request(exporter="e1")
    lab = a_lab(offers=(offer(), offer("e2")), requests=(named,), policies=elsewhere)
    assert refusal(lab).message == "no policy gives alice access to exporter e1"
    lab = a_lab(offers=(offer(), offer("e2")), requests=(request(),), policies=elsewhere)
    assert refusal(lab).message == (
        "no policy gives alice access to any of the 2 exporters that match"
    )
