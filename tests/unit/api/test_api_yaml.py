"""YAML as Kubernetes tools write it, and as attackers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import yaml
from bullpen.errors import BadRequest


def test_dates_and_other_yaml_fancies_stay_text() -> None:
    text = "a: 2026-01-01\nb: 2026-01-01T00:00:00Z\nc: 0o17\nd: 1.5\ne: true\nf: ~\n"
    assert yaml.load(text) == {
        "a": "2026-01-01",
        "b": "2026-01-01T00:00:00Z",
        "c": "0o17",
        "d": 1.5,
        "e": True,
        "f": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: [\n",
        "{a: 1",
        "1: x\n",
        "!!python/name:os.system",
        "[" * 1000 + "]" * 1000,
        "a: {" * 500,
        b"\xff\xff\xff",
        "a: !!binary x\n",
    ],
)
def test_what_json_cannot_say_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadRequest):
        yaml.load(text)


def test_a_users_own_file_may_have_aliases_and_several_documents() -> None:
    text = "a: &x {k: 1}\nb: *x\n---\n---\nc: 2\n"
    assert yaml.load_manifests(text) == ({"a": {"k": 1}, "b": {"k": 1}}, {"c": 2})


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), json, max_size=4))
def test_what_is_dumped_is_loaded_again(document: dict[str, object]) -> None:
    assert yaml.load(yaml.dump(document)) == document
