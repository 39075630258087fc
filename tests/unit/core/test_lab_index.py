"""What the lab index counts again, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.core.lab_index import LabIndex

WAITING = Lease(
    metadata=ObjectMeta(name="a", namespace="lab", uid="1"),
    spec=LeaseSpec(
        client_ref=LocalObjectReference(name="me"),
        selector=LabelSelector(match_labels={"board": "a"}),
    ),
)


def test_a_waiting_lease_that_asks_for_the_same_changes_nothing_wanted() -> None:
    index = LabIndex()
    index.put_lease("a", None, WAITING, late=True)
    version, (want,) = index.version, index.wanted
    again = replace(WAITING, metadata=replace(WAITING.metadata, annotations={"seen": "yes"}))
    index.put_lease("a", WAITING, again, late=True)
    assert (index.version, list(index.wanted)) == (version, [want])
