"""The ordered set of keys, compared with sorting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.store.keys import Keys, bucket

# Slashes and neighbours of the slash, so that buckets begin, end and nest.
keys = st.text("a/.0", max_size=7)


@given(st.sets(keys), st.sets(keys), keys, keys)
def test_a_selection_is_what_sorting_and_filtering_gives(
    initial: set[str], toggled: set[str], prefix: str, after: str
) -> None:
    ordered = Keys(initial)
    for key in toggled:
        if key in initial:
            ordered.remove(key)
        else:
            ordered.add(key)
    selected = ordered.under(prefix, after)
    # Without an ``after`` nothing is passed over, not even the empty key.
    expected = [
        key
        for key in sorted(initial ^ toggled)
        if key.startswith(prefix) and (not after or key > after)
    ]
    assert list(selected) == expected
    assert len(selected) == len(expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param("core/secrets/default/x", "core/secrets/", id="a namespaced object"),
        pytest.param("core/namespaces//x", "core/namespaces/", id="a cluster-scoped object"),
        pytest.param("core/secrets/", "core/secrets/", id="the prefix of a kind"),
        pytest.param("core/secrets", "core/secrets", id="fewer than two slashes"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_bucket(key: str, expected: str) -> None:
    assert bucket(key) == expected


def test_a_kind_without_objects_leaves_nothing_behind() -> None:
    ordered = Keys(["core/secrets/default/x"])
    ordered.remove("core/secrets/default/x")
    assert vars(ordered) == vars(Keys())
