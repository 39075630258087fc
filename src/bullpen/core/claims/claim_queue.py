"""One pass over all waiting claims: who starts now, who waits for what, who is ended for whom.

Claims are served by priority, then by age less the handicap of their tenants. Within a pass
devices only become fewer, so terms that failed once are not tried again.

A begin time is a reservation: it is booked when the claim is first seen, and a claim that
would still run then does not get the booked devices. The first claims that cannot start are
given a reservation too, at the earliest time that leases leave them enough; shorter work is
fitted in before it. So a claim for many devices does not wait behind endless small ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator, Answer, Member, Verdict
from bullpen.core.claims.claim import Terms, due_terms
from bullpen.core.claims.device_demand import DeviceDemand
from bullpen.core.claims.device_exchange import DeviceExchange
from bullpen.core.claims.gang_claims import GangClaims
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.preemption_victims import Holder, PreemptionVictims
from bullpen.core.claims.single_claims import SingleClaims
from bullpen.core.claims.timeline import Timeline
from bullpen.core.claims.work import BUDGET, PassBudget
from bullpen.core.leases import fair_share
from bullpen.core.leases.fair_share import NO_HANDICAP
from bullpen.core.leases.preemption import PREEMPTION
from bullpen.kit import times

SHADOWS_MAX = 8
"""Waiting claims that are given a reservation in one pass."""

PROBES_MAX = 64
"""Waiting claims for which a time is looked for in one pass. Some never find one."""

MOMENTS_MAX = 64
"""Times that are tried for the reservation of one claim, beyond a bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClaim:
    """A claim in the queue."""

    name: str
    terms: Terms
    since: datetime
    duration: timedelta
    tenant: str = ""
    priority: int = 0
    admin: bool = False
    """Whether it may end every holder that has no admin access itself."""

    begin: datetime | None = None
    """When its reservation begins; None if it is needed now."""

    allowed: int | None = None
    """The devices that policies allow; None for all."""

    kept: int = 0
    """What its leases ask for already, from an earlier pass; of equal devices it keeps those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Devices that a claim has from one time to another."""

    claim: str
    devices: int
    """By number in the index of the pass."""

    begin: datetime
    end: datetime

    def overlaps(self, begin: datetime, end: datetime) -> bool:
        return self.begin < end and self.end > begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The claim gets its devices now."""

    claim: str
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The claim gets these devices at its begin time."""

    claim: str
    answer: Answer
    begin: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """End these holders, cheapest first, so that the claim can start."""

    claim: str
    holders: tuple[str, ...]
    devices: tuple[str, ...] = ()
    """What is kept for it."""


class WaitReason(StrEnum):
    """Why a claim stays in the queue."""

    NOT_AVAILABLE = "NotAvailable"
    NOT_DUE = "NotDue"
    """None of its alternatives is open yet."""

    RESERVED = "Reserved"
    """Its begin time is booked."""

    UNKNOWN = "Unknown"
    """The work budget was used up."""

    UNSATISFIABLE = "Unsatisfiable"
    """It could not be served even if every device were free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The claim stays in the queue."""

    claim: str
    reason: WaitReason
    starts: datetime | None = None
    """When it is expected to start; known for the first claims of the queue."""

    devices: tuple[str, ...] = ()
    """What is kept for it from then on."""


Decision = Start | Book | Preempt | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Everything one pass looks at, read at one revision."""

    claims: tuple[WaitingClaim, ...]
    uses: tuple[Use, ...] = ()
    holders: Mapping[str, Holder] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    """Begin times that were booked in earlier passes."""

    held_min: timedelta = PREEMPTION.held_min
    """A holder is not ended for a higher priority before it had its devices for so long."""

    handicaps: Mapping[str, timedelta] = field(default_factory=dict)
    """For each tenant by how much recent use delays its claims; see ``core.leases.fair_share``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a pass left, for those who ask why a claim waits."""

    given: tuple[Use, ...]
    """What claims get in this pass, or is kept for them while others end for them."""

    reserved: tuple[Reservation, ...]
    """What it booked or keeps for later, besides what was booked before."""

    with_room: Callable[[Terms, int], bool]
    """Whether terms could be served with some devices if claims of the pass exchanged theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decisions of a pass, and what it left."""

    decisions: tuple[Decision, ...]
    left: Callable[[], Left]
    """Gathered when it is first asked for: often no claim waits."""


def decide(
    allocator: Allocator, queue: Queue, *, now: datetime, budget: int = BUDGET
) -> tuple[Decision, ...]:
    """One decision for each claim, in the order in which they are served."""
    return _Pass(allocator, queue, now, budget).run()


def decide_all(
    allocator: Allocator, queue: Queue, *, now: datetime, budget: int = BUDGET
) -> Decided:
    """The same, with what the claims left."""
    found = _Pass(allocator, queue, now, budget)
    return Decided(decisions=found.run(), left=cache(found.left))


def affected(allocator: Allocator, terms: Iterable[Terms], device: str) -> list[Terms]:
    """Those of ``terms`` that could use a device which was freed or has changed.

    The others need no new answer. Alternatives that are not open yet count too.
    """
    bit = 1 << allocator.index.numbers[device]
    return [asked for asked in terms if allocator.usable(asked) & bit]


class _Pass:
    def __init__(self, allocator: Allocator, queue: Queue, now: datetime, budget: int) -> None:
        self._allocator, self._queue, self._now = allocator, queue, now
        self._budget = PassBudget(budget)
        self._again = frozenset(allocator.unanswered)
        allocator.unanswered.clear()
        self._uses = [use for use in queue.uses if use.until is None or use.until > now]
        self._ledger = Ledger(allocator.index, self._uses)
        self._before = tuple(self._uses)
        self._given: list[tuple[WaitingClaim, Answer]] = []
        """What claims get in this pass, before any of them is moved."""

        self._taken: list[tuple[WaitingClaim, Answer]] = []
        """What claims get and ``_uses`` does not have yet: few passes need it."""

        demand = DeviceDemand(allocator, (claim.terms for claim in queue.claims))
        self._exchange = DeviceExchange(allocator, self._ledger, demand, self._reach)
        self._moves = 0
        """How many moves ``_uses`` has."""

        self._singles = SingleClaims(self._exchange)
        self._gangs = GangClaims(self._exchange, self._searched)
        self._reservations = list(queue.reservations)
        self._failed: set[tuple[Terms, int, int | None]] = set()
        self._unknown: set[tuple[Terms, int, int | None]] = set()
        self._marks: dict[int, int] = {}
        """A small number for each set of devices that claims may use; large ones hash slowly."""

        self._shadows = 0
        self._probes = 0
        self._victims = PreemptionVictims(
            allocator.index,
            self._ledger,
            self._before,
            queue.holders,
            now=now,
            held_min=queue.held_min,
        )
        self._promised: list[Use] = []
        """What is kept for claims for which others end."""

        self._open: dict[timedelta, tuple[int, int]] = {}
        """By duration, the devices that are not reserved for so long; and their mark."""

        self._windows: dict[tuple[datetime, datetime, int], int] = {}
        self._booked = {r.claim: r for r in queue.reservations}
        self._known: tuple[int, Timeline] | None = None

    @property
    def _timeline(self) -> Timeline:
        """When uses end, as of the uses that are known by now."""
        uses = self._current_uses()
        if self._known is None or self._known[0] != len(uses):
            self._known = len(uses), Timeline(self._allocator.index, uses)
        return self._known[1]

    def _current_uses(self) -> Sequence[Use]:
        """Who has what, with what was handed out in this pass."""
        if self._moves != self._exchange.moves:
            moved = self._exchange.moved()
            given = ((claim, moved.get(claim.name, answer)) for claim, answer in self._given)
            self._uses, self._taken, self._known = list(self._before), list(given), None
            self._moves = self._exchange.moves
        for claim, answer in self._taken:
            self._uses += self._used_by(claim, answer.members)
        self._taken.clear()
        return self._uses

    def _used_by(self, claim: WaitingClaim, members: Iterable[Member]) -> Iterator[Use]:
        """What a claim uses if it starts now."""
        end = times.shifted(self._now, claim.duration)
        for member in members:
            yield Use(device=member.device, holder=claim.name, share=member.share, until=end)

    def run(self) -> tuple[Decision, ...]:
        decisions = [self._decide(claim) for claim in sorted(self._queue.claims, key=self._turn)]
        moved = self._exchange.moved()
        return tuple(
            Start(claim=d.claim, answer=moved[d.claim]) if d.claim in moved else d
            for d in decisions
        )

    def left(self) -> Left:
        return Left(
            given=(*self._current_uses()[len(self._before) :], *self._promised),
            reserved=tuple(self._reservations[len(self._queue.reservations) :]),
            with_room=self._gangs.could_have,
        )

    def _turn(self, claim: WaitingClaim) -> tuple[int, datetime, str]:
        """The order of leases too, see ``core.leases.requests``."""
        handicap = self._queue.handicaps.get(claim.tenant, NO_HANDICAP)
        return (-claim.priority, fair_share.delayed(claim.since, handicap), claim.name)

    def _decide(self, claim: WaitingClaim) -> Decision:
        booked = self._booked.get(claim.name)
        if booked is not None and booked.begin > self._now:
            return Wait(claim=claim.name, reason=WaitReason.RESERVED, starts=booked.begin)
        if claim.begin is not None and claim.begin > self._now:
            return self._book(claim, claim.begin)
        terms = due_terms(claim.terms, self._now - claim.since)
        if terms is None:
            return Wait(claim=claim.name, reason=WaitReason.NOT_DUE)
        usable, mark = self._usable(claim, booked)
        key = (terms, mark, claim.allowed)
        if key in self._failed:
            return Wait(claim=claim.name, reason=WaitReason.NOT_AVAILABLE)
        if key in self._unknown:
            return Wait(claim=claim.name, reason=WaitReason.UNKNOWN)
        answer = self._answer(claim, terms, usable)
        if answer.verdict is Verdict.SATISFIED:
            self._take(claim, answer)
            if booked is None:
                self._exchange.served(claim, terms, answer)
            return Start(claim=claim.name, answer=answer)
        if answer.verdict is Verdict.UNKNOWN:
            self._allocator.unanswered.add(terms)
            self._unknown.add(key)
            return Wait(claim=claim.name, reason=WaitReason.UNKNOWN)
        victims = self._victims.of(
            claim,
            self._allocator.usable(terms),
            lambda ledger: self._ask(claim, terms, ledger, usable),
        )
        if victims is not None:
            self._promised += self._used_by(claim, victims.kept)
            # Others that end before do not get what these holders have.
            self._fence(claim, victims.answer, self._now)
            devices = victims.answer.devices
            return Preempt(claim=claim.name, holders=victims.holders, devices=devices)
        self._failed.add(key)
        if self._shadows < SHADOWS_MAX and self._probes < PROBES_MAX:
            return self._reserve(claim)
        return Wait(claim=claim.name, reason=WaitReason.NOT_AVAILABLE)

    def _answer(self, claim: WaitingClaim, terms: Terms, usable: int) -> Answer:
        """What the claim gets of what is left."""
        allowed = usable if claim.allowed is None else usable & claim.allowed
        if not terms.single:
            return self._gangs.ask(claim, terms, allowed)
        answer = self._singles.ask(claim, terms, allowed)
        return answer or self._ask(claim, terms, self._ledger, usable)

    def _reach(self, claim: WaitingClaim) -> int:
        """The devices that a claim without a booking may use now."""
        usable, _ = self._usable(claim, None)
        return usable if claim.allowed is None else usable & claim.allowed

    def _ask(self, claim: WaitingClaim, terms: Terms, ledger: Ledger, usable: int) -> Answer:
        allowed = usable if claim.allowed is None else usable & claim.allowed
        return self._searched(terms, ledger, allowed)

    def _searched(self, terms: Terms, ledger: Ledger, allowed: int) -> Answer:
        """Ask the allocator, within what the pass may try for all claims together."""
        before, again = self._allocator.steps, terms in self._again
        budget = self._budget.of_claim(again=again)
        answer = self._allocator.allocate(terms, ledger, allowed=allowed, budget=budget)
        self._budget.spent(self._allocator.steps - before, again=again)
        return answer

    def _usable(self, claim: WaitingClaim, booked: Reservation | None) -> tuple[int, int]:
        """The devices that no other claim has reserved for a time before this one ends."""
        if booked is not None:
            return self._marked(booked.devices)
        found = self._open.get(claim.duration)
        if found is None:
            end = times.shifted(self._now, claim.duration)
            found = self._open[claim.duration] = self._marked(self._window(self._now, end))
        return found

    def _marked(self, usable: int) -> tuple[int, int]:
        return usable, self._marks.setdefault(usable, len(self._marks))

    def _window(self, begin: datetime, end: datetime) -> int:
        """The devices without a reservation that overlaps a time."""
        key = (begin, end, len(self._reservations))
        found = self._windows.get(key)
        if found is None:
            found = self._windows[key] = self._unfenced(begin, end)
        return found

    def _unfenced(self, begin: datetime, end: datetime) -> int:
        fenced = bitsets.union(r.devices for r in self._reservations if r.overlaps(begin, end))
        return self._allocator.index.everything & ~fenced

    def _take(self, claim: WaitingClaim, answer: Answer) -> None:
        numbers = self._allocator.index.numbers
        for member in answer.members:
            self._ledger.take(numbers[member.device], member.share)
        given = (claim, answer)
        self._given.append(given)
        self._taken.append(given)

    def _book(self, claim: WaitingClaim, begin: datetime) -> Decision:
        """Reserve the devices that are free for the whole time."""
        end = times.shifted(begin, claim.duration)
        answer = self._ask(claim, claim.terms, self._ledger_at(begin), self._window(begin, end))
        if answer.verdict is not Verdict.SATISFIED:
            unknown = answer.verdict is Verdict.UNKNOWN
            reason = WaitReason.UNKNOWN if unknown else WaitReason.NOT_AVAILABLE
            return Wait(claim=claim.name, reason=reason)
        self._fence(claim, answer, begin)
        return Book(claim=claim.name, answer=answer, begin=begin)

    def _ledger_at(self, moment: datetime) -> Ledger:
        """What is left when everything has ended that ends before."""
        return self._timeline.ledger_at(moment)

    def _fence(self, claim: WaitingClaim, answer: Answer, begin: datetime) -> None:
        numbers = self._allocator.index.numbers
        self._open.clear()
        self._reservations.append(
            Reservation(
                claim=claim.name,
                devices=bitsets.of(numbers[device] for device in answer.devices),
                begin=begin,
                end=times.shifted(begin, claim.duration),
            )
        )

    def _reserve(self, claim: WaitingClaim) -> Wait:
        """Give a claim that cannot start the earliest time at which it can."""
        self._probes += 1
        empty = Ledger(self._allocator.index)
        whole = self._ask(claim, claim.terms, empty, self._allocator.index.everything)
        if whole.verdict is not Verdict.SATISFIED:
            never = whole.verdict is Verdict.UNSATISFIABLE
            reason = WaitReason.UNSATISFIABLE if never else WaitReason.UNKNOWN
            return Wait(claim=claim.name, reason=reason)
        timeline = self._timeline
        moments = sorted(
            {*timeline.ends, *(r.end for r in self._reservations)}
            | {times.shifted(claim.since, delay) for delay in claim.terms.delays}
        )
        moments = [moment for moment in moments if moment > self._now]
        # Devices only become free, so bisection finds where reservations are the only obstacle.
        first = bisect_left(moments, True, key=lambda at: self._served_at(claim, at, alone=True))
        for moment in moments[first : first + MOMENTS_MAX]:
            answer = self._answer_at(claim, moment)
            if answer is not None:
                self._shadows += 1
                self._fence(claim, answer, moment)
                return Wait(
                    claim=claim.name,
                    reason=WaitReason.NOT_AVAILABLE,
                    starts=moment,
                    devices=answer.devices,
                )
        return Wait(claim=claim.name, reason=WaitReason.NOT_AVAILABLE)

    def _served_at(self, claim: WaitingClaim, moment: datetime, *, alone: bool) -> bool:
        return self._answer_at(claim, moment, alone=alone) is not None

    def _answer_at(
        self, claim: WaitingClaim, moment: datetime, *, alone: bool = False
    ) -> Answer | None:
        """What the claim gets at a time; ``alone``: if there were no reservations."""
        terms = due_terms(claim.terms, moment - claim.since)
        if terms is None:
            return None
        usable = self._allocator.index.everything
        if not alone:
            usable = self._window(moment, times.shifted(moment, claim.duration))
        answer = self._ask(claim, terms, self._ledger_at(moment), usable)
        return answer if answer.verdict is Verdict.SATISFIED else None
