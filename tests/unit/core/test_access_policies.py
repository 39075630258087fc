"""Who may lease what, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.accesspolicy import (
    ExporterAccessPolicy,
    ExporterAccessPolicySpec,
    From,
    Policy,
)
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.leases import access
from bullpen.core.leases.access import OPEN, Approval, Policies, Rule
from bullpen.core.matcher import Device, Matcher
from bullpen.kit.selectors import EVERYTHING, parse_labels

HOUR = timedelta(hours=1)
ALICE = {"team": "a"}
BOARD = Device(name="e1", labels={"board": "rpi4"})


def rule(
    *,
    clients: str | None = "team=a",
    exporters: str = "board=rpi4",
    priority: int = 0,
    maximum: timedelta | None = None,
    spot: bool = False,
    description: str = "",
    idle: timedelta | None = None,
) -> Rule:
    return Rule(
        exporters=Matcher(selector=parse_labels(exporters)),
        clients=() if clients is None else (parse_labels(clients) if clients else EVERYTHING,),
        priority=priority,
        maximum=maximum,
        spot=spot,
        description=description,
        idle=idle,
    )


def enforced(*rules: Rule) -> Policies:
    return Policies(enforced=True, rules=rules)


def approve(found: Policies, duration: timedelta | None = HOUR) -> Approval | None:
    return access.approve(found, client=ALICE, exporter=BOARD, duration=duration)


def test_without_policies_everything_is_allowed() -> None:
    assert approve(OPEN) == Approval()
    assert approve(OPEN, None) == Approval()


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(enforced(), id="a policy without rules"),
        pytest.param(enforced(rule(clients="team=b")), id="a rule for others"),
        pytest.param(enforced(rule(exporters="board=imx8")), id="a rule for other exporters"),
        pytest.param(enforced(rule(clients=None)), id="a rule for nobody"),
        pytest.param(enforced(rule(maximum=HOUR / 2)), id="a rule for shorter leases"),
    ],
)
def test_once_there_is_a_policy_what_no_rule_allows_is_denied(found: Policies) -> None:
    assert approve(found) is None


def test_a_lease_of_exactly_the_maximum_is_allowed_and_one_without_end_is_not() -> None:
    limited = enforced(rule(maximum=HOUR))
    assert approve(limited, HOUR) == Approval(maximum=HOUR)
    assert approve(limited, HOUR + timedelta(microseconds=1)) is None
    assert approve(limited, None) is None
    assert approve(enforced(rule()), None) == Approval()


def test_a_lasting_right_comes_before_a_spot_one_and_then_the_higher_priority() -> None:
    found = enforced(rule(priority=9, spot=True), rule(priority=1), rule(priority=3))
    assert approve(found) == Approval(priority=3)
    only_spot = enforced(rule(priority=1, spot=True), rule(priority=4, spot=True))
    assert approve(only_spot) == Approval(priority=4, spot=True)


def test_the_longest_lease_is_the_longest_any_rule_about_the_pair_allows() -> None:
    found = enforced(rule(maximum=HOUR), rule(maximum=3 * HOUR), rule(clients="team=b"))
    assert access.longest(found, client=ALICE, exporter=BOARD) == 3 * HOUR
    unlimited = enforced(rule(maximum=HOUR), rule())
    assert access.longest(unlimited, client=ALICE, exporter=BOARD) is None


def test_a_rule_concerns_a_pair_whatever_the_duration() -> None:
    limited = enforced(rule(maximum=HOUR))
    assert access.concerns(limited, client=ALICE, exporter=BOARD)
    assert not access.concerns(limited, client={"team": "b"}, exporter=BOARD)
    assert access.concerns(OPEN, client={}, exporter=Device(labels={}))


def test_descriptions_are_those_of_rules_about_the_exporter_each_once() -> None:
    found = enforced(
        rule(description="ask Eve"),
        rule(clients="team=b", description="ask Bob"),
        rule(description="ask Eve"),
        rule(exporters="board=imx8", description="not this one"),
        rule(),
    )
    assert access.descriptions(found, exporter=BOARD) == ("ask Eve", "ask Bob")


def test_objects_are_compiled_in_name_order_and_an_empty_selector_means_all() -> None:
    def policy(name: str, *, priority: int) -> ExporterAccessPolicy:
        entry = Policy(from_=(From(client_selector=LabelSelector()),), priority=priority)
        return ExporterAccessPolicy(
            metadata=ObjectMeta(name=name, namespace="lab"),
            spec=ExporterAccessPolicySpec(exporter_selector=LabelSelector(), policies=(entry,)),
        )

    found = access.policies([policy("b", priority=2), policy("a", priority=1)])
    assert found.enforced
    assert [item.priority for item in found.rules] == [1, 2]
    approval = access.approve(found, client={}, exporter=Device(labels={}), duration=HOUR)
    assert approval == Approval(priority=2)
    assert access.policies([]) == OPEN


rules = st.lists(
    st.builds(
        rule,
        clients=st.sampled_from(("team=a", "team=b", "", None)),
        exporters=st.sampled_from(("board=rpi4", "board=imx8", "")),
        priority=st.integers(0, 3),
        maximum=st.sampled_from((None, HOUR / 2, HOUR, 2 * HOUR)),
        spot=st.booleans(),
    ),
    max_size=4,
).map(lambda found: enforced(*found))


@given(rules, st.sampled_from((HOUR / 4, HOUR, 3 * HOUR)))
def test_a_shorter_lease_is_never_denied_where_a_longer_one_is_allowed(
    found: Policies, duration: timedelta
) -> None:
    if approve(found, duration) is not None:
        assert approve(found, duration / 2) is not None


@given(rules)
def test_a_lease_of_the_longest_length_is_allowed_and_a_longer_one_is_not(
    found: Policies,
) -> None:
    if not access.concerns(found, client=ALICE, exporter=BOARD):
        assert approve(found, timedelta(seconds=1)) is None
        return
    longest = access.longest(found, client=ALICE, exporter=BOARD)
    assert approve(found, longest or 100 * HOUR) is not None
    if longest is not None:
        assert approve(found, longest + timedelta(seconds=1)) is None


@pytest.mark.parametrize(
    ("rules", "setting", "expected"),
    [
        ((), HOUR, HOUR),
        ((rule(),), None, None),
        ((rule(),), HOUR, HOUR),
        ((rule(idle=HOUR / 2),), None, HOUR / 2),
        ((rule(idle=HOUR / 2),), HOUR, HOUR / 2),
        ((rule(idle=2 * HOUR),), HOUR, 2 * HOUR),
        ((rule(idle=HOUR / 2), rule(idle=HOUR / 4)), None, HOUR / 2),
        ((rule(idle=HOUR / 2), rule()), None, None),
        ((rule(idle=HOUR / 2), rule()), HOUR, HOUR),
        ((rule(idle=HOUR / 2), rule(clients="team=b")), None, HOUR / 2),
    ],
)
def test_the_most_generous_idle_timeout_of_the_rules_and_the_setting_counts(
    rules: tuple[Rule, ...], setting: timedelta | None, expected: timedelta | None
) -> None:
    found = approve(Policies(enforced=bool(rules), rules=rules, idle=setting))
    assert found is not None
    assert found.idle == expected
