"""The scaling rules, one sentence per test."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.pools import start_throttle
from bullpen.core.pools.members import STARTING, SUPPLY, Member, Phase
from bullpen.core.pools.scale_plan import (
    CREATED_AT_ONCE_MAX,
    Create,
    Delete,
    Drain,
    Plan,
    Pool,
    Rule,
    Surplus,
    plan,
)
from bullpen.core.pools.start_throttle import Failures, StartHistory, StartThrottle
from bullpen.core.targets.instances import ExitReason
from support.scaling_helpers import COOLDOWN, LONG_AGO, NOON, TRUSTED, member, pool, seconds

UNTRIED = StartHistory()


def steps(made: Plan) -> list[tuple[str, str]]:
    """What a plan does, without the reasons."""
    return [(type(action).__name__, action.name) for action in made.actions]


def names(*numbers: int) -> list[tuple[str, str]]:
    return [("Create", f"rpi4-{number}") for number in numbers]


def verbs(made: Plan) -> Counter[str]:
    return Counter(type(action).__name__ for action in made.actions)


@pytest.mark.parametrize(
    ("given_pool", "expected"),
    [
        pytest.param(pool(), [], id="an empty pool with no demand stays empty"),
        pytest.param(pool(replicas_min=2), names(0, 1), id="the floor is filled in one pass"),
        pytest.param(
            pool(available_min=2, replicas_max=None),
            names(0, 1),
            id="the warm buffer is filled in one pass",
        ),
        pytest.param(
            pool(waiting=3), names(0, 1, 2), id="every waiting lease gets a member at once"
        ),
        pytest.param(
            pool(waiting=9), names(0, 1, 2, 3), id="a burst grows the pool to its ceiling"
        ),
        pytest.param(
            pool(waiting=9, replicas_max=None),
            names(*range(9)),
            id="without a ceiling all of a burst is served",
        ),
        pytest.param(
            pool(member(0, Phase.STARTING), waiting=1),
            [],
            id="a member that is starting is supply",
        ),
        pytest.param(
            pool(member(0, Phase.STARTING), available_min=1),
            [],
            id="a member that is starting fills the buffer",
        ),
        pytest.param(
            pool(member(0, Phase.OFFLINE), replicas_min=1),
            [],
            id="a member that lost its connection may come back",
        ),
        pytest.param(
            pool(member(0, leased=True), available_min=1),
            names(1),
            id="a leased member is not part of the buffer",
        ),
        pytest.param(
            pool(member(0, leased=True), replicas_min=1),
            [],
            id="a leased member is part of the floor",
        ),
        pytest.param(
            pool(member(0), available_min=1, waiting=1),
            names(1),
            id="the buffer is kept besides what leases wait for",
        ),
        pytest.param(
            pool(member(0), claimed=1, available_min=1),
            names(1),
            id="a free member that a lease is about to take leaves the buffer",
        ),
        pytest.param(
            pool(replicas_min=2, available_min=1, on_demand=True),
            [],
            id="on demand there is neither floor nor buffer",
        ),
        pytest.param(
            pool(replicas_min=2, available_min=1, on_demand=True, waiting=1),
            names(0),
            id="on demand there is a member for every lease",
        ),
        pytest.param(
            pool(replicas_min=2, halted="there is no class"),
            [],
            id="nothing is created while something is wrong with the set",
        ),
        pytest.param(
            pool(member(0, Phase.SPENT), available_min=1),
            [("Delete", "rpi4-0"), ("Create", "rpi4-1")],
            id="a member that served its lease is replaced",
        ),
        pytest.param(
            pool(member(0, Phase.FINISHING), available_min=1),
            names(1),
            id="a member that winds down is replaced before it is gone",
        ),
        pytest.param(
            pool(member(0, Phase.CRASHED), replicas_min=1),
            [("Delete", "rpi4-0"), ("Create", "rpi4-1")],
            id="a crashed member is replaced",
        ),
        pytest.param(
            pool(member(0, Phase.CRASHED, leased=True), replicas_min=1),
            [("Delete", "rpi4-0"), ("Create", "rpi4-1")],
            id="a crashed member is replaced although a lease holds it",
        ),
        pytest.param(
            pool(member(0, Phase.DRAINING)),
            [("Delete", "rpi4-0")],
            id="a drained member that no lease holds is deleted",
        ),
        pytest.param(
            pool(member(0, Phase.DRAINING, leased=True)),
            [],
            id="a drained member that a lease holds is left alone",
        ),
        pytest.param(
            pool(member(0, Phase.ENDING)), [], id="a member that is being deleted is left alone"
        ),
        pytest.param(
            pool(*(member(n, Phase.ENDING) for n in range(4)), waiting=2),
            [],
            id="members on their way out keep their places below the ceiling",
        ),
        pytest.param(
            pool(*(member(n, Phase.SPENT) for n in range(4)), waiting=1),
            [("Delete", f"rpi4-{n}") for n in range(4)],
            id="a place is free when the member is gone and not before",
        ),
        pytest.param(
            pool(member(0), member(3), replicas_min=4),
            names(1, 2),
            id="below a ceiling there are no more names than members",
        ),
        pytest.param(
            pool(member(0), member(3), replicas_min=4, replicas_max=None),
            names(4, 5),
            id="without a ceiling a number is not given twice",
        ),
        pytest.param(
            pool(created=7, replicas_min=1, replicas_max=None),
            names(7),
            id="numbers go on where they were, also after everybody is gone",
        ),
        pytest.param(
            pool(created=7, replicas_min=1),
            names(3),
            id="below a ceiling names go round",
        ),
        pytest.param(
            pool(replicas_min=2, taken={"rpi4-0": "another", "rpi4-2": "another"}),
            names(1, 3),
            id="a name that somebody else has is left out",
        ),
    ],
)
def test_plan(given_pool: Pool, expected: list[tuple[str, str]]) -> None:
    assert steps(plan(given_pool, now=NOON)) == expected


def test_a_pool_whose_names_others_have_says_so() -> None:
    crowded = pool(replicas_min=4, taken={"rpi4-0": "another", "rpi4-2": "another"})
    made = plan(crowded, now=NOON)
    assert steps(made) == names(1, 3)
    assert made.hold is not None
    assert (made.hold.reason, "rpi4-0" in made.hold.message) == ("NamesTaken", True)


@pytest.mark.parametrize(
    ("given_pool", "rules"),
    [
        pytest.param(pool(waiting=1), [Rule.LEASES_WAITING], id="a lease waits"),
        pytest.param(pool(available_min=1), [Rule.MIN_AVAILABLE], id="the buffer is short"),
        pytest.param(pool(replicas_min=1), [Rule.MIN_REPLICAS], id="the floor is not reached"),
        pytest.param(
            pool(waiting=1, available_min=1, replicas_min=3),
            [Rule.LEASES_WAITING, Rule.MIN_AVAILABLE, Rule.MIN_REPLICAS],
            id="leases first, then the buffer, then the floor",
        ),
        pytest.param(
            pool(member(0, Phase.FAILED, cause="BootTimeout")),
            [Rule.FAILED_TO_START],
            id="it never became ready",
        ),
    ],
)
def test_every_action_names_the_rule_that_fired(given_pool: Pool, rules: list[Rule]) -> None:
    assert [action.rule for action in plan(given_pool, now=NOON).actions] == rules


def test_an_action_comes_with_the_numbers_it_was_decided_on() -> None:
    busy = pool(member(0), member(1, Phase.STARTING), waiting=3)
    (create,) = plan(busy, now=NOON).actions
    assert create.message == "0 leased, 3 waiting, 1 idle, 1 starting; target 3, ceiling 4"
    failed = plan(pool(member(0, Phase.FAILED, cause="BootTimeout", detail="no answer")), now=NOON)
    assert failed.actions[0].message == "BootTimeout: no answer"


# Scaling down


def test_surplus_waits_for_the_cooldown_then_drains_the_newest() -> None:
    old, new = member(0, age_s=900), member(1, age_s=10)
    first = plan(pool(old, new, replicas_min=1), now=NOON)
    assert first.actions == ()
    assert first.wake_at == NOON + COOLDOWN

    later = pool(old, new, replicas_min=1, surplus=first.surplus)
    drained = plan(later, now=NOON + COOLDOWN)
    assert steps(drained) == [("Drain", "rpi4-1")]
    assert drained.actions[0].rule is Rule.SURPLUS
    assert drained.surplus is None


def test_the_whole_surplus_is_drained_at_once() -> None:
    idle = [member(n) for n in range(4)]
    ripe = pool(*idle, replicas_max=9, surplus=Surplus(since=NOON - COOLDOWN, count=4))
    assert verbs(plan(ripe, now=NOON)) == {"Drain": 4}


@pytest.mark.parametrize(
    ("lost", "drained"),
    [
        pytest.param(member(2), 1, id="all are ready, so one is replaced"),
        pytest.param(member(2, Phase.OFFLINE), 0, id="a lost one is as good as removed"),
        pytest.param(member(2, Phase.OFFLINE, leased=True), 1, id="a lease may keep it for ever"),
        pytest.param(member(2, Phase.FAILED), 0, id="a failure is recorded first"),
    ],
)
def test_a_member_that_is_not_ready_counts_against_the_disruption_budget(
    lost: Member, drained: int
) -> None:
    old = [member(number, current=False) for number in range(2)]
    made = plan(pool(*old, lost, replicas_min=3, replicas_max=3), now=NOON)
    assert verbs(made)["Drain"] == drained


def test_members_that_are_not_ready_are_drained_first() -> None:
    crowd = [member(0), member(1, Phase.HELD), member(2), member(3, Phase.OFFLINE)]
    ripe = pool(*crowd, replicas_min=2, surplus=Surplus(since=NOON - COOLDOWN, count=2))
    assert {name for _, name in steps(plan(ripe, now=NOON))} == {"rpi4-1", "rpi4-3"}


def test_members_of_the_same_second_are_drained_by_number() -> None:
    crowd = [member(n) for n in (9, 10, 8)]
    ripe = pool(*crowd, replicas_min=2, surplus=Surplus(since=NOON - COOLDOWN, count=1))
    assert steps(plan(ripe, now=NOON)) == [("Drain", "rpi4-10")]


def test_only_what_was_too_many_all_the_time_is_drained() -> None:
    """One that became idle a moment ago stays, however long another has been idle."""
    ripe = pool(member(0), member(1), member(2), surplus=Surplus(since=NOON - COOLDOWN, count=1))
    made = plan(ripe, now=NOON)
    assert verbs(made) == {"Drain": 1}
    assert made.surplus == Surplus(since=NOON, count=2)
    assert made.wake_at == NOON + COOLDOWN


def test_a_surplus_that_ends_for_a_moment_starts_a_new_cooldown() -> None:
    waiting = Surplus(since=NOON - COOLDOWN, count=1)
    assert plan(pool(member(0), claimed=1, surplus=waiting), now=NOON).surplus is None


def test_a_free_member_that_a_lease_is_about_to_take_is_no_surplus() -> None:
    made = plan(pool(member(0), claimed=1, cooldown=timedelta(0)), now=NOON)
    assert made.actions == ()


def test_without_a_cooldown_a_surplus_goes_at_once() -> None:
    assert steps(plan(pool(member(0), cooldown=timedelta(0)), now=NOON)) == [("Drain", "rpi4-0")]


def test_a_lowered_ceiling_drains_the_excess_without_a_cooldown() -> None:
    crowd = [member(n, leased=n < 2) for n in range(5)]
    made = plan(pool(*crowd, replicas_max=3, replicas_min=3), now=NOON)
    assert steps(made) == [("Drain", "rpi4-4"), ("Drain", "rpi4-3")]
    assert {action.rule for action in made.actions} == {Rule.CEILING}


def test_a_ceiling_below_what_is_leased_takes_nothing_away() -> None:
    leased = [member(n, leased=True) for n in range(3)]
    assert plan(pool(*leased, replicas_max=1), now=NOON).actions == ()


# The ceiling


@pytest.mark.parametrize(
    ("given_pool", "limited"),
    [
        pytest.param(pool(waiting=4), False, id="it reaches exactly as far as is wanted"),
        pytest.param(pool(waiting=5), True, id="more leases wait than there may be members"),
        pytest.param(
            pool(*(member(n, leased=True) for n in range(4)), available_min=1),
            True,
            id="the buffer cannot be kept",
        ),
        pytest.param(pool(waiting=5, replicas_max=None), False, id="there is none"),
    ],
)
def test_the_plan_says_whether_the_ceiling_bound(given_pool: Pool, limited: bool) -> None:
    assert plan(given_pool, now=NOON).limited is limited


# Starting, failing, ramping


def test_what_has_never_started_is_tried_with_a_few_first() -> None:
    made = plan(pool(waiting=100, replicas_max=None, start_history=UNTRIED), now=NOON)
    assert verbs(made) == {"Create": 16}


def test_every_success_doubles_what_may_be_starting() -> None:
    up = [member(n, leased=True) for n in range(12)]
    made = plan(pool(*up, waiting=100, replicas_max=None, start_history=UNTRIED), now=NOON)
    assert verbs(made) == {"Create": 24}


def test_what_is_known_to_start_is_started_in_any_number() -> None:
    made = plan(pool(waiting=300, replicas_max=None), now=NOON)
    assert verbs(made) == {"Create": 300}


def test_one_pass_creates_a_bounded_number() -> None:
    made = plan(pool(waiting=5_000, replicas_max=None), now=NOON)
    assert verbs(made) == {"Create": CREATED_AT_ONCE_MAX}


def test_enough_successes_earn_trust() -> None:
    up = [member(n, leased=True) for n in range(16)]
    made = plan(pool(*up, waiting=9, replicas_max=None, start_history=UNTRIED), now=NOON)
    assert made.start_history.trusted


def test_a_small_pool_is_trusted_once_it_is_complete() -> None:
    starting = pool(member(0), member(1, Phase.STARTING), replicas_min=2, start_history=UNTRIED)
    assert not plan(starting, now=NOON).start_history.trusted
    complete = pool(member(0), member(1), replicas_min=2, start_history=UNTRIED)
    assert plan(complete, now=NOON).start_history.trusted


def failing(count: int, *, retry_s: float = 10, at: datetime = NOON) -> StartHistory:
    return StartHistory(
        failures=Failures(
            count=count,
            at=at,
            retry_at=at + seconds(retry_s),
            reason="StartFailed",
            detail="no such file",
        )
    )


def test_a_failure_holds_creation_until_the_next_try() -> None:
    made = plan(pool(replicas_min=3, start_history=failing(1)), now=NOON + seconds(9))
    assert made.actions == ()
    assert made.hold is not None
    assert made.hold.reason == "StartBackoff"
    assert made.wake_at == NOON + seconds(10)


def test_the_next_try_after_a_failure_is_one_member() -> None:
    made = plan(pool(replicas_min=3, start_history=failing(1)), now=NOON + seconds(10))
    assert steps(made) == names(0)
    trying = pool(member(0, Phase.STARTING), replicas_min=3, start_history=failing(1))
    assert plan(trying, now=NOON + seconds(11)).actions == ()


def test_a_failure_is_noted_before_anything_else_is_tried() -> None:
    made = plan(pool(member(0, Phase.FAILED), replicas_min=1), now=NOON)
    assert steps(made) == [("Delete", "rpi4-0")]


def test_after_several_failures_creation_stops_and_names_the_error() -> None:
    made = plan(pool(replicas_min=3, start_history=failing(5)), now=NOON)
    assert made.hold is not None
    assert made.hold.reason == "StartStopped"
    assert "5 times in a row (StartFailed: no such file)" in made.hold.message
    assert "one member is tried at 12:00:10 UTC" in made.hold.message


def test_what_was_ready_before_the_clock_was_set_back_is_no_success_after_a_failure() -> None:
    before = replace(member(0), ready_at=NOON + timedelta(minutes=5))
    made = plan(pool(before, replicas_min=3, start_history=failing(1)), now=NOON)
    assert made.actions == ()


def test_what_was_ready_in_the_second_of_a_failure_is_no_success_after_it() -> None:
    made = plan(pool(member(0, ready_at=NOON), replicas_min=3, start_history=failing(1)), now=NOON)
    assert made.actions == ()


def test_what_has_stopped_is_probed_with_one() -> None:
    made = plan(pool(replicas_min=3, start_history=failing(5)), now=NOON + seconds(10))
    assert steps(made) == names(0)


def test_a_success_after_failures_lets_more_be_tried() -> None:
    up = member(0, ready_at=NOON + seconds(11))
    made = plan(pool(up, replicas_min=4, start_history=failing(5)), now=NOON + seconds(12))
    assert verbs(made) == {"Create": 2}
    assert made.start_history.failures is not None


def test_a_success_that_lasts_restores_trust() -> None:
    up = member(0, ready_at=NOON + seconds(11))
    complete = pool(up, replicas_min=1, start_history=failing(5))
    soon = plan(complete, now=NOON + seconds(12))
    assert soon.start_history.failures is not None
    assert soon.wake_at == NOON + seconds(21)
    later = plan(complete, now=NOON + seconds(21))
    assert later.start_history == TRUSTED


@pytest.mark.parametrize(
    "had",
    [
        pytest.param(member(0, Phase.SPENT), id="served its lease"),
        pytest.param(member(0, Phase.FINISHING), id="winds down"),
        pytest.param(member(0, leased=True), id="is leased"),
    ],
)
def test_failures_are_forgiven_once_somebody_got_what_was_made_after_them(had: Member) -> None:
    """Else failures hours apart would be failures in a row where no member is ready for long."""
    late = replace(had, created=NOON + seconds(11))
    made = plan(pool(late, replicas_min=8, start_history=failing(5)), now=NOON + seconds(12))
    assert made.start_history.failures is None
    assert made.hold is None
    for made_before in (NOON - seconds(1), NOON):
        early = replace(late, created=made_before)
        made = plan(pool(early, replicas_min=8, start_history=failing(5)), now=NOON + seconds(12))
        assert made.start_history.failures is not None
    before = replace(late, created=NOON + timedelta(minutes=5))
    made = plan(pool(before, replicas_min=8, start_history=failing(5)), now=NOON + seconds(12))
    assert made.start_history.failures is not None, "the clock was set back"


def test_members_that_were_up_before_the_failure_prove_nothing() -> None:
    made = plan(
        pool(member(0, leased=True), replicas_min=2, start_history=failing(1)),
        now=NOON + seconds(60),
    )
    assert not made.start_history.trusted


def test_the_pause_doubles_with_every_failure_up_to_a_minute() -> None:
    start_history = UNTRIED
    pauses = []
    for _ in range(8):
        start_history = start_throttle.failed(
            start_history, [member(0, Phase.FAILED)], now=NOON, chance=random.Random(1)
        )
        assert start_history.failures is not None
        pauses.append((start_history.failures.retry_at - NOON).total_seconds())
    assert all(0.8 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses[:6]))
    assert max(pauses) <= 60


def test_a_held_member_keeps_others_from_being_created() -> None:
    held = member(0, Phase.HELD, cause="NoCapacity", detail="12 of 12 GiB are taken")
    made = plan(pool(held, waiting=3), now=NOON)
    assert made.actions == ()
    assert made.hold is not None
    assert made.hold.reason == "NoCapacity"
    assert "12 of 12 GiB are taken" in made.hold.message


def test_a_boot_that_takes_too_long_frees_its_place() -> None:
    stuck = member(0, Phase.FAILED, cause="BootTimeout")
    full = pool(stuck, *(member(n, leased=True) for n in range(1, 4)), waiting=1)
    assert steps(plan(full, now=NOON)) == [("Delete", "rpi4-0")]
    freed = replace(full, members=full.members[1:])
    assert steps(plan(freed, now=NOON)) == names(0)


# Rolling out


def outdated(number: int, phase: Phase = Phase.READY, *, leased: bool = False) -> Member:
    return member(number, phase, current=False, leased=leased)


def test_a_rollout_makes_the_new_one_first_where_there_is_room() -> None:
    made = plan(pool(outdated(0), outdated(1), available_min=2), now=NOON)
    assert steps(made) == names(2)
    assert made.actions[0].rule is Rule.ROLLOUT


def test_a_rollout_waits_until_the_new_one_is_up() -> None:
    crowd = (outdated(0), outdated(1), member(2, Phase.STARTING))
    made = plan(pool(*crowd, available_min=2, cooldown=timedelta(0)), now=NOON)
    assert made.actions == ()


def test_a_rollout_then_drains_one_old_member() -> None:
    made = plan(pool(outdated(0), outdated(1), member(2), available_min=2), now=NOON)
    assert steps(made) == [("Drain", "rpi4-1")]
    assert made.actions[0].rule is Rule.ROLLOUT


def test_without_room_a_rollout_drains_one_and_waits_for_its_place() -> None:
    full = pool(outdated(0), outdated(1), available_min=2, replicas_max=2)
    assert steps(plan(full, now=NOON)) == [("Drain", "rpi4-1")]
    going = pool(outdated(0), outdated(1, Phase.ENDING), available_min=2, replicas_max=2)
    assert plan(going, now=NOON).actions == ()


def test_old_members_that_are_still_starting_are_replaced_at_once() -> None:
    crowd = (outdated(0, Phase.STARTING), outdated(1, Phase.STARTING))
    made = plan(pool(*crowd, available_min=2), now=NOON)
    assert verbs(made) == {"Create": 2, "Drain": 2}


def test_a_leased_member_is_never_rolled_out() -> None:
    assert plan(pool(outdated(0, leased=True)), now=NOON).actions == ()


def test_nothing_old_goes_while_the_new_fails_to_start() -> None:
    made = plan(pool(outdated(0), available_min=1, start_history=failing(1)), now=NOON)
    assert made.actions == ()


def test_old_members_nobody_needs_go_without_being_replaced() -> None:
    assert steps(plan(pool(outdated(0)), now=NOON)) == [("Drain", "rpi4-0")]


def test_a_rollout_ends_with_every_idle_member_new() -> None:
    world = pool(outdated(0), outdated(1), outdated(2, leased=True), available_min=2)
    for _ in range(20):
        world = carry_out(world, NOON)
    assert all(m.current or m.leased for m in world.members)
    assert sum(m.idle for m in world.members) == 2


# Waking up


def test_the_plan_wakes_when_a_member_is_due() -> None:
    slow = member(0, Phase.STARTING, due=NOON + seconds(30))
    assert plan(pool(slow, replicas_min=1), now=NOON).wake_at == NOON + seconds(30)


def test_a_pool_at_rest_sets_no_alarm() -> None:
    assert plan(pool(member(0), available_min=1), now=NOON).wake_at is None


# Properties. Draws are weighted: uniform ones make nearly every pool short of members, and
# a suite that never sees a surplus never tests the rules about it.

mostly_zero = st.sampled_from((0, 0, 0, 1, 3))
phases = st.sampled_from((*Phase, Phase.READY, Phase.READY, Phase.READY, Phase.STARTING))
footings = st.sampled_from((TRUSTED, TRUSTED, UNTRIED, failing(1, at=LONG_AGO), failing(6)))


def make_member(number: int, phase: Phase, leased: bool, current: bool, age_s: int) -> Member:
    leased = leased and phase not in (Phase.STARTING, Phase.HELD, Phase.SPENT, Phase.FINISHING)
    return member(number, phase, leased=leased, current=current, age_s=age_s)


members = st.lists(
    st.builds(
        make_member,
        st.integers(0, 30),
        phases,
        st.booleans(),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((1, 60, 60, 600)),
    ),
    unique_by=lambda m: m.name,
    max_size=8,
)
pools = st.builds(
    lambda crowd, **fields: pool(*crowd, **fields),
    members,
    replicas_min=mostly_zero,
    replicas_max=st.sampled_from((None, 1, 2, 4, 8)),
    available_min=mostly_zero,
    waiting=mostly_zero,
    claimed=mostly_zero,
    on_demand=st.sampled_from((False, False, False, True)),
    cooldown=st.sampled_from((timedelta(0), COOLDOWN)),
    surplus=st.sampled_from((None, Surplus(since=NOON - COOLDOWN, count=2))),
    start_history=footings,
    halted=st.sampled_from(("", "", "", "no class")),
)


@given(pools)
def test_the_ceiling_is_never_exceeded_members_on_their_way_out_included(given_pool: Pool) -> None:
    creates = verbs(plan(given_pool, now=NOON))["Create"]
    if creates and given_pool.replicas_max is not None:
        assert len(given_pool.members) + creates <= given_pool.replicas_max


@given(pools)
def test_what_a_lease_holds_is_never_touched_unless_nothing_of_it_runs(given_pool: Pool) -> None:
    dead = (Phase.CRASHED, Phase.FAILED)
    held = {m.name for m in given_pool.members if m.leased and m.phase not in dead}
    assert not held & {action.name for action in plan(given_pool, now=NOON).actions}


@given(pools)
def test_only_what_was_drained_or_is_over_is_deleted(given_pool: Pool) -> None:
    over = {Phase.DRAINING, Phase.SPENT, Phase.CRASHED, Phase.FAILED}
    found = {m.name: m.phase for m in given_pool.members}
    deleted = [a.name for a in plan(given_pool, now=NOON).actions if isinstance(a, Delete)]
    assert {found[name] for name in deleted} <= over


@given(pools)
def test_a_pool_is_never_both_short_and_long(given_pool: Pool) -> None:
    made = plan(given_pool, now=NOON)
    short = any(isinstance(a, Create) and a.rule is not Rule.ROLLOUT for a in made.actions)
    long = any(isinstance(a, Drain) and a.rule is not Rule.ROLLOUT for a in made.actions)
    assert not (short and long)


@given(pools)
def test_starting_members_are_counted_before_more_are_created(given_pool: Pool) -> None:
    made = plan(given_pool, now=NOON)
    kept = sum(m.phase in SUPPLY for m in given_pool.members) - verbs(made)["Drain"]
    if creates := verbs(made)["Create"]:
        assert kept + creates <= made.target + 1


@given(pools, st.integers())
def test_the_order_members_are_listed_in_does_not_matter(given_pool: Pool, seed: int) -> None:
    chance = random.Random(seed)
    shuffled = replace(
        given_pool, members=tuple(chance.sample(given_pool.members, len(given_pool.members)))
    )
    one, other = plan(given_pool, now=NOON), plan(shuffled, now=NOON)
    assert set(one.actions) == set(other.actions)
    assert replace(one, actions=()) == replace(other, actions=())


@given(pools)
def test_a_plan_never_wakes_in_the_past(given_pool: Pool) -> None:
    wake_at = plan(given_pool, now=NOON).wake_at
    assert wake_at is None or wake_at > NOON


@given(pools)
def test_every_pool_settles_and_then_stays_still(given_pool: Pool) -> None:
    world = given_pool
    for step in range(60):
        world = carry_out(world, NOON + step * timedelta(minutes=6))
    end = NOON + timedelta(hours=12)
    settled = carry_out(world, end)
    assert settled.members == world.members
    made = plan(settled, now=end)
    if not given_pool.halted and made.target:
        supply = [m for m in settled.members if m.phase in SUPPLY]
        occupied = len(settled.members) - len(supply)
        assert len(supply) >= min(made.target, (given_pool.replicas_max or 99) - occupied)


def carry_out(world: Pool, now: datetime) -> Pool:
    """The pool after its plan was carried out and everything that starts has started.

    Leases stay where they are and those that wait keep waiting; a pass later what was
    held has found room, what was offline is back and what was deleted is gone.
    """
    made = plan(world, now=now)
    drained = {a.name for a in made.actions if isinstance(a, Drain)}
    deleted = {a.name for a in made.actions if isinstance(a, Delete)}
    kept = [
        _moved_on(m, drained=m.name in drained, now=now)
        for m in world.members
        if m.name not in deleted and m.phase not in (Phase.ENDING, Phase.FINISHING)
    ]
    fresh = [
        replace(member(0, Phase.STARTING), name=a.name, created=now, since=now)
        for a in made.actions
        if isinstance(a, Create)
    ]
    return replace(
        world,
        members=(*kept, *fresh),
        surplus=made.surplus,
        start_history=made.start_history,
        created=made.created,
    )


def _moved_on(found: Member, *, drained: bool, now: datetime) -> Member:
    if drained:
        return replace(found, phase=Phase.DRAINING, idle=False)
    if found.phase in STARTING or found.phase is Phase.OFFLINE:
        return replace(found, phase=Phase.READY, idle=not found.leased, ready_at=now)
    return found


def test_the_ramp_can_be_configured() -> None:
    bold = StartHistory(throttle=StartThrottle(first=50))
    made = plan(pool(waiting=100, replicas_max=None, start_history=bold), now=NOON)
    assert verbs(made) == {"Create": 50}


def test_a_member_that_was_evicted_is_replaced_without_blame() -> None:
    lost = member(0, Phase.CRASHED, cause="Lost", detail="Evicted: the node was drained")
    made = plan(pool(lost, replicas_min=1), now=NOON)
    removed = next(action for action in made.actions if isinstance(action, Delete))
    assert (removed.rule, removed.message) == (Rule.LOST, "Evicted: the node was drained")
    assert not lost.blames_template
    assert lost.cause == ExitReason.LOST
