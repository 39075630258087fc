"""What garbage is, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.paths import encode
from bullpen.api.resources import RESOURCES
from bullpen.registry.garbage import (
    Collect,
    Disown,
    Kinship,
    Node,
    OwnerReference,
    Release,
    Standing,
    as_dependent,
    as_owner,
    disowned,
    node_of,
    released,
)
from bullpen.registry.metadata import FOREGROUND, ORPHAN
from bullpen.registry.options import Propagation

SOLID, WAITING, ORPHANING, ABSENT = (
    Standing.SOLID,
    Standing.WAITING,
    Standing.ORPHANING,
    Standing.ABSENT,
)


def owned(*uids: str, deleting: bool = False, blocking: bool = False) -> Node:
    owners = tuple(OwnerReference(uid=uid, block_owner_deletion=blocking) for uid in uids)
    return Node(uid="me", owners=owners, deleting=deleting)


CHILD = Node(uid="child", owners=(OwnerReference(uid="me"),))
BLOCKING = Node(uid="child", owners=(OwnerReference(uid="me", block_owner_deletion=True),))
WAITING_CHILD = Node(uid="child", deleting=True, finalizers=(FOREGROUND,))


@pytest.mark.parametrize(
    ("node", "standings", "dependents", "step"),
    [
        pytest.param(owned(), (), (), None, id="what nobody owns stays"),
        pytest.param(owned("a"), (SOLID,), (), None, id="what is owned stays"),
        pytest.param(owned("a"), (ABSENT,), (), Collect(), id="without its owner it goes"),
        pytest.param(
            owned("a", "b"), (ABSENT, SOLID), (), Disown(("a",)), id="one owner is enough"
        ),
        pytest.param(
            owned("a", "b"), (WAITING, SOLID), (), Disown(("a",)), id="also against one that waits"
        ),
        pytest.param(owned("a", "b"), (ABSENT, ABSENT), (), Collect(), id="no owner is not"),
        pytest.param(owned("a"), (WAITING,), (), Collect(), id="who waits for it gets it"),
        pytest.param(
            owned("a"),
            (WAITING,),
            (CHILD,),
            Collect(Propagation.FOREGROUND),
            id="with dependents of its own it waits in turn",
        ),
        pytest.param(
            owned("a"),
            (WAITING,),
            (WAITING_CHILD,),
            Collect(Propagation.BACKGROUND),
            id="unless they wait in a circle",
        ),
        pytest.param(
            owned("a"), (ABSENT,), (CHILD,), Collect(), id="nobody waits for an owner that is gone"
        ),
        pytest.param(owned("a"), (ORPHANING,), (), Disown(("a",)), id="orphans are let go"),
        pytest.param(
            owned("a", "b"),
            (ORPHANING, ABSENT),
            (),
            Disown(("a",)),
            id="before anything else is decided",
        ),
        pytest.param(owned("a", deleting=True), (ABSENT,), (), None, id="it is going already"),
    ],
)
def test_as_dependent(
    node: Node,
    standings: tuple[Standing, ...],
    dependents: tuple[Node, ...],
    step: Collect | Disown | None,
) -> None:
    assert as_dependent(node, standings, dependents) == step


standing = st.sampled_from(Standing)


@given(st.lists(standing, min_size=1, max_size=4), st.booleans())
def test_nothing_is_collected_while_an_owner_stays(found: list[Standing], more: bool) -> None:
    node = owned(*(str(n) for n in range(len(found))))
    step = as_dependent(node, tuple(found), (CHILD,) if more else ())
    if SOLID in found or ORPHANING in found:
        assert not isinstance(step, Collect)
    else:
        assert isinstance(step, Collect)
    if isinstance(step, Disown):
        assert all(found[int(uid)] is not SOLID for uid in step.uids)


def going(*finalizers: str) -> Node:
    return Node(uid="me", deleting=True, finalizers=finalizers)


@pytest.mark.parametrize(
    ("node", "dependents", "step"),
    [
        pytest.param(Node(uid="me", finalizers=(ORPHAN,)), (), None, id="not being deleted"),
        pytest.param(going("x.io/y"), (), None, id="waiting for somebody else"),
        pytest.param(going(ORPHAN), (CHILD,), None, id="not yet forgotten"),
        pytest.param(going(ORPHAN), (), Release(ORPHAN), id="forgotten"),
        pytest.param(going(FOREGROUND), (BLOCKING,), None, id="blocked"),
        pytest.param(going(FOREGROUND), (CHILD,), Release(FOREGROUND), id="not blocked"),
        pytest.param(going(FOREGROUND), (), Release(FOREGROUND), id="alone"),
    ],
)
def test_as_owner(node: Node, dependents: tuple[Node, ...], step: Release | None) -> None:
    assert as_owner(node, dependents) == step


def test_references_and_finalizers_leave_no_empty_lists_behind() -> None:
    document = {"metadata": {"ownerReferences": [{"uid": "a"}], "finalizers": ["x"]}}
    assert disowned(document, ("a",)) == {"metadata": {"finalizers": ["x"]}}
    assert released(document, "x") == {"metadata": {"ownerReferences": [{"uid": "a"}]}}
    assert disowned(document, ("b",)) == document
    assert released({"metadata": {}}, "x") == {"metadata": {}}
    assert released({"metadata": {"finalizers": ["x", "y"]}}, "x") == {
        "metadata": {"finalizers": ["y"]}
    }


def stored(uid: str, *owners: str, deleting: bool = False) -> bytes:
    metadata: dict[str, object] = {"uid": uid}
    if owners:
        metadata["ownerReferences"] = [{"uid": owner} for owner in owners]
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return encode({"metadata": metadata})


def test_a_node_is_read_from_a_stored_object() -> None:
    assert node_of(stored("a", "b", deleting=True)) == Node(
        uid="a", owners=(OwnerReference(uid="b"),), deleting=True
    )


class TestKinship:
    A, B = "core/secrets/default/a", "core/secrets/default/b"
    NAMESPACE = "core/namespaces//default"

    def test_a_change_touches_those_it_may_concern(self) -> None:
        kin = Kinship(RESOURCES)
        assert kin.put(self.A, stored("a")) == (self.A,)
        assert kin.put(self.B, stored("b", "a")) == (self.B,)
        assert kin.put(self.A, stored("a", deleting=True)) == (self.B, self.A)
        assert kin.put(self.B, stored("b", "a", deleting=True)) == (self.A, self.B)
        assert kin.remove(self.B) == (self.A,)
        assert kin.remove(self.A) == ()

    def test_forgetting_what_was_never_known_touches_nobody(self) -> None:
        assert Kinship(RESOURCES).remove(self.A) == ()

    def test_a_change_of_nothing_that_matters_touches_nobody(self) -> None:
        kin = Kinship(RESOURCES)
        kin.put(self.A, stored("a", "x"))
        assert kin.put(self.A, stored("a", "x")) == ()

    def test_a_namespace_that_goes_touches_its_contents_and_they_it(self) -> None:
        kin = Kinship(RESOURCES)
        kin.put(self.NAMESPACE, stored("n"))
        kin.put(self.A, stored("a"))
        assert kin.put(self.NAMESPACE, stored("n", deleting=True)) == (self.A, self.NAMESPACE)
        assert kin.remove(self.A) == (self.NAMESPACE,)
        assert kin.contents("default") == ()

    def test_only_what_is_owned_or_on_its_way_out_is_suspected(self) -> None:
        kin = Kinship(RESOURCES)
        kin.put(self.NAMESPACE, stored("n"))
        kin.put(self.A, stored("a"))
        kin.put(self.B, stored("b", "a"))
        assert list(kin.suspects()) == [self.B]
        kin.put(self.NAMESPACE, stored("n", deleting=True))
        assert set(kin.suspects()) == {self.NAMESPACE, self.A, self.B}

    def test_what_is_forgotten_leaves_nothing_behind(self) -> None:
        kin = Kinship(RESOURCES)
        kin.put(self.A, stored("a", "x", "y"))
        kin.remove(self.A)
        assert (kin.node(self.A), kin.dependents("x"), kin.find("a")) == (None, (), None)
        assert not (kin._dependents)
        assert not (kin._keys)

    def test_a_recreated_object_is_another_one(self) -> None:
        kin = Kinship(RESOURCES)
        kin.put(self.A, stored("a", "x"))
        kin.put(self.A, stored("a2"))
        assert kin.find("a") is None
        assert kin.dependents("x") == ()

    @pytest.mark.parametrize("key", ["core/secrets", "private/x/y/z", "", "core/secrets/default/"])
    def test_other_keys_are_no_objects(self, key: str) -> None:
        assert Kinship(RESOURCES).place(key) is None
