"""Quantities are exact, and canonical when printed."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.kit import quantities
from bullpen.kit.quantities import Family, Quantity


@pytest.mark.parametrize(
    ("written", "amount", "printed"),
    [
        pytest.param("0", "0", "0", id="zero"),
        pytest.param("-0", "0", "0", id="zero has no sign"),
        pytest.param("0Gi", "0", "0", id="zero of anything"),
        pytest.param("1", "1", "1", id="one"),
        pytest.param(2, "2", "2", id="a JSON number"),
        pytest.param("100m", "0.1", "100m", id="a tenth"),
        pytest.param("0.1", "0.1", "100m", id="no fraction is printed"),
        pytest.param("1500m", "1.5", "1500m", id="one and a half stays thousandths"),
        pytest.param("1000m", "1", "1", id="needless digits go"),
        pytest.param("128M", "128000000", "128M", id="mega"),
        pytest.param("1000k", "1000000", "1M", id="the largest suffix that fits"),
        pytest.param("1024", "1024", "1024", id="decimal stays decimal"),
        pytest.param("1Ki", "1024", "1Ki", id="kibi"),
        pytest.param("1Gi", str(2**30), "1Gi", id="gibi"),
        pytest.param("1.5Gi", str(3 * 2**29), "1536Mi", id="a fraction of a gibi"),
        pytest.param("0.5Ki", "512", "512", id="below 1024 there is no binary suffix"),
        pytest.param("1.1Mi", "1153433.6", "1153433600m", id="a binary fraction turns decimal"),
        pytest.param("-2Gi", str(-(2**31)), "-2Gi", id="negative"),
        pytest.param("7Ei", str(7 * 2**60), "7Ei", id="exbi"),
        pytest.param("9E", "9000000000000000000", "9E", id="exa is not an exponent"),
        pytest.param("1e3", "1000", "1e3", id="exponents stay exponents"),
        pytest.param("1E3", "1000", "1e3", id="a large E with digits is an exponent"),
        pytest.param("12e5", "1200000", "1200e3", id="exponents are multiples of three"),
        pytest.param("1e-3", "0.001", "1e-3", id="a negative exponent"),
        pytest.param("1e0", "1", "1", id="exponent nought is not printed"),
        pytest.param("1n", "1E-9", "1n", id="the smallest"),
        pytest.param("0.1n", "1E-9", "1n", id="smaller than the smallest rounds up"),
        pytest.param("-0.1n", "-1E-9", "-1n", id="and away from zero"),
        pytest.param("+.5", "0.5", "500m", id="a plus, and no digit before the point"),
        pytest.param("5.", "5", "5", id="no digit after the point"),
    ],
)
def test_a_quantity_reads_and_prints(written: str | int, amount: str, printed: str) -> None:
    quantity = quantities.parse(written)
    assert quantity.amount == Decimal(amount)
    assert str(quantity) == printed
    assert re.match(quantities.PATTERN, str(written))


@pytest.mark.parametrize(
    ("written", "whole"), [("1Gi", 2**30), ("1500m", 2), ("0.1", 1), ("-1500m", -1), ("0", 0)]
)
def test_a_part_of_a_byte_needs_a_byte(written: str, whole: int) -> None:
    assert quantities.parse(written).whole() == whole


@pytest.mark.parametrize("written", ["", "Ki", ".", "-", " 1", "abc", "1" * 100, "٣"])
def test_what_is_no_number_is_refused_with_a_hint(written: str) -> None:
    with pytest.raises(ValueError, match="such as 2, 100m"):
        quantities.parse(written)
    assert not re.match(quantities.PATTERN, written) or len(written) > quantities.DIGITS_MAX


@pytest.mark.parametrize(
    "written", ["1ki", "1K", "1g", "1e", "1e3k", "1KiB", "1e99999", "1e1.5", "1 Gi"]
)
def test_an_unknown_suffix_is_refused_and_the_known_are_named(written: str) -> None:
    with pytest.raises(ValueError, match="known are n, u, m, k"):
        quantities.parse(written)


@pytest.mark.parametrize("written", ["8Ei", "1e19", "-10E", "9223372036854775808"])
def test_what_64_bits_cannot_hold_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="larger than 9223372036854775807"):
        quantities.parse(written)


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from(Family))
def test_every_whole_quantity_survives_being_printed(amount: int, family: Family) -> None:
    quantity = Quantity(Decimal(amount), family)
    assert quantities.parse(quantities.text(quantity)).amount == amount


@given(st.decimals(-10_000, 10_000, places=9), st.sampled_from(Family))
def test_every_small_quantity_survives_being_printed(amount: Decimal, family: Family) -> None:
    printed = quantities.text(Quantity(amount, family))
    assert quantities.parse(printed).amount == amount
