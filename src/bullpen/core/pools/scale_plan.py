"""How large should a pool be, and which members should change?

This module decides. It does not act: no await, no I/O, no clock, no random numbers.
``controllers.pools.exporterset_reconciler`` gathers a ``Pool``, calls ``plan`` and performs
the returned actions.

Two guarantees hold for every plan. A pool never exceeds its ceiling, including members that
are being removed. A member that a lease holds is drained only if it was removed by name, which
lets its lease go on, and is deleted only if its instance no longer runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.core.pools import member_names, refusals, start_throttle
from bullpen.core.pools.member_index import MemberIndex, MemberSubset
from bullpen.core.pools.members import SUPPLY, Member, Phase
from bullpen.core.pools.refusals import Refusal
from bullpen.core.pools.rollout import Rollout, drain_order, rollout_of
from bullpen.core.pools.sizes import Sizes
from bullpen.core.pools.start_throttle import UNTRIED, Hold, StartHistory
from bullpen.kit import times

CREATED_AT_ONCE_MAX = 500
"""Members created in one pass; the resulting events start the next pass."""


NAMES_TAKEN = "NamesTaken"
REMAINS = "has an instance that cannot be removed"
PAUSED = "the pool is paused by spec.paused of its ExporterSet"


class Rule(StrEnum):
    """The reason for an action; stable, because people and programs read it."""

    LEASES_WAITING = "LeasesWaiting"
    MIN_AVAILABLE = "MinAvailable"
    MIN_REPLICAS = "MinReplicas"
    ROLLOUT = "Rollout"
    SURPLUS = "Surplus"
    CEILING = "AboveCeiling"
    PAUSED = "Paused"
    REMOVED_BY_NAME = "RemovedByName"
    DRAINED = "Drained"
    SPENT = "Spent"
    CRASHED = "Crashed"
    LOST = "Lost"
    FAILED_TO_START = "FailedToStart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """Members that are not needed."""

    since: datetime
    count: int
    """The smallest surplus since then: that many may be drained when the cooldown is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything ``plan`` may look at, read at one revision."""

    name: str
    replicas_min: int = 0
    replicas_max: int | None = 4
    available_min: int = 0
    cooldown: timedelta = timedelta(minutes=5)
    paused: bool = False
    """Nothing is started, and what no lease holds is removed."""

    policy: ScaleDownPolicy = ScaleDownPolicy.NEWEST_FIRST
    removals: tuple[str, ...] = ()
    """Uids of members that were removed by name."""

    on_demand: bool = False
    """Members are created for leases only: neither floor nor warm buffer."""

    members: Sequence[Member] = ()
    """A ``MemberIndex`` if there may be thousands."""

    waiting: int = 0
    """Leases that a new or starting member has to serve."""

    claimed: int = 0
    """Leases that will be assigned a member that is already free."""

    surplus: Surplus | None = None
    start_history: StartHistory = UNTRIED
    refusals: tuple[Refusal, ...] = ()
    """Operations on members that the API server refused last time."""

    held: Hold | None = None
    """The capacity hold of the last pass."""

    halted: str = ""
    """Why no member can be created at all, such as a missing class."""

    created: int = 0
    """Members ever created; the next name follows theirs."""

    taken: Mapping[str, str] = field(default_factory=dict)
    """Names that no new member can have, and what has them: exporters outside the pool."""

    stuck: Mapping[str, str] = field(default_factory=dict)
    """Names of members, present or past, whose instance cannot be removed, and why."""

    @property
    def member_index(self) -> MemberIndex:
        return MemberIndex.of(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    name: str
    rule: Rule
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Stop offering the member to new leases; a later pass deletes it."""

    name: str
    rule: Rule
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    name: str
    rule: Rule
    message: str


Action = Create | Drain | Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    actions: tuple[Action, ...]
    target: int
    """How many members there should be."""

    wanted: int
    """How many members there would be without a ceiling."""

    hold: Hold | None
    """Why fewer members are started than are missing."""

    missing: int
    """Members that are not started yet, or wait for capacity."""

    numbers: str
    """The numbers behind the plan, for users."""

    start_history: StartHistory
    refusals: tuple[Refusal, ...]
    """Refused operations that are still wanted."""

    surplus: Surplus | None
    created: int
    gone: tuple[str, ...] = ()
    """Uids of removals whose members are gone: they are no longer recorded."""

    wake_at: datetime | None

    @property
    def limited(self) -> bool:
        """Whether the ceiling keeps the pool below its desired size."""
        return self.wanted > self.target


def plan(pool: Pool, *, now: datetime) -> Plan:
    """Return the steps that move ``pool`` one pass closer to its target size.

    Rules, in order:

    1. Members that crashed, failed to start, served their one lease or were drained are
       deleted.
    2. Below target, the whole deficit is created at once, within ceiling and throttle. Names
       are known in advance and no more than the ceiling, so a redundant ``Create`` collides,
       and starting members count.
    3. Members of an old template or class that no lease holds are replaced: starting members
       at once, the others one by one.
    4. Above the ceiling, the excess is drained at once; above target, the members that were
       surplus for a full cooldown. The ceiling of a paused pool is 0. An Explicit pool drains
       none of them.
    5. Members removed by name are drained at once.

    An operation that the API server refused is tried again on one member, when its pause is
    over.
    """
    member_index = pool.member_index
    rollout = _rollout(pool, member_index, now)
    leaving = [m for m in member_index.unusual if m.leaving]
    supply = _supply(member_index, but={m.name for m in (*rollout.unborn, *leaving)})
    sizes = Sizes.of(
        supply,
        needed=pool.claimed + pool.waiting,
        buffer=0 if pool.on_demand else pool.available_min,
        floor=0 if pool.on_demand else pool.replicas_min,
        ceiling=0 if pool.paused else pool.replicas_max,
        occupied=len(member_index),
    )
    missing = sizes.target - len(supply)
    start_history = start_throttle.failures_cleared(
        pool.start_history, member_index.whole(), now=now
    )
    start_history = start_throttle.trust_restored(start_history, supply, short=missing > 0, now=now)
    if start_history.failures is None:
        rollout = replace(rollout, failing=False, blind=False)
    creates, hold = _creates(pool, member_index, supply, sizes, start_history, rollout, now)
    replaced = rollout.replaced(supply, sizes)
    excess, surplus = _surplus(pool, supply, replaced, sizes, rollout.spare(replaced), now)
    deletes = [_delete(m) for m in member_index.unusual if _is_over(m)]
    outdated = [_drain(m, Rule.ROLLOUT, _OUTDATED) for m in (*rollout.unborn, *replaced)]
    named = [_drain(m, Rule.REMOVED_BY_NAME, _NAMED) for m in leaving if m.phase in SUPPLY]
    allowed = _permitted(pool, (deletes, creates, (*named, *outdated, *excess)), now)
    refused = refusals.of(allowed.refusals, Create.__name__)
    if refused is not None:
        hold = refusals.hold(refused)
    made = Plan(
        actions=allowed.actions,
        target=sizes.target,
        wanted=sizes.wanted,
        hold=hold if missing > 0 or pool.paused or (hold is not None and hold.capacity) else None,
        missing=max(0, missing) + sum(m.phase is Phase.HELD for m in supply.unusual),
        numbers=sizes.text(waiting=pool.waiting, claimed=pool.claimed),
        start_history=start_history,
        refusals=allowed.refusals,
        surplus=pool.surplus if allowed.withheld & set(excess) else surplus,
        created=_created(pool, [a for a in allowed.actions if isinstance(a, Create)]),
        gone=tuple(uid for uid in pool.removals if uid not in {m.uid for m in leaving}),
        wake_at=_wake_at(pool, member_index, surplus, start_history, now),
    )
    _check(pool, member_index, made)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Permitted:
    """The part of a plan that refusals do not delay."""

    actions: tuple[Action, ...]
    withheld: Set[Action]
    refusals: tuple[Refusal, ...]
    """Those of the operations that the plan wants."""


def _permitted(pool: Pool, wanted: Sequence[Sequence[Action]], now: datetime) -> _Permitted:
    """``wanted`` has the actions of each operation in a list of its own."""
    actions: list[Action] = []
    found: list[Refusal] = []
    for group in wanted:
        refusal = refusals.of(pool.refusals, type(group[0]).__name__) if group else None
        actions.extend(refusals.permitted(refusal, group, now=now))
        if refusal is not None:
            found.append(refusal)
    everything = {action for group in wanted for action in group}
    return _Permitted(
        actions=tuple(actions), withheld=everything - set(actions), refusals=tuple(found)
    )


def _rollout(pool: Pool, member_index: MemberIndex, now: datetime) -> Rollout:
    """Nothing is replaced that could not be created again."""
    if pool.halted:
        return Rollout()
    return rollout_of(member_index, pool.start_history, now=now)


def _supply(member_index: MemberIndex, *, but: Set[str] = frozenset()) -> MemberSubset:
    """Members that serve a lease or will; all usual members do."""
    return MemberSubset(
        member_index,
        tuple(m for m in member_index.unusual if m.phase in SUPPLY and m.name not in but),
    )


def _creates(
    pool: Pool,
    member_index: MemberIndex,
    supply: MemberSubset,
    sizes: Sizes,
    start_history: StartHistory,
    rollout: Rollout,
    now: datetime,
) -> tuple[tuple[Create, ...], Hold | None]:
    if pool.paused:
        return (), Hold(reason="Paused", message=PAUSED)
    if pool.halted:
        return (), Hold(reason="Halted", message=pool.halted)
    missing = max(0, sizes.target - len(supply)) + rollout.surges(supply, sizes)
    allowed = start_throttle.allowance(start_history, member_index.whole(), held=pool.held, now=now)
    count = min(sizes.fitting(missing), allowed.count, CREATED_AT_ONCE_MAX)
    if not count:
        return (), allowed.hold
    names = member_names.new_names(
        pool.name,
        count,
        ceiling=pool.replicas_max,
        created=pool.created,
        members=(m.name for m in member_index),
        taken=(*pool.taken, *pool.stuck),
    )
    text = sizes.text(waiting=pool.waiting, claimed=pool.claimed)
    creates = tuple(
        Create(name=name, rule=_reason(sizes, place), message=text)
        for place, name in enumerate(names, start=len(supply))
    )
    return creates, allowed.hold if len(names) == count else _crowded(pool)


def _crowded(pool: Pool) -> Hold:
    """Names that its members need cannot be used, so the pool cannot grow for now.

    Below a ceiling there are as many names as places (ADR 0014).
    """
    members = {m.name for m in pool.member_index.unusual}
    used = {name: f"{name} is {who}" for name, who in pool.taken.items()}
    used |= {name: f"{name} {REMAINS}: {why}" for name, why in pool.stuck.items()}
    found = sorted(name for name in used if name not in members)
    if not found:
        return Hold(reason=NAMES_TAKEN, message="all member names are in use")
    many = "1 member name is" if len(found) == 1 else f"{len(found)} member names are"
    return Hold(reason=NAMES_TAKEN, message=f"{many} in use: {used[found[0]]}")


def _reason(sizes: Sizes, place: int) -> Rule:
    """The rule for which the member in this place is created; the first places are for leases."""
    if place >= sizes.target:
        return Rule.ROLLOUT
    if place < sizes.needed:
        return Rule.LEASES_WAITING
    return Rule.MIN_AVAILABLE if place < sizes.needed + sizes.buffer else Rule.MIN_REPLICAS


def _surplus(
    pool: Pool,
    supply: MemberSubset,
    replaced: Sequence[Member],
    sizes: Sizes,
    spare: int,
    now: datetime,
) -> tuple[tuple[Drain, ...], Surplus | None]:
    """What to drain now, and what may be drained later.

    Only as many members are drained as were surplus all the time: a member that became idle a
    moment ago is not drained because another one has been idle for long. A member that has
    never been ready is not surplus: its boot would be wasted, and the next lease boot another.
    """
    if pool.policy is ScaleDownPolicy.EXPLICIT:
        # Not remembered either: another policy begins with a full cooldown.
        return (), None
    count = len(supply) - len(replaced)
    above = 0 if sizes.ceiling is None else max(0, count - sizes.ceiling)
    # Above the ceiling, members that are not ready go first.
    booting = max(0, sum(m.phase is Phase.STARTING for m in supply.unusual) - above)
    rest = count - above - booting - sizes.target - spare
    before = (pool.surplus or Surplus(since=now, count=rest)) if rest > 0 else None
    least = min(before.count, rest) if before is not None else 0
    ripe = least if before is not None and times.shifted(before.since, pool.cooldown) <= now else 0
    order: list[Member] = []
    if above or ripe:
        newest = pool.policy is ScaleDownPolicy.NEWEST_FIRST
        idle = (m for m in supply if not m.leased and m not in replaced)
        order = drain_order(idle, newest_first=newest)
        ready = [m for m in order[above:] if m.phase is not Phase.STARTING]
        order = [*order[:above], *ready]
    rule = Rule.PAUSED if pool.paused else Rule.CEILING
    text = PAUSED if pool.paused else f"the ceiling is {sizes.ceiling}"
    drains = [_drain(m, rule, text) for m in order[:above]]
    if before is None:
        return tuple(drains), None
    if not ripe:
        return tuple(drains), Surplus(since=before.since, count=least)
    text = f"{rest} above the target of {sizes.target} since {before.since:%H:%M:%S} UTC"
    drains += [_drain(m, Rule.SURPLUS, text) for m in order[above : above + ripe]]
    left = rest - ripe
    return tuple(drains), Surplus(since=now, count=left) if left else None


def _is_over(member: Member) -> bool:
    if member.phase is Phase.DRAINING:
        return not member.leased
    return member.phase in (Phase.CRASHED, Phase.FAILED, Phase.SPENT)


def _delete(member: Member) -> Delete:
    rule = _ENDS[member.phase]
    if member.phase is Phase.CRASHED and member.cause == _LOST:
        # It was evicted, or its host went away: nothing is wrong with the member.
        return Delete(name=member.name, rule=Rule.LOST, message=member.detail or _LOST)
    # Without a cause, the detail says what a member was doing, not why it is removed.
    said = f"{member.cause}: {member.detail}" if member.cause and member.detail else member.cause
    return Delete(name=member.name, rule=rule, message=said or _MEANINGS[rule])


_ENDS = {
    Phase.DRAINING: Rule.DRAINED,
    Phase.CRASHED: Rule.CRASHED,
    Phase.FAILED: Rule.FAILED_TO_START,
    Phase.SPENT: Rule.SPENT,
}
_LOST = "Lost"
"""Cause of a member whose instance ended with its host; ``ExitReason.LOST`` of instances."""

_OUTDATED = "created from an older template or class"
_NAMED = "removed by name; no new lease gets it"
_MEANINGS = {
    Rule.DRAINED: "disabled, and no lease holds it",
    Rule.CRASHED: "it failed after it had been ready",
    Rule.FAILED_TO_START: "it never became ready",
    Rule.SPENT: "it served its one lease",
}


def _drain(member: Member, rule: Rule, message: str) -> Drain:
    return Drain(name=member.name, rule=rule, message=message)


def _created(pool: Pool, creates: Sequence[Create]) -> int:
    """The number of members ever created after this plan; without a ceiling, the next number."""
    if pool.replicas_max is not None:
        return pool.created + len(creates)
    return max((member_names.number(pool.name, c.name) + 1 for c in creates), default=pool.created)


def _wake_at(
    pool: Pool,
    member_index: MemberIndex,
    surplus: Surplus | None,
    start_history: StartHistory,
    now: datetime,
) -> datetime | None:
    """The next moment at which time alone changes the plan."""
    moments = [m.due for m in member_index.unusual if m.due is not None]
    moments.extend(start_throttle.wakes(start_history, member_index.whole()))
    if surplus is not None:
        moments.append(times.shifted(surplus.since, pool.cooldown))
    return min((moment for moment in moments if moment > now), default=None)


def _check(pool: Pool, member_index: MemberIndex, made: Plan) -> None:
    """Check the guarantees; a violation is a bug in this module and must not be carried out."""
    creates = sum(isinstance(action, Create) for action in made.actions)
    if creates and pool.replicas_max is not None:
        assert len(member_index) + creates <= pool.replicas_max, "the ceiling would be exceeded"
    touched = {action.name for action in made.actions}
    taken = {action.name for action in made.actions if action.rule is not Rule.REMOVED_BY_NAME}
    members = [m for m in map(member_index.get, taken) if m is not None]
    held = [m for m in members if m.leased and m.phase not in _GONE]
    assert not held, "a member that a lease holds would be taken away"
    assert len(touched) == len(made.actions), "one member would be changed twice"


_GONE = frozenset({Phase.CRASHED, Phase.FAILED})
