"""Stored bytes: the revision in its place, whatever else the object contains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.paths import decode
from bullpen.errors import TooLarge
from bullpen.registry.commits import KEPT_MAX, Documents, restamped, stamper
from bullpen.registry.options import OBJECT_BYTES_MAX

tricky = st.sampled_from(["resourceVersion", '"resourceVersion":"', "metadata", "}", ""])
parts = st.dictionaries(
    st.sampled_from(["spec", "status", "data"]), st.dictionaries(tricky, tricky)
)
labels = st.dictionaries(tricky, tricky)


@given(parts, labels, st.integers(1, 10**12))
def test_the_revision_is_the_only_thing_that_is_added(
    rest: dict[str, Any], given_labels: dict[str, str], revision: int
) -> None:
    metadata = {"name": "a", "labels": given_labels}
    document = {"apiVersion": "v1", "kind": "Thing", "metadata": metadata, **rest}
    value = stamper(document)(revision)
    stamped = {**metadata, "resourceVersion": str(revision)}
    assert decode(value) == {**document, "metadata": stamped}
    assert stamper(decode(value))(revision) == value
    assert restamped(value, 7) == stamper(document)(7)
    documents = Documents()
    assert documents.stamper(document)(revision) == value
    kept = documents.of(value)
    assert list(kept) == list(decode(value))
    assert kept == decode(value)
    assert all(kept[key] is document[key] for key in rest)


def test_only_so_many_documents_are_kept() -> None:
    documents = Documents()
    values = [b'{"n":%d}' % number for number in range(KEPT_MAX + 1)]
    first, second, *_ = (documents.of(value) for value in values)
    assert documents.of(values[1]) is second
    assert documents.of(values[0]) is not first
    assert documents.of(values[0]) == first


def test_an_object_over_the_limit_is_refused() -> None:
    def thing(size: int) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "T", "metadata": {"name": "a"}, "data": "x" * size}

    assert len(stamper(thing(OBJECT_BYTES_MAX - 200))(10**18)) <= OBJECT_BYTES_MAX
    with pytest.raises(TooLarge):
        stamper(thing(OBJECT_BYTES_MAX))
