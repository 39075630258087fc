"""A member_index counts what is usual and lists the rest, whatever came and went before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.pools.member_index import MemberIndex, is_usual
from bullpen.core.pools.members import Member, Phase, Stage
from support.scaling_helpers import NOON, member

DUE = NOON + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("found", "usual"),
    [
        pytest.param(member(0), True, id="one that waits for a lease"),
        pytest.param(member(0, leased=True), True, id="one that has a lease"),
        pytest.param(member(0, Phase.STARTING), False, id="one that is starting"),
        pytest.param(member(0, current=False), False, id="one of an older revision"),
        pytest.param(member(0, due=DUE), False, id="one that time alone will change"),
        pytest.param(member(0, stage=Stage.ABSENT), False, id="one without an instance"),
    ],
)
def test_what_is_usual(found: Member, usual: bool) -> None:
    assert is_usual(found) is usual


members = st.builds(
    lambda number, phase, leased, current: member(number, phase, leased=leased, current=current),
    st.integers(0, 5),
    # Mostly ready, so that usual ones come, change and go.
    st.sampled_from([Phase.READY, Phase.READY, Phase.READY, *Phase]),
    st.booleans(),
    st.sampled_from([True, True, False]),
)
changes = st.lists(st.one_of(members, st.integers(0, 5).map(lambda number: f"rpi4-{number}")))


@given(changes)
def test_it_is_what_it_would_be_if_all_were_looked_at_anew(history: list[Member | str]) -> None:
    member_index, known = MemberIndex(), dict[str, Member]()
    for change in history:
        if isinstance(change, str):
            member_index.remove(change)
            known.pop(change, None)
        else:
            member_index.put(change)
            known[change.name] = change
    everybody = member_index.whole()
    assert {m.name: m for m in member_index} == known
    assert {m.name: m for m in everybody} == known
    assert len(member_index) == len(everybody) == len(known)
    assert {m.name for m in member_index.unusual} == {
        m.name for m in known.values() if not is_usual(m)
    }
    assert member_index.usual == sum(map(is_usual, known.values()))
    assert everybody.leased == sum(m.leased for m in known.values())
    assert everybody.idle == sum(m.idle for m in known.values())


def test_a_crew_is_made_once() -> None:
    member_index = MemberIndex((member(0),))
    assert MemberIndex.of(member_index) is member_index
    assert list(MemberIndex.of((member(0),))) == list(member_index)


def test_a_member_index_is_a_sequence_in_the_order_of_arrival() -> None:
    first, second = member(1), member(0, leased=True)
    found = MemberIndex((first, second))
    assert (found[0], found[-1], found[:1]) == (first, second, (first,))
