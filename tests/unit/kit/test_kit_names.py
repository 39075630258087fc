"""Names are judged as Kubernetes judges them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.kit import names


@pytest.mark.parametrize("text", ["a", "a-b", "0", "my-lab-1", "a" * 63])
def test_a_dns_label_is_accepted(text: str) -> None:
    assert names.dns_label_problem(text) is None


@pytest.mark.parametrize(
    "text", ["", "A", "a.b", "-a", "a-", "a_b", "a" * 64, "a\n", "ä", "a b", "a/b"]
)
def test_what_is_no_dns_label_is_refused(text: str) -> None:
    assert names.dns_label_problem(text)


@pytest.mark.parametrize("text", ["a", "a.b", "rpi4.lab-1", "0.0", "a" * 253, "a" * 100])
def test_a_dns_subdomain_is_accepted(text: str) -> None:
    assert names.dns_subdomain_problem(text) is None


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a.-b", "A.b", "a" * 254, "a\n"])
def test_what_is_no_dns_subdomain_is_refused(text: str) -> None:
    assert names.dns_subdomain_problem(text)


@pytest.mark.parametrize(
    "text", ["a", "A_b.c-D", "example.com/board", "x/y", f"{'a' * 253}/{'b' * 63}", "1"]
)
def test_a_label_key_is_accepted(text: str) -> None:
    assert names.label_key_problem(text) is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("", "name part must not be empty", id="nothing"),
        pytest.param("example.com/", "name part must not be empty", id="only a prefix"),
        pytest.param("/a", "before '/' must not be empty", id="an empty prefix"),
        pytest.param("a/b/c", "before '/'", id="two slashes"),
        pytest.param("Example.com/a", "before '/'", id="a prefix in capitals"),
        pytest.param("a" * 64, "no more than 63", id="too long a name"),
        pytest.param(f"{'a' * 254}/b", "no more than 253", id="too long a prefix"),
        pytest.param("-a", "beginning and ending", id="a dash in front"),
        pytest.param("a b", "beginning and ending", id="a space"),
        pytest.param("a\n", "beginning and ending", id="a line break"),
    ],
)
def test_what_is_no_label_key_is_refused_with_a_hint(text: str, hint: str) -> None:
    assert hint in (names.label_key_problem(text) or "")


@pytest.mark.parametrize("text", ["", "a", "A_b.c-D", "a" * 63])
def test_a_label_value_is_accepted(text: str) -> None:
    assert names.label_value_problem(text) is None


@pytest.mark.parametrize("text", ["a" * 64, "-a", "a-", "a b", "a/b", "ä", "a\n"])
def test_what_is_no_label_value_is_refused(text: str) -> None:
    assert names.label_value_problem(text)


@pytest.mark.parametrize("text", ["ca.crt", "A_b-c", ".hidden", "a" * 253])
def test_a_data_key_is_accepted(text: str) -> None:
    assert names.data_key_problem(text) is None


@pytest.mark.parametrize("text", ["", ".", "..", "..a", "a/b", "a b", "a" * 254])
def test_what_is_no_data_key_is_refused(text: str) -> None:
    assert names.data_key_problem(text)


@given(st.text(max_size=80))
def test_a_label_value_is_a_key_or_empty_or_refused(text: str) -> None:
    if "/" in text or not text:
        return
    assert (names.label_value_problem(text) is None) == (names.label_key_problem(text) is None)
