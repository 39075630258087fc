"""Deciding the requests that a change affects gives the same result as deciding all requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Policies, Rule
from bullpen.core.leases.requests import (
    Assign,
    Decision,
    Evict,
    Lab,
    Refuse,
    Request,
    RequestIndex,
    Supply,
    Wait,
    Want,
)
from bullpen.core.leases.scheduler import schedule
from bullpen.core.matcher import ANY, Device, Matcher
from bullpen.kit.selectors import EVERYTHING, parse_labels

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOARDS = ("a", "b", "c")
SELECTORS = ("board=a", "board=b", "board=c", "board in (a, b)", "rev=1", "board=a,rev=1")
POLICY = Policies(
    enforced=True,
    rules=(
        Rule(
            exporters=ANY,
            clients=(EVERYTHING,),
            priority=0,
            maximum=None,
            spot=False,
            description="",
        ),
    ),
)


def asking(name: str, *selectors: str, exporter: str = "") -> Request:
    """A request with a want for each selector; without any, for the exporter alone."""
    matchers = [
        Matcher(selector=parse_labels(text), exporter=exporter) for text in selectors or ("",)
    ]
    return Request(
        name=name,
        client="me",
        client_labels={},
        wants=tuple(Want(matcher=m, name=str(n)) for n, m in enumerate(matchers)),
        since=NOW,
        duration=timedelta(hours=1),
    )


def board(name: str, kind: str = "a", *, online: bool = True) -> Offer:
    return Offer(name=name, labels={"board": kind}, online=online)


def names(waiting: RequestIndex) -> list[str]:
    return sorted(request.name for request in waiting.take())


@pytest.fixture
def waiting() -> RequestIndex:
    """A decided request for each of two boards."""
    made = RequestIndex()
    for request in (asking("for-a", "board=a"), asking("for-b", "board=b")):
        made.put(request)
    assert names(made) == ["for-a", "for-b"]
    return made


def test_no_request_is_decided_again_when_nothing_changed(waiting: RequestIndex) -> None:
    waiting.put(asking("for-a", "board=a"))
    waiting.under(access.OPEN, ())
    waiting.offered(board("e"), board("e"))
    assert names(waiting) == []


def test_a_change_of_an_exporter_affects_the_requests_that_match_it(waiting: RequestIndex) -> None:
    waiting.offered(board("e", online=False), board("e"))
    assert names(waiting) == ["for-a"]


def test_a_change_of_labels_also_affects_requests_that_matched_the_old_ones(
    waiting: RequestIndex,
) -> None:
    waiting.offered(board("e", "a"), board("e", "b"))
    assert names(waiting) == ["for-a", "for-b"]


def test_a_new_request_affects_the_requests_it_may_be_served_before(waiting: RequestIndex) -> None:
    waiting.put(asking("new", "board=b,rev=1"))
    assert names(waiting) == ["for-b", "new"]


def test_a_request_that_leaves_moves_the_others_up(waiting: RequestIndex) -> None:
    waiting.put(asking("behind", "board=a"))
    waiting.take()
    waiting.remove("for-a")
    assert names(waiting) == ["behind"]
    assert len(waiting) == 2


def test_groups_that_share_no_exporter_are_joined_by_one_that_shares_with_both(
    waiting: RequestIndex,
) -> None:
    waiting.put(asking("either", "board in (a, b)"))
    waiting.take()
    waiting.offered(None, board("e", "a"))
    assert names(waiting) == ["either", "for-a", "for-b"]


def test_a_change_of_an_exporter_does_not_affect_requests_that_name_another() -> None:
    waiting = RequestIndex()
    waiting.put(asking("this", exporter="this"))
    waiting.put(asking("that", exporter="that"))
    waiting.take()
    waiting.offered(None, board("this"))
    assert names(waiting) == ["this"]


def test_the_message_of_a_pool_affects_the_requests_it_could_serve(waiting: RequestIndex) -> None:
    pool = Supply(name="p", member=Device(labels={"board": "b"}), message="soon")
    waiting.under(access.OPEN, (pool,))
    assert names(waiting) == ["for-b"]
    waiting.under(access.OPEN, ())
    assert names(waiting) == ["for-b"]


def test_a_change_of_policies_affects_all_requests(waiting: RequestIndex) -> None:
    waiting.under(POLICY, ())
    assert names(waiting) == ["for-a", "for-b"]


def test_a_pass_that_could_not_finish_gets_all_requests_again(waiting: RequestIndex) -> None:
    waiting.everything()
    assert names(waiting) == ["for-a", "for-b"]


def test_a_new_request_that_is_served_at_once_affects_no_other_request(
    waiting: RequestIndex,
) -> None:
    waiting.put(asking("new", "board=a"))
    assert [request.name for request in waiting.newcomers()] == ["new"]
    waiting.served(["new"])
    assert names(waiting) == []
    waiting.remove("new")
    assert names(waiting) == []


def test_a_new_request_without_a_free_exporter_affects_the_requests_before_it(
    waiting: RequestIndex,
) -> None:
    waiting.put(asking("new", "board=a"))
    assert [request.name for request in waiting.newcomers()] == ["new"]
    assert names(waiting) == ["for-a", "new"]
    waiting.remove("new")
    assert names(waiting) == ["for-a"], "it was told of the newcomer"


def test_a_new_request_is_decided_with_the_others_if_something_else_changed(
    waiting: RequestIndex,
) -> None:
    waiting.offered(None, board("e1"))
    waiting.put(asking("new", "board=a"))
    assert waiting.newcomers() == ()
    assert names(waiting) == ["for-a", "new"]


def test_a_request_whose_assignment_failed_is_decided_again(waiting: RequestIndex) -> None:
    waiting.put(asking("new", "board=a"))
    waiting.served(["new"])
    waiting.put(asking("new", "board=a"))
    waiting.everything()
    assert names(waiting) == ["for-a", "for-b", "new"]


class AllAndAffectedRequests(RuleBasedStateMachine):
    """Two labs with the same changes: one decides all requests, one the affected requests."""

    def __init__(self) -> None:
        super().__init__()
        self.stock = OfferIndex()
        self.waiting = RequestIndex()
        self.requests: dict[str, Request] = {}
        self.told: dict[str, Wait] = {}
        self.policies = access.OPEN
        self.supplies: tuple[Supply, ...] = ()
        self.count = 0

    @rule(
        selectors=st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=2),
        pinned=st.sampled_from(("", "", "", "e0")),
    )
    def a_client_asks(self, selectors: list[str], pinned: str) -> None:
        self.count += 1
        request = replace(
            asking(f"l{self.count:03}", *selectors, exporter=pinned),
            since=NOW + timedelta(seconds=self.count),
        )
        self.requests[request.name] = request
        self.waiting.put(request)

    @rule(pick=st.integers(0, 5))
    def a_client_leaves(self, pick: int) -> None:
        self._forget(sorted(self.requests)[pick : pick + 1])

    @rule(
        number=st.integers(0, 4),
        kind=st.sampled_from(BOARDS),
        rev=st.sampled_from(("1", "2")),
        online=st.booleans(),
        idle=st.booleans(),
        enabled=st.booleans(),
        held=st.booleans(),
    )
    def an_exporter_changes(
        self, number: int, kind: str, rev: str, online: bool, idle: bool, enabled: bool, held: bool
    ) -> None:
        self._offer(
            Offer(
                name=f"e{number}",
                labels={"board": kind, "rev": rev},
                online=online,
                idle=idle,
                enabled=enabled,
                holder="other" if held else "",
                holder_spot=rev == "1",
            )
        )

    @rule(policies=st.sampled_from((access.OPEN, POLICY)), kind=st.sampled_from(("", *BOARDS)))
    def conditions_change(self, policies: Policies, kind: str) -> None:
        self.policies = policies
        pool = Supply(name="p", member=Device(labels={"board": kind}), message=f"{self.count} s")
        self.supplies = (pool,) if kind else ()

    @invariant()
    def both_give_the_same_decisions(self) -> None:
        self.waiting.under(self.policies, self.supplies)
        wanted = schedule(self._lab(tuple(self.requests.values())))
        new = schedule(self._lab(self.waiting.newcomers()))
        at_once = tuple(d for d in new if isinstance(d, Assign))
        self.waiting.served(d.request for d in at_once)
        self._carry_out(at_once)
        rest = schedule(self._lab(self.waiting.take()))
        found = at_once + rest
        for decision in found:
            if isinstance(decision, Wait):
                self.told[decision.request] = decision
            elif not isinstance(decision, Evict):
                self.told.pop(decision.request, None)
        assert {d for d in wanted if not isinstance(d, Wait)} == {
            d for d in found if not isinstance(d, Wait)
        }
        assert {d.request: d for d in wanted if isinstance(d, Wait)} == self.told
        self._carry_out(rest)
        self._forget([d.request for d in found if isinstance(d, Assign | Refuse)])

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Assign):
                for grant in decision.grants:
                    self._take(grant.exporter, decision.request)
            elif isinstance(decision, Evict):
                self._take(decision.exporter, "")

    def _take(self, exporter: str, holder: str) -> None:
        offer = self.stock.get(exporter)
        assert offer is not None
        self._offer(replace(offer, holder=holder, holder_spot=False, idle=False))

    def _lab(self, requests: tuple[Request, ...]) -> Lab:
        return Lab(
            offers=self.stock,
            requests=requests,
            policies=self.policies,
            supplies=self.supplies,
        )

    def _offer(self, new: Offer) -> None:
        self.waiting.offered(self.stock.get(new.name), new)
        self.stock.put(new)

    def _forget(self, leases: list[str]) -> None:
        for name in leases:
            self.requests.pop(name, None)
            self.told.pop(name, None)
            self.waiting.remove(name)


TestAllAndAffectedRequests = AllAndAffectedRequests.TestCase
TestAllAndAffectedRequests.settings = settings(stateful_step_count=25)
