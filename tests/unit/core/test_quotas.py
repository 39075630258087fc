"""Quotas: which limit refuses one more lease, and what the refusal says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.leases import access, quotas
from bullpen.core.leases.access import Allowance, Policies, Rule
from bullpen.core.leases.quotas import UNLIMITED, Bucket, Quotas, Rate, Usage
from bullpen.core.matcher import ANY
from bullpen.kit.selectors import EVERYTHING, Selector, parse_labels

FEW = Quotas(active_max=2, waiting_max=3, namespace_max=10, duration_max=timedelta(hours=1))
SILENT = Allowance()
RATE = Rate(burst=3, per_second=2.0)


@pytest.mark.parametrize(
    ("usage", "allowance", "expected"),
    [
        pytest.param(Usage(), SILENT, None, id="nothing yet"),
        pytest.param(Usage(active=1, waiting=2, namespace=9), SILENT, None, id="one below each"),
        pytest.param(Usage(active=2), SILENT, "leases.maxActivePerClient", id="active"),
        pytest.param(Usage(waiting=3), SILENT, "leases.maxWaitingPerClient", id="waiting"),
        pytest.param(Usage(namespace=10), SILENT, "leases.maxPerNamespace", id="the namespace"),
        pytest.param(Usage(active=2), Allowance(active=5), None, id="a policy allows more"),
        pytest.param(
            Usage(active=1), Allowance(active=1), "maximumActiveLeases", id="a policy allows less"
        ),
        pytest.param(Usage(), Allowance(waiting=0), "maximumWaitingLeases", id="none may wait"),
    ],
)
def test_the_refusal_names_the_limit_and_who_can_change_it(
    usage: Usage, allowance: Allowance, expected: str | None
) -> None:
    found = quotas.refusal(FEW, allowance, usage, client="alice")
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert expected in found
        assert "can change it" in found


def test_no_limit_refuses_nothing() -> None:
    crowd = Usage(active=10**6, waiting=10**6, namespace=10**7)
    assert quotas.refusal(UNLIMITED, SILENT, crowd, client="alice") is None
    assert quotas.too_long(UNLIMITED, None) is None
    assert quotas.too_important(UNLIMITED, 10**6) is None


@pytest.mark.parametrize(
    ("lasts", "refused"),
    [
        pytest.param(timedelta(hours=1), False, id="exactly the longest"),
        pytest.param(timedelta(hours=1, seconds=1), True, id="a second more"),
        pytest.param(None, True, id="without end"),
    ],
)
def test_the_longest_lease_is_a_limit_too(lasts: timedelta | None, refused: bool) -> None:
    found = quotas.too_long(FEW, lasts)
    assert (found is not None) is refused
    assert found is None or ("1h0m0s" in found and "leases.maxDuration" in found)


def test_of_several_rules_the_most_generous_counts_and_rules_about_others_do_not() -> None:
    rules = (
        rule(EVERYTHING, active=1),
        rule(parse_labels("team=a"), active=4, waiting=7),
        rule(parse_labels("team=b"), active=100),
    )
    found = access.allowance(Policies(enforced=True, rules=rules), client={"team": "a"})
    assert found == Allowance(active=4, waiting=7)
    assert access.allowance(access.OPEN, client={"team": "a"}) == SILENT


def rule(clients: Selector, *, active: int | None = None, waiting: int | None = None) -> Rule:
    return Rule(
        exporters=ANY,
        clients=(clients,),
        priority=0,
        maximum=None,
        spot=False,
        description="",
        active=active,
        waiting=waiting,
    )


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket: Bucket | None = None
    given_out = []
    for tenth in range(100):
        bucket, enough = quotas.taken(RATE, bucket, now=tenth / 10)
        given_out.append(enough)
    assert given_out[:3] == [True, True, True]
    assert sum(given_out) in (3 + 19, 3 + 20), "three at once, two a second for ten seconds"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_however_the_moments_come_no_more_is_given_than_burst_and_rate_allow(
    moments: list[float],
) -> None:
    bucket: Bucket | None = None
    count = 0
    for moment in sorted(moments):
        bucket, enough = quotas.taken(RATE, bucket, now=moment)
        assert 0 <= bucket.tokens <= RATE.burst
        count += enough
    span = max(moments) - min(moments)
    assert count <= RATE.burst + span * RATE.per_second + 1e-6
