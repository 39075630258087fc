"""The plan of a pool of lasting targets, for any members: its count, and everybody's lease."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.virtualtarget import VirtualTarget, VirtualTargetSpec, VirtualTargetStatus
from bullpen.api.kinds.virtualtargetpool import (
    MemberTemplate,
    UpdateStrategy,
    UpdateType,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
)
from bullpen.api.meta import Condition, ConditionStatus, ObjectMeta
from bullpen.api.scale_down import Removal, ScaleDownPolicy
from bullpen.core.pools import lasting_pool
from bullpen.core.pools.lasting_pool import Create, Delete, LastingMember, LastingPool, Rule, Update

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = VirtualTargetSpec(virtual_target_class_name="c")


@st.composite
def members(draw: st.DrawFn, number: int) -> LastingMember:
    ready = draw(st.booleans())
    condition = Condition(
        type="Ready",
        status=ConditionStatus.TRUE if ready else ConditionStatus.FALSE,
        reason="x",
        message="",
        last_transition_time=NOW,
    )
    current = draw(st.booleans())
    meta = ObjectMeta(
        name=f"p-{number}",
        uid=f"u{number}",
        creation_timestamp=NOW + timedelta(seconds=draw(st.integers(0, 1))),
        deletion_timestamp=NOW if draw(st.integers(0, 5)) == 0 else None,
        labels={"virtualtarget.jumpstarter.dev/template-hash": HASH if current else "old"},
    )
    status = VirtualTargetStatus(conditions=(condition,))
    target = VirtualTarget(metadata=meta, spec=SPEC, status=status)
    return LastingMember(target=target, leased=draw(st.integers(0, 2)) == 0)


@st.composite
def pools(draw: st.DrawFn) -> LastingPool:
    # Small numbers, so that pools are too large as often as they are too small.
    found = [draw(members(number)) for number in range(draw(st.integers(0, 6)))]
    named = [member for member in found if draw(st.integers(0, 4)) == 0]
    spec = VirtualTargetPoolSpec(
        replicas=draw(st.integers(0, 5)),
        scale_down_policy=draw(st.sampled_from(ScaleDownPolicy)),
        paused=draw(st.integers(0, 5)) == 0,
        template=MemberTemplate(spec=SPEC),
        update_strategy=UpdateStrategy(
            type=draw(st.sampled_from(UpdateType)),
            max_unavailable=draw(st.sampled_from(("1", "2", "50%"))),
        ),
        removals=tuple(Removal(name=m.name, uid=m.uid) for m in named),
    )
    pool = VirtualTargetPool(metadata=ObjectMeta(name="p", uid="pool"), spec=spec)
    taken = frozenset({"p-7"}) if draw(st.booleans()) else frozenset()
    return LastingPool(
        pool=pool, members=tuple(found), taken=taken, spec_of=lambda _name, _found: SPEC
    )


HASH = lasting_pool.template_hash(
    VirtualTargetPool(
        spec=VirtualTargetPoolSpec(
            scale_down_policy=ScaleDownPolicy.EXPLICIT, template=MemberTemplate(spec=SPEC)
        )
    )
)


@given(pools())
def test_a_plan_never_touches_a_lease_and_never_leaves_the_count(seen: LastingPool) -> None:
    plan = lasting_pool.plan(seen, now=NOW)
    by_name = {member.name: member for member in seen.members}
    creates = [a.name for a in plan.actions if isinstance(a, Create)]
    deletes = [a for a in plan.actions if isinstance(a, Delete)]
    gone = {a.name for a in deletes}
    assert not any(by_name[name].ending for name in gone)
    # A target that was removed by name keeps its lease until that ends, and takes no other.
    named = {a.name for a in deletes if a.rule is Rule.REMOVED_BY_NAME}
    assert not any(by_name[name].leased for name in gone - named)
    assert {by_name[name].uid for name in named} <= seen.leaving
    assert len(gone) == len(deletes)
    if seen.pool.spec.paused:
        assert not plan.actions
        return
    live = {member.name for member in seen.live}
    wanted = seen.pool.spec.replicas
    after = len(live - gone) + len(creates)
    surplus = [a for a in deletes if a.rule is Rule.SURPLUS]
    rollout = [a for a in deletes if a.rule is Rule.ROLLOUT]
    if not rollout:
        assert after >= min(wanted, len(live))
        assert after == wanted or len(live) > wanted
    assert not (creates and surplus)
    # Every name is new.
    assert not any(name in by_name or name in seen.taken for name in creates)
    assert len(set(creates)) == len(creates)
    if seen.pool.spec.scale_down_policy is ScaleDownPolicy.EXPLICIT:
        assert not surplus
    elif len(live) > wanted:
        idle = [m for m in seen.live if not m.leased]
        assert len(surplus) == min(len(live) - wanted, len(idle))


@given(pools())
def test_an_update_makes_no_more_members_unavailable_than_allowed(seen: LastingPool) -> None:
    plan = lasting_pool.plan(seen, now=NOW)
    by_name = {member.name: member for member in seen.members}
    changed = [a for a in plan.actions if a.rule is Rule.ROLLOUT]
    strategy = seen.pool.spec.update_strategy.type
    assert strategy is not UpdateType.ON_DELETE or not changed
    kinds = {type(action) for action in changed}
    assert kinds <= ({Delete} if strategy is UpdateType.REPLACE else {Update})
    if strategy is UpdateType.REPLACE:
        lost = sum(by_name[action.name].ready for action in changed)
        down = sum(not m.ready for m in seen.live if m.written == seen.hash)
        assert lost == 0 or lost + down <= lasting_pool.allowed_unavailable(seen.pool)


@given(pools(), st.randoms())
def test_the_order_of_the_list_does_not_matter(seen: LastingPool, chance: Random) -> None:
    """Gap 7: ties are broken the same way every time."""
    shuffled = list(seen.members)
    chance.shuffle(shuffled)
    plan = lasting_pool.plan(seen, now=NOW)
    again = lasting_pool.plan(replace(seen, members=tuple(shuffled)), now=NOW)
    assert {(type(a), a.name) for a in plan.actions} == {(type(a), a.name) for a in again.actions}


def test_a_percentage_allows_at_least_one_member() -> None:
    def allowed(given: int | str, replicas: int) -> int:
        spec = VirtualTargetPoolSpec(
            replicas=replicas,
            scale_down_policy=ScaleDownPolicy.EXPLICIT,
            template=MemberTemplate(spec=SPEC),
            update_strategy=UpdateStrategy(max_unavailable=given),
        )
        return lasting_pool.allowed_unavailable(VirtualTargetPool(spec=spec))

    assert [allowed("25%", n) for n in (1, 4, 10)] == [1, 1, 2]
    assert [allowed(3, 10), allowed("2", 10)] == [3, 2]
