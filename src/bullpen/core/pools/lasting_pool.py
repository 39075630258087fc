"""A pool of lasting targets: which members are created, removed and updated next. Pure.

The pool keeps a count, not health: a stopped or failed member stays, a lost one is replaced,
and a leased one is never removed. ``lasting_disks`` decides about the disks of the members.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import count, islice

from bullpen.api import codec
from bullpen.api.kinds.virtualtarget import (
    RESTART,
    UpdateApproval,
    VirtualTarget,
    VirtualTargetSpec,
)
from bullpen.api.kinds.virtualtargetpool import (
    POOL_NAME,
    POOL_UID,
    TEMPLATE_HASH,
    UpdateType,
    VirtualTargetPool,
    member_name,
)
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.core import conditions
from bullpen.core.pools.refusals import Refusal, of, permitted
from bullpen.core.targets.lasting_targets import NOT_GROWN

CREATES_MAX = 500
"""Members created in one pass, in growing batches; the rest follow in the next ones."""

HASH_LENGTH = 16


class Rule(StrEnum):
    """Why something was done, for the ledger and the events."""

    MISSING = "Missing"
    SURPLUS = "Surplus"
    REMOVED_BY_NAME = "RemovedByName"
    ROLLOUT = "Rollout"
    DISKS = "Disks"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingMember:
    """A member as its pool sees it."""

    target: VirtualTarget
    leased: bool = False

    @property
    def name(self) -> str:
        return self.target.metadata.name

    @property
    def uid(self) -> str:
        return self.target.metadata.uid

    @property
    def ending(self) -> bool:
        return self.target.metadata.deletion_timestamp is not None

    @property
    def ready(self) -> bool:
        return conditions.holds(self.target.status.conditions, "Ready") and not self.ending

    @property
    def written(self) -> str:
        """The template that was written to it last."""
        return self.target.metadata.labels.get(TEMPLATE_HASH, "")

    @property
    def settled(self) -> bool:
        """Its machine runs with what was written to it, as far as it should run at all."""
        status, meta = self.target.status, self.target.metadata
        if status.observed_generation < meta.generation:
            return False
        stopped = not self.target.spec.running
        same = status.effective_revision == status.written_revision
        return stopped or (same and not self.restart_pending)

    def effective(self, template: str) -> bool:
        return self.written == template and self.settled

    @property
    def waits_to_grow(self) -> bool:
        """Whether it runs with a disk that grows in a restart, which needs no approval."""
        found = conditions.get(self.target.status.conditions, "RestartRequired")
        due = found is not None and found.reason == NOT_GROWN and self.restart_pending
        asked = self.target.metadata.annotations.get(RESTART, "")
        automatic = self.target.spec.update_approval is UpdateApproval.AUTOMATIC
        return due and automatic and asked == self.target.status.restarted and not self.ending

    @property
    def restart_pending(self) -> bool:
        return conditions.holds(self.target.status.conditions, "RestartRequired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Members that are ready, with the current template in effect and the disks they should have.

    All that a decision needs of them is their number, unless the pool shrinks.
    """

    count: int = 0
    leased: int = 0
    first_number: int = 0
    """A number that no member has had, nor any higher one."""

    members: Callable[[], Iterable[LastingMember]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingPool:
    """Everything a decision about the members of one pool looks at."""

    pool: VirtualTargetPool
    members: tuple[LastingMember, ...] = ()
    """Members to look at one by one."""

    usual: Usual = field(default_factory=lambda: Usual())
    """All other members, of which there may be thousands: ``lasting_members``."""

    taken: Container[str] = frozenset()
    """Names that targets have; those of ``members`` may be left out."""

    refusals: tuple[Refusal, ...] = ()
    spec_of: Callable[[str, VirtualTarget | None], VirtualTargetSpec] = field(
        default=lambda _name, _found: VirtualTargetSpec(virtual_target_class_name="")
    )
    """The spec a member should have, with its own disks: ``lasting_disks.Assignment``."""

    @property
    def hash(self) -> str:
        return template_hash(self.pool)

    @property
    def leaving(self) -> frozenset[str]:
        """Uids of members that were removed by name."""
        return frozenset(removal.uid for removal in self.pool.spec.removals)

    @property
    def live(self) -> tuple[LastingMember, ...]:
        """Of ``members``, those that count."""
        out = self.leaving
        return tuple(m for m in self.members if not m.ending and m.uid not in out)

    @property
    def live_count(self) -> int:
        return len(self.live) + self.usual.count

    @property
    def count(self) -> int:
        return len(self.members) + self.usual.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    name: str
    rule: Rule = Rule.MISSING
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    name: str
    rule: Rule
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Write the template to a member; its own disks stay."""

    name: str
    rule: Rule = Rule.ROLLOUT
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Approve the restart of a member, for a disk that cannot grow under its machine."""

    name: str
    rule: Rule = Rule.DISKS
    message: str = "a disk grows"


Action = Create | Delete | Update | Restart


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingPlan:
    actions: tuple[Action, ...] = ()
    gone: tuple[str, ...] = ()
    """Uids of removals whose members are gone: they are no longer recorded."""

    waiting: tuple[str, ...] = ()
    """Surplus members that leave when their lease ends."""

    missing: int = 0
    numbers: str = ""

    @property
    def creates(self) -> bool:
        return any(isinstance(action, Create) for action in self.actions)


def template_hash(pool: VirtualTargetPool) -> str:
    """Identifies the template; the count and the disk templates' sizes do not matter."""
    text = json.dumps(codec.encode(pool.spec.template), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def member_labels(pool: VirtualTargetPool) -> dict[str, str]:
    """The labels of a member whose spec is that of the current template."""
    meta = pool.metadata
    own = {POOL_UID: meta.uid, POOL_NAME: meta.name, TEMPLATE_HASH: template_hash(pool)}
    return {**pool.spec.template.metadata.labels, **own}


def plan(seen: LastingPool, *, now: datetime) -> LastingPlan:
    """The steps that bring the pool to its count and its members to its template.

    1. Members removed by name are deleted; one that a lease holds is kept by its finalizer
       until the lease ends, and takes no other.
    2. Below the count, the missing members are created under names that were never used.
    3. Above it, members without a lease go: those that are not ready first, then by policy;
       an Explicit pool removes none.
    4. At the count, the template reaches the members by the update strategy.
    """
    spec, live = seen.pool.spec, seen.live_count
    known = {member.uid for member in seen.members}
    gone = tuple(removal.uid for removal in spec.removals if removal.uid not in known)
    numbers = f"{live} of {spec.replicas} members"
    missing = max(0, spec.replicas - live)
    if spec.paused:
        return LastingPlan(gone=gone, missing=missing, numbers=numbers)
    named = _removed_by_name(seen)
    creates = _creates(seen, missing, numbers, now)
    victims, waiting = _surplus(seen, live - spec.replicas, numbers)
    rollout: tuple[Action, ...] = ()
    if not creates and not victims:
        rollout = (*_repairs(seen), *_rollout(seen))
        rollout = (*rollout, *_restarts(seen, len(rollout)))
    return LastingPlan(
        actions=(*named, *creates, *victims, *rollout),
        gone=gone,
        waiting=waiting,
        missing=missing,
        numbers=numbers,
    )


def _removed_by_name(seen: LastingPool) -> tuple[Delete, ...]:
    out = seen.leaving
    return tuple(
        Delete(name=m.name, rule=Rule.REMOVED_BY_NAME, message="removed by name")
        for m in seen.members
        if m.uid in out and not m.ending
    )


def _creates(seen: LastingPool, missing: int, numbers: str, now: datetime) -> tuple[Create, ...]:
    pool = seen.pool.metadata.name
    used = {member.name for member in seen.members}
    # From the number on record, not from the highest that was seen: another process may be
    # creating those between, and finds the names taken, or this one does.
    candidates = (member_name(pool, number) for number in count(seen.pool.status.created))
    unused = (name for name in candidates if name not in used and name not in seen.taken)
    free = islice(unused, min(missing, CREATES_MAX))
    wanted = [Create(name=name, message=numbers) for name in free]
    return tuple(permitted(of(seen.refusals, "Create"), wanted, now=now))


def next_number(seen: LastingPool) -> int:
    """The number to put on record: no later member has a lower one, so no name is used twice."""
    prefix = f"{seen.pool.metadata.name}-"
    tails = (m.name.removeprefix(prefix) for m in seen.members if m.name.startswith(prefix))
    numbers = [int(tail) + 1 for tail in tails if tail.isascii() and tail.isdigit()]
    return max((seen.pool.status.created, seen.usual.first_number, *numbers))


def _surplus(
    seen: LastingPool, surplus: int, numbers: str
) -> tuple[tuple[Delete, ...], tuple[str, ...]]:
    """The members to remove now, and those that wait for the end of their lease."""
    policy = seen.pool.spec.scale_down_policy
    if surplus <= 0 or policy is ScaleDownPolicy.EXPLICIT:
        return (), ()
    order = scale_down_order((*seen.live, *seen.usual.members()), policy)
    idle = [m for m in order if not m.leased][:surplus]
    waiting = [m.name for m in order if m.leased][: surplus - len(idle)]
    message = f"{numbers}, {policy}"
    deletes = (Delete(name=m.name, rule=Rule.SURPLUS, message=message) for m in idle)
    return tuple(deletes), tuple(waiting)


def scale_down_order(
    members: Sequence[LastingMember], policy: ScaleDownPolicy
) -> list[LastingMember]:
    """Members in the order in which they go: not ready first, then by age, then by number.

    Times have a resolution of one second and a batch shares one, so the number in the name
    decides, which is the order of creation.
    """
    newest = policy is not ScaleDownPolicy.OLDEST_FIRST
    by_age = sorted(members, key=_age, reverse=newest)
    return sorted(by_age, key=lambda member: member.ready)


def _age(member: LastingMember) -> tuple[str, int, str]:
    created = member.target.metadata.creation_timestamp
    tail = member.name.rpartition("-")[2]
    number = int(tail) if tail.isascii() and tail.isdigit() else 0
    return (created.isoformat() if created else "", number, member.name)


def allowed_unavailable(pool: VirtualTargetPool) -> int:
    """How many members an update may make unavailable at once: at least one."""
    given = pool.spec.update_strategy.max_unavailable
    text = str(given)
    if not text.endswith("%"):
        return max(1, int(text))
    return max(1, math.floor(pool.spec.replicas * int(text[:-1]) / 100))


def _rollout(seen: LastingPool) -> tuple[Update | Delete, ...]:
    strategy = seen.pool.spec.update_strategy.type
    if strategy is UpdateType.ON_DELETE:
        return ()
    template, live = seen.hash, seen.live
    outdated = sorted((m for m in live if m.written != template), key=_age)
    if strategy is UpdateType.REPLACE:
        outdated = [m for m in outdated if not m.leased]
    if not outdated:
        return ()
    at_once = strategy is UpdateType.IN_PLACE
    free = [m for m in outdated if at_once and not _needs_restart(seen, m)]
    rest = [m for m in outdated if m not in free]
    # A member that is not ready is no loss; every other one takes a place until it is ready.
    busy = sum(m.written == template and not _is_up(m) for m in live)
    room = max(0, allowed_unavailable(seen.pool) - busy)
    down = [m for m in rest if not m.ready and not m.leased]
    up = sorted((m for m in rest if m not in down), key=lambda m: (m.leased, *_age(m)))
    chosen = [*free, *down[:room], *up[: max(0, room - len(down))]]
    message = f"template {template}, {len(outdated)} of {seen.live_count} members are outdated"
    if strategy is UpdateType.REPLACE:
        return tuple(Delete(name=m.name, rule=Rule.ROLLOUT, message=message) for m in chosen)
    return tuple(Update(name=m.name, message=message) for m in chosen)


def _repairs(seen: LastingPool) -> tuple[Update, ...]:
    """Members of the current template that name another disk than their own."""
    template = seen.hash
    return tuple(
        Update(name=m.name, rule=Rule.DISKS, message="its disks changed")
        for m in seen.live
        if m.written == template and m.target.spec.disks != seen.spec_of(m.name, m.target).disks
    )


def _restarts(seen: LastingPool, others: int) -> tuple[Restart, ...]:
    """Members whose disks grow in a restart, as many as an update may make unavailable."""
    waiting = [m for m in seen.live if m.waits_to_grow]
    if not waiting or seen.pool.spec.update_strategy.type is UpdateType.ON_DELETE:
        return ()
    busy = sum(not _is_up(m) and not m.waits_to_grow for m in seen.live)
    room = max(0, allowed_unavailable(seen.pool) - busy - others)
    idle = sorted((m for m in waiting if not m.leased), key=_age)
    return tuple(Restart(name=m.name) for m in idle[:room])


def _is_up(member: LastingMember) -> bool:
    """Whether it does what its template says, as far as can be seen."""
    return member.settled and (member.ready or not member.target.spec.running)


def _needs_restart(seen: LastingPool, member: LastingMember) -> bool:
    """Whether writing the template makes the member restart by itself."""
    wanted, found = seen.spec_of(member.name, member.target), member.target.spec
    if wanted.update_approval is UpdateApproval.MANUAL:
        return False
    live = replace(
        found, restart_policy=wanted.restart_policy, update_approval=wanted.update_approval
    )
    return live != wanted
