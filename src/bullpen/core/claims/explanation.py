"""Why a claim is not served: what is missing, who has it, what would help, and from when on.

Every answer is found by asking the allocator again with one thing changed, so that it is never
a guess. The number of such questions is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator, Answer, Verdict
from bullpen.core.claims.claim import Alternative, Constraint, Request, Terms, due_terms
from bullpen.core.claims.claim_queue import MOMENTS_MAX, Reservation
from bullpen.core.claims.funnel import Funnel, funnels
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.reasons import (
    NAMES_MAX,
    Blocker,
    Conflict,
    CounterShortfall,
    Crowd,
    HallSet,
    Kept,
    Reason,
    SelectorFailure,
    TotalShortfall,
    ValueShortfall,
)
from bullpen.core.claims.work import BUDGET, PassBudget
from bullpen.core.leases.target_set import largest_matching
from bullpen.kit import durations, times

RELAXATIONS_MAX = 64
"""Changes of a claim that are tried to find one that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer to a claim, and what it was based on."""

    answer: Answer
    """The answer now, with the alternatives that are open now."""

    funnels: tuple[Funnel, ...]
    reasons: tuple[Reason, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    kept: tuple[Kept, ...] = ()
    relaxation: str = ""
    """The smallest single change of the claim that would help now; empty if none does."""

    starts: datetime | None = None
    """The earliest time at which it can be served, as far as ends are known."""

    booked: bool = False
    """The answer is for the begin time of the claim, which is to come."""

    possible: bool = True
    """Whether it could be served if every device were free; True if that is not known."""


def explain(
    allocator: Allocator,
    terms: Terms,
    uses: Sequence[Use],
    *,
    now: datetime,
    waited: timedelta = timedelta(0),
    allowed: int | None = None,
    duration: timedelta = timedelta(0),
    reservations: Sequence[Reservation] = (),
    with_room: Callable[[Terms, int], bool] | None = None,
    budget: PassBudget | None = None,
) -> Explanation:
    """Answer a claim that has waited so long, and explain the answer.

    ``reservations``: what others have booked. ``with_room``: whether terms could be served with
    some devices if other claims exchanged theirs. ``budget``: what may be tried for all that is
    asked, and for other explanations.
    """
    budget = budget or PassBudget(BUDGET)
    explainer = _Explainer(allocator, terms, uses, now, waited, allowed, budget)
    explainer.reserve(reservations, duration)
    explainer.with_room = with_room
    return explainer.explain()


class _Explainer:
    def __init__(
        self,
        allocator: Allocator,
        terms: Terms,
        uses: Sequence[Use],
        now: datetime,
        waited: timedelta,
        allowed: int | None,
        budget: PassBudget,
    ) -> None:
        self._allocator, self._index = allocator, allocator.index
        self._terms = terms
        self._due = due_terms(terms, waited)
        self._uses = [use for use in uses if use.until is None or use.until > now]
        self._now, self._waited, self._budget = now, waited, budget
        self._allowed = self._usable = self._index.everything if allowed is None else allowed
        self._ledger = Ledger(self._index, self._uses)
        self._reservations: Sequence[Reservation] = ()
        self._duration = timedelta(0)
        self.with_room: Callable[[Terms, int], bool] | None = None

    def reserve(self, reservations: Sequence[Reservation], duration: timedelta) -> None:
        """Leave out what others have booked while the claim would have its devices."""
        self._reservations, self._duration = reservations, duration
        self._usable = self._usable_at(self._now)

    def _usable_at(self, moment: datetime) -> int:
        return self._allowed & ~bitsets.union(r.devices for r in self._reserved_at(moment))

    def _reserved_at(self, moment: datetime) -> list[Reservation]:
        end = times.shifted(moment, self._duration)
        return [r for r in self._reservations if r.overlaps(moment, end)]

    def explain(self) -> Explanation:
        shown = self._due or self._terms
        fenced = bitsets.union(r.devices for r in self._reserved_at(self._now))
        found = funnels(self._allocator, shown, self._ledger, self._allowed, reserved=fenced)
        answer = Answer(verdict=Verdict.UNSATISFIABLE)
        if self._due is not None:
            answer = self._ask(self._due, self._ledger)
        if answer.verdict is Verdict.SATISFIED:
            return Explanation(answer=answer, funnels=found, starts=self._now)
        starts, possible = self._outlook()
        return Explanation(
            answer=answer,
            funnels=found,
            reasons=tuple(self._reasons(shown)),
            blockers=self._blockers(shown),
            kept=self._kept(shown),
            relaxation=next(self._relaxations(), ""),
            starts=starts,
            possible=possible,
        )

    def _ask(self, terms: Terms, ledger: Ledger, usable: int | None = None) -> Answer:
        usable = self._usable if usable is None else usable
        budget = self._budget.of_claim()
        answer = self._allocator.allocate(terms, ledger, allowed=usable, budget=budget)
        self._budget.spent(answer.steps)
        return answer

    def _serves(self, terms: Terms, ledger: Ledger, usable: int | None = None) -> bool:
        return self._ask(terms, ledger, usable).verdict is Verdict.SATISFIED

    def _refuses(self, terms: Terms) -> bool:
        return self._ask(terms, self._ledger).verdict is Verdict.UNSATISFIABLE

    def _reasons(self, terms: Terms) -> Iterator[Reason]:
        yield from self._selector_failures(terms)
        short = self._hall_set(terms)
        if short is not None:
            yield short
            return
        found = [
            *self._broken_constraints(terms),
            *self._counters(terms),
            *self._short_totals(terms),
        ]
        yield from found or list(self._short_alternatives(terms)) or self._crowd(terms)

    def _broken_constraints(self, terms: Terms) -> Iterator[Reason]:
        """The constraints that cannot be kept; several together if each of them can be."""
        bare = replace(terms, constraints=())
        hard = self._hard(terms)
        if not hard or not self._serves(bare, self._ledger):
            return
        alone = [
            constraint
            for constraint in hard
            if not self._serves(replace(bare, constraints=(constraint,)), self._ledger)
        ]
        for constraint in alone:
            yield self._shortfall(terms, constraint)
        whole = replace(bare, constraints=tuple(hard))
        if not alone and self._refuses(whole):
            for constraint in hard:
                rest = tuple(each for each in whole.constraints if each is not constraint)
                if self._refuses(replace(whole, constraints=rest)):
                    whole = replace(whole, constraints=rest)
            yield Conflict(constraints=whole.constraints)

    def _short_totals(self, terms: Terms) -> Iterator[TotalShortfall]:
        """Totals that the largest free devices do not reach, where it is the only alternative."""
        for request in terms.requests:
            for a in request.alternatives if len(request.alternatives) == 1 else ():
                numbers = bitsets.members(self._allocator.free(a, self._ledger) & self._usable)
                found = [self._index.devices[number].capacity for number in numbers]
                for name, wanted in a.totals:
                    largest = sorted((each.get(name, 0) for each in found), reverse=True)
                    most = max(a.count, a.count_max)
                    if sum(largest[:most]) < wanted:
                        yield TotalShortfall(
                            request=request.name,
                            name=name,
                            wanted=wanted,
                            devices_max=most,
                            reached=sum(largest[:most]),
                        )

    def _crowd(self, terms: Terms) -> Iterator[Crowd]:
        """The requests that cannot be served together, none of which can be left out."""
        if not self._refuses(terms):
            return
        for request in terms.requests:
            rest = tuple(each for each in terms.requests if each is not request)
            if rest and self._refuses(replace(terms, requests=rest)):
                terms = replace(terms, requests=rest)
        yield Crowd(requests=tuple(request.name for request in terms.requests))

    def _short_alternatives(self, terms: Terms) -> Iterator[Reason]:
        """Where no request alone has too few devices, the alternatives that have."""
        for number, request in enumerate(terms.requests):
            for a in request.alternatives if len(request.alternatives) > 1 else ():
                only = Request(name=f"{request.name}/{a.name}", alternatives=(a,))
                requests = (*terms.requests[:number], only, *terms.requests[number + 1 :])
                short = self._hall_set(replace(terms, requests=requests))
                if short is not None:
                    yield short

    def _selector_failures(self, terms: Terms) -> Iterator[SelectorFailure]:
        """What an alternative without any device asks of devices that none of them can answer."""
        criteria = self._allocator.criteria
        for request in terms.requests:
            for a in request.alternatives if self._index.everything else ():
                matching = criteria.of_class(a.device_class), criteria.of_criteria(a.criteria)
                if matching[0].devices & matching[1].devices:
                    continue
                name = f"{request.name}/{a.name}" if a.name else request.name
                for expression, why in criteria.never_evaluated(a.device_class, a.criteria):
                    yield SelectorFailure(request=name, text=expression.text, problem=why)

    def _hard(self, terms: Terms) -> list[Constraint]:
        return [constraint for constraint in terms.constraints if not constraint.prefer]

    def _groups(self, terms: Terms) -> list[tuple[Request, int, int]]:
        """Each request with its smallest count and the free devices of all its alternatives."""
        return [
            (
                request,
                min(self._count(alternative) for alternative in request.alternatives),
                bitsets.union(
                    self._allocator.free(alternative, self._ledger) & self._usable
                    for alternative in request.alternatives
                ),
            )
            for request in terms.requests
        ]

    def _count(self, alternative: Alternative) -> int:
        if not alternative.every:
            return alternative.count
        return max(1, self._allocator.eligible(alternative).bit_count())

    def _hall_set(self, terms: Terms) -> HallSet | None:
        """The smallest set around an unserved request whose candidates are too few for it."""
        groups = self._groups(terms)
        for request, count, devices in groups:
            if devices.bit_count() < count:
                return self._as_hall_set([(request, count, devices)])
        exclusive = [g for g in groups if not g[2] & self._index.shareable]
        units = sum(count for _, count, _ in exclusive)
        places = [n for n, (_, count, _) in enumerate(exclusive) for _ in range(count)]
        choices = [bitsets.first(exclusive[n][2], units) for n in places]
        filled = largest_matching(choices)
        empty = [places[p] for p in range(len(places)) if p not in filled.values()]
        if not empty:
            return None
        involved, devices = {empty[0]}, exclusive[empty[0]][2]
        owners = {device: places[place] for device, place in filled.items()}
        while True:
            rivals = {n for device, n in owners.items() if devices >> device & 1} - involved
            if not rivals:
                return self._as_hall_set([exclusive[n] for n in sorted(involved)])
            involved |= rivals
            devices |= bitsets.union(exclusive[n][2] for n in rivals)

    def _as_hall_set(self, groups: Sequence[tuple[Request, int, int]]) -> HallSet:
        devices = bitsets.union(devices for _, _, devices in groups)
        return HallSet(
            requests=tuple(request.name for request, _, _ in groups),
            needed=sum(count for _, count, _ in groups),
            devices=self._names(devices),
        )

    def _shortfall(self, terms: Terms, constraint: Constraint) -> ValueShortfall:
        groups = [
            (count, devices)
            for request, count, devices in self._groups(terms)
            if any(constraint.covers(request, a) for a in request.alternatives)
        ]
        devices = bitsets.union(devices for _, devices in groups)
        needed = sum(count for count, _ in groups)
        by_value = self._index.values(constraint.attribute)
        values = self._index.values_among(constraint.attribute, devices)
        if constraint.distinct:
            found = ((constraint.attribute, len(values), needed),) if values else ()
            return ValueShortfall(constraint=constraint, values=found)
        reached = [
            (
                str(value[1]),
                sum(min(c, (d & by_value[value]).bit_count()) for c, d in groups),
                needed,
            )
            for value in values
        ]
        best = sorted(reached, key=lambda item: -item[1])[:NAMES_MAX]
        return ValueShortfall(constraint=constraint, values=tuple(best))

    def _counters(self, terms: Terms) -> Iterator[CounterShortfall]:
        """Counters without which the claim would be served; one alone if one suffices."""
        candidates = bitsets.union(devices for _, _, devices in self._groups(terms))
        drawn = {
            counter
            for draws, having in self._index.draws.items()
            if having & candidates
            for counter, _ in draws
            if counter in self._index.counters
        }
        if not drawn or not self._serves(terms, self._plentiful(drawn)):
            return
        alone = [c for c in sorted(drawn) if self._serves(terms, self._plentiful({c}))]
        for counter in alone or sorted(drawn):
            yield CounterShortfall(counter=counter, left=self._ledger.counters.get(counter, 0))

    def _plentiful(self, counters: set[str]) -> Ledger:
        ledger = self._ledger.copy()
        most = sum(amount for draws in self._index.draws for _, amount in draws)
        ledger.counters |= dict.fromkeys(counters, most * max(1, len(self._index.devices)))
        return ledger

    def _blockers(self, terms: Terms) -> tuple[Blocker, ...]:
        """Who has the devices that the claim could have otherwise, the first to end first."""
        could = self._could_have(terms)
        holders: dict[tuple[str, datetime | None], list[str]] = {}
        for use in self._uses:
            number = self._index.numbers.get(use.device)
            if number is not None and could >> number & 1:
                holders.setdefault((use.holder, use.until), []).append(use.device)
        blockers = [
            Blocker(holder=holder, devices=tuple(sorted(found)), until=until)
            for (holder, until), found in holders.items()
        ]
        return tuple(sorted(blockers, key=_end))

    def _could_have(self, terms: Terms) -> int:
        """What the claim could have if everything were free."""
        free = Ledger(self._index)
        alternatives = (a for request in terms.requests for a in request.alternatives)
        return self._allowed & bitsets.union(self._allocator.free(a, free) for a in alternatives)

    def _kept(self, terms: Terms) -> tuple[Kept, ...]:
        """What is booked of the devices that the claim could have, the first booking first."""
        could = self._could_have(terms)
        found = [
            Kept(holder=r.claim, devices=self._names(r.devices & could), begin=r.begin)
            for r in self._reserved_at(self._now)
            if r.devices & could
        ]
        return tuple(sorted(found, key=lambda kept: (kept.begin, kept.holder)))

    def _relaxations(self) -> Iterator[str]:
        """Single changes of the claim that would help now, the smallest first."""
        for said, terms in islice(self._changes(), RELAXATIONS_MAX):
            if self._serves(terms, self._ledger) or (
                self.with_room is not None and self.with_room(terms, self._usable)
            ):
                yield said

    def _changes(self) -> Iterator[tuple[str, Terms]]:
        terms = self._due or self._terms
        yield from self._later_alternatives()
        for number, constraint in enumerate(terms.constraints):
            rest = (*terms.constraints[:number], *terms.constraints[number + 1 :])
            kind = "distinct" if constraint.distinct else "match"
            said = f"without the {kind} constraint on {constraint.attribute}"
            if not constraint.prefer:
                yield said, replace(terms, constraints=rest)
        for number, request in enumerate(terms.requests):
            for said, changed in _smaller(request):
                requests = (*terms.requests[:number], changed, *terms.requests[number + 1 :])
                yield said, replace(terms, requests=requests)

    def _later_alternatives(self) -> Iterator[tuple[str, Terms]]:
        delays = {a.after for r in self._terms.requests for a in r.alternatives}
        for after in sorted(delay for delay in delays if delay > self._waited):
            opened = due_terms(self._terms, after)
            if opened is not None:
                wait = durations.text(after - self._waited)
                yield f"in {wait}, when the next alternative opens", opened

    def _outlook(self) -> tuple[datetime | None, bool]:
        """When the claim can be served, and whether it ever can.

        Uses only end, so the first time at which they leave enough can be found by bisection.
        """
        everything = Ledger(self._index)
        answer = self._ask(self._terms, everything, self._allowed)
        if answer.verdict is not Verdict.SATISFIED:
            return None, answer.verdict is Verdict.UNKNOWN
        delays = {a.after - self._waited for r in self._terms.requests for a in r.alternatives}
        opened = {times.shifted(self._now, d) for d in delays if d > timedelta(0)}
        ends = {u.until for u in self._uses if u.until is not None} | opened
        ends |= {r.end for r in self._reservations}
        moments = sorted(moment for moment in ends if moment > self._now)
        first = bisect_left(moments, True, key=lambda at: self._served_at(at, self._allowed))
        # Bookings come and go, so from there on they are looked at one by one.
        for moment in moments[first : first + MOMENTS_MAX]:
            if self._served_at(moment, self._usable_at(moment)):
                return moment, True
        return None, True

    def _served_at(self, moment: datetime, usable: int) -> bool:
        left = [use for use in self._uses if use.until is None or use.until > moment]
        terms = due_terms(self._terms, self._waited + (moment - self._now))
        return terms is not None and self._serves(terms, Ledger(self._index, left), usable)

    def _names(self, devices: int) -> tuple[str, ...]:
        return tuple(self._index.devices[number].name for number in bitsets.members(devices))


def _smaller(request: Request) -> Iterator[tuple[str, Request]]:
    """The request for one device less, in each alternative that asks for several."""
    for number, alternative in enumerate(request.alternatives):
        if alternative.count > 1 and not alternative.every:
            changed = replace(alternative, count=alternative.count - 1)
            others = request.alternatives
            alternatives = (*others[:number], changed, *others[number + 1 :])
            said = f"with {changed.count} instead of {alternative.count} for {request.name}"
            yield said, replace(request, alternatives=alternatives)


def _end(blocker: Blocker) -> tuple[bool, datetime | None, str]:
    return (blocker.until is None, blocker.until, blocker.holder)
