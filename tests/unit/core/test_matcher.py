"""Which exporters a matcher matches, and what an index may conclude from a matcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.lease import LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference
from bullpen.core.matcher import ANY, Device, Matcher, matcher_of
from bullpen.kit.selectors import parse_labels

SELECTORS = ("", "a=1", "a=2", "a=1,b=2", "a=1,a=2", "a!=1", "b", "!b", "a in (1,2)", "b notin (2)")

devices = st.builds(
    Device,
    name=st.sampled_from(("", "e1", "e2")),
    labels=st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
)
matchers = st.builds(
    Matcher,
    selector=st.sampled_from(SELECTORS).map(parse_labels),
    exporter=st.sampled_from(("", "", "e1", "e2")),
)


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        pytest.param(ANY, True, id="no part is given"),
        pytest.param(Matcher(selector=parse_labels("board=rpi4")), True, id="the labels match"),
        pytest.param(Matcher(selector=parse_labels("board=imx8")), False, id="other labels"),
        pytest.param(Matcher(exporter="e1"), True, id="its name"),
        pytest.param(Matcher(exporter="e2"), False, id="another name"),
        pytest.param(
            Matcher(selector=parse_labels("board=imx8"), exporter="e1"),
            False,
            id="its name and other labels",
        ),
    ],
)
def test_an_exporter_matches_if_every_given_part_applies(matcher: Matcher, expected: bool) -> None:
    assert matcher.matches(Device(name="e1", labels={"board": "rpi4"})) is expected


def test_a_lease_for_a_named_exporter_never_matches_what_a_pool_could_create() -> None:
    assert not Matcher(exporter="e1").matches(Device(labels={}))


def test_the_matcher_of_a_lease_has_its_selector_and_its_exporter() -> None:
    spec = LeaseSpec(
        client_ref=LocalObjectReference(name="alice"),
        selector=LabelSelector(match_labels={"board": "rpi4"}),
        exporter_ref=LocalObjectReference(name="e1"),
    )
    assert matcher_of(spec) == Matcher(selector=parse_labels("board=rpi4"), exporter="e1")


def test_equal_matchers_share_an_entry_of_an_index() -> None:
    spaced, plain = (Matcher(selector=parse_labels(text)) for text in ("b=2, a=1", "a=1,b=2"))
    assert len({spaced, plain}) == 1


@given(matchers, devices)
def test_every_match_has_the_required_labels(matcher: Matcher, device: Device) -> None:
    if matcher.matches(device):
        assert matcher.required_labels.items() <= device.labels.items()


@given(matchers, matchers, devices)
def test_no_exporter_matches_two_disjoint_matchers(
    one: Matcher, other: Matcher, device: Device
) -> None:
    if one.disjoint(other):
        assert not (one.matches(device) and other.matches(device))
    assert one.disjoint(other) is other.disjoint(one)


@given(matchers, devices)
def test_an_unrestricted_matcher_matches_every_exporter(matcher: Matcher, device: Device) -> None:
    assert matcher.matches(device) or not matcher.unrestricted
