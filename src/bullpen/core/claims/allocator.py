"""Which devices one claim gets: the best complete set, or the proof that there is none.

A claim is served completely or not at all. Among all complete sets the allocator takes the one
whose choices come first, in this order:

1. the alternatives: the first request's, then the second's, and so on; under totals, a request
   takes as few devices as possible
2. devices that run, rather than devices that have to be started
3. preferred constraints, the first first
4. devices by preference

Alternatives are tried one request after the other. A relaxation prunes them: the requests that
are not decided yet may use the devices of all their alternatives, and need the smallest count.
Fewer devices never break a constraint, so what fails under the relaxation fails altogether.
The same inventory and terms give the same answer, whatever the order devices are listed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from bullpen.core.claims import bitsets
from bullpen.core.claims.bounded_search import Group, Rule
from bullpen.core.claims.claim import Alternative, Constraint, Terms
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.inventory import Amounts
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.placement import Chosen, Placement
from bullpen.core.claims.work import BUDGET, BudgetExhausted, Work

KNOWN_MAX = 30_000
"""Terms, or alternatives, for which an allocator keeps what it looked up."""


class Verdict(Enum):
    SATISFIED = auto()
    UNSATISFIABLE = auto()
    """No complete set exists among the devices that are free."""

    UNKNOWN = auto()
    """The work that is allowed did not suffice to find the answer; it never means "no"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One device of an allocation."""

    request: str
    alternative: int
    """The position of the alternative in its request."""

    device: str
    share: Amounts | None = None
    """The capacity that is taken of a shareable device; None for the whole device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the allocator found, and the combinations it tried."""

    verdict: Verdict
    members: tuple[Member, ...] = ()
    """In the order of the requests."""

    preferred: tuple[Constraint, ...] = ()
    """The preferred constraints that the allocation keeps."""

    steps: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(member.device for member in self.members)

    @property
    def alternatives(self) -> dict[str, int]:
        """For each request the alternative that was chosen."""
        return {member.request: member.alternative for member in self.members}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to satisfy one request: an alternative with a number of devices."""

    alternative: int
    group: Group


class Allocator:
    """Answers claims on one inventory. What a selector means is looked up once."""

    def __init__(self, index: InventoryIndex, criteria: CriteriaIndex) -> None:
        self.index = index
        self.criteria = criteria
        self._eligible: dict[tuple[str, object, object], int] = {}
        self._usable: dict[Terms, int] = {}
        self._candidates: dict[Terms, tuple[int, ...]] = {}
        self.questions = 0
        """How often it was asked about a claim."""

        self.steps = 0
        """The combinations that were tried for all of them."""

        self.unanswered: set[Terms] = set()
        """What a pass did not find the answer to; it does not go before the others again."""

    @property
    def reusable(self) -> bool:
        """Whether it knows everything it was asked for, and has room for more."""
        known = max(len(self._eligible), len(self._usable), len(self._candidates))
        return not self.criteria.cut_short and known <= KNOWN_MAX

    def allocate(
        self, terms: Terms, ledger: Ledger, *, allowed: int | None = None, budget: int = BUDGET
    ) -> Answer:
        """The best allocation of ``terms`` on what ``ledger`` has left.

        ``allowed``: the devices that policies allow; None for all.
        """
        self.questions += 1
        usable = self.index.everything if allowed is None else allowed
        found = self._single(terms, ledger, usable) if terms.single else None
        if found is None:
            found = self._searched(terms, ledger, usable, budget)
        if found.verdict is Verdict.UNSATISFIABLE and self.uncertain(terms):
            return replace(found, verdict=Verdict.UNKNOWN)
        return found

    def uncertain(self, terms: Terms) -> bool:
        """Whether devices are not known that might match, so that a "no" is none."""
        return self.criteria.cut_short and any(
            self.criteria.uncertain(alternative.device_class, alternative.criteria)
            for request in terms.requests
            for alternative in request.alternatives
        )

    def _searched(self, terms: Terms, ledger: Ledger, usable: int, budget: int) -> Answer:
        work = Work(budget)
        try:
            return _Search(self, terms, ledger, usable, work).answer()
        except BudgetExhausted:
            return Answer(verdict=Verdict.UNKNOWN, steps=work.steps)
        finally:
            self.steps += work.steps

    def _single(self, terms: Terms, ledger: Ledger, usable: int) -> Answer | None:
        """The answer to a claim for one device, which needs no search; None if it needs one.

        A device that draws on counters or is shared may be unavailable although it is not in use.
        """
        (request,) = terms.requests
        free = ledger.untouched & usable
        for number, candidates in enumerate(self.candidates(terms)):
            devices = candidates & free
            if not devices:
                continue
            best = bitsets.lowest(devices & self.index.running or devices)
            if self.index.drawing >> best & 1:
                return None
            name = self.index.devices[best].name
            member = Member(request=request.name, alternative=number, device=name)
            return Answer(verdict=Verdict.SATISFIED, members=(member,))
        return Answer(verdict=Verdict.UNSATISFIABLE)

    def candidates(self, terms: Terms) -> tuple[int, ...]:
        """Of a claim for one device: what each alternative could use, free or not."""
        known = self._candidates.get(terms)
        if known is None:
            (request,) = terms.requests
            tolerated = ((a, ~self.index.tainted(a.tolerations)) for a in request.alternatives)
            known = tuple(self.eligible(a) & untainted for a, untainted in tolerated)
            self._candidates[terms] = known
        return known

    def choices(
        self, alternative: Alternative, number: int, ledger: Ledger, usable: int
    ) -> list[Choice]:
        """The ways in which an alternative can be satisfied on its own, fewest devices first."""
        eligible = self.eligible(alternative)
        if alternative.every:
            free = ledger.untouched & usable & ~self.index.tainted(alternative.tolerations)
            if not eligible or eligible & ~free or eligible & self.index.incomplete:
                return []
            group = Group(devices=eligible, count=eligible.bit_count())
            return [Choice(alternative=number, group=group)]
        devices = self.free(alternative, ledger) & usable
        most = (
            max(alternative.count_max, alternative.count)
            if alternative.totals
            else alternative.count
        )
        group = Group(
            devices=devices,
            count=alternative.count,
            capacity=alternative.capacity,
            totals=alternative.totals,
        )
        return [
            Choice(alternative=number, group=replace(group, count=count))
            for count in range(alternative.count, min(most, devices.bit_count()) + 1)
            if self._reaches(devices, count, alternative.totals)
        ]

    def eligible(self, alternative: Alternative) -> int:
        """The devices of its class and selectors with the capacity it needs, free or not."""
        key = (alternative.device_class, alternative.criteria, alternative.capacity)
        found = self._eligible.get(key)
        if found is None:
            found = self.criteria.of_class(alternative.device_class).devices
            found &= self.criteria.of_criteria(alternative.criteria).devices
            for name, least in alternative.capacity:
                found &= self.index.offering(name, least)
            self._eligible[key] = found
        return found

    def usable(self, terms: Terms) -> int:
        """The devices that a claim could use for any of its alternatives, free or not."""
        found = self._usable.get(terms)
        if found is None:
            alternatives = (a for request in terms.requests for a in request.alternatives)
            found = self._usable[terms] = bitsets.union(self.eligible(a) for a in alternatives)
        return found

    def free(self, alternative: Alternative, ledger: Ledger) -> int:
        """The eligible devices that are tolerated and have enough left."""
        room = 0 if alternative.totals else ledger.with_room(alternative.capacity)
        left = ledger.untouched | room & ~self.index.blocked
        return self.eligible(alternative) & left & ~self.index.tainted(alternative.tolerations)

    def _reaches(self, devices: int, count: int, totals: Amounts) -> bool:
        """Whether the ``count`` largest devices offer the totals."""
        for name, least in totals:
            left, reached = count, 0
            for amount, having in sorted(self.index.capacity(name).items(), reverse=True):
                number = min(left, (having & devices).bit_count())
                reached, left = reached + number * amount, left - number
            if reached < least:
                return False
        return True


class _Search:
    """The search for one claim's allocation."""

    def __init__(
        self, allocator: Allocator, terms: Terms, ledger: Ledger, usable: int, work: Work
    ) -> None:
        self._index = allocator.index
        self._terms = terms
        self._work = work
        self._placement = Placement(allocator.index, ledger, work)
        self._choices = [
            [
                choice
                for number, alternative in enumerate(request.alternatives)
                for choice in allocator.choices(alternative, number, ledger, usable)
            ]
            for request in terms.requests
        ]

    def answer(self) -> Answer:
        if not all(self._choices):
            return Answer(verdict=Verdict.UNSATISFIABLE, steps=self._work.steps)
        found = self._walk([]) if self._plausible([]) else None
        if found is None:
            return Answer(verdict=Verdict.UNSATISFIABLE, steps=self._work.steps)
        return found

    def _walk(self, chosen: list[Choice]) -> Answer | None:
        """The best answer that begins with the choices made so far."""
        number = len(chosen)
        if number == len(self._choices):
            return self._settle(chosen)
        for choice in self._choices[number]:
            decided = [*chosen, choice]
            sole = len(self._choices[number]) == 1
            if sole or self._plausible(decided):
                found = self._walk(decided)
                if found is not None:
                    return found
        return None

    def _plausible(self, chosen: list[Choice]) -> bool:
        """Whether the relaxation has a placement; not asked where the exact question is next."""
        if all(len(choices) == 1 for choices in self._choices[len(chosen) :]):
            return True
        groups = [choice.group for choice in chosen]
        for choices in self._choices[len(chosen) :]:
            devices = bitsets.union(choice.group.devices for choice in choices)
            groups.append(Group(devices=devices, count=min(c.group.count for c in choices)))
        match, distinct = self._rules(chosen, [c for c in self._terms.constraints if not c.prefer])
        return self._placement.possible(groups, match=match, distinct=distinct)

    def _settle(self, chosen: list[Choice]) -> Answer | None:
        """The best answer with all alternatives chosen."""
        hard = [c for c in self._terms.constraints if not c.prefer]
        startable = any(c.group.devices & self._index.startable for c in chosen)
        for usable in (~self._index.startable, -1) if startable else (-1,):
            groups = [c.group.narrowed(c.group.devices & usable) for c in chosen]
            found = self._placed(chosen, groups, hard)
            if found is not None:
                return self._improved(chosen, groups, hard, found)
        return None

    def _improved(
        self, chosen: list[Choice], groups: list[Group], kept: list[Constraint], found: Chosen
    ) -> Answer:
        """The answer that keeps as many preferred constraints as it can, the first first."""
        preferred: list[Constraint] = []
        for constraint in self._terms.constraints:
            if constraint.prefer:
                better = self._placed(chosen, groups, [*kept, *preferred, constraint])
                if better is not None:
                    found = better
                    preferred.append(constraint)
        return self._answer(chosen, found, tuple(preferred))

    def _placed(
        self, chosen: list[Choice], groups: list[Group], constraints: list[Constraint]
    ) -> Chosen | None:
        if any(group.devices.bit_count() < group.count for group in groups):
            return None
        match, distinct = self._rules(chosen, constraints)
        return self._placement.place(groups, match=match, distinct=distinct)

    def _rules(
        self, chosen: Sequence[Choice], constraints: Sequence[Constraint]
    ) -> tuple[list[Rule], list[Rule]]:
        """The match and distinct constraints with the groups they cover.

        A request that is not decided yet is covered if each of its possible alternatives is.
        """
        match: list[Rule] = []
        distinct: list[Rule] = []
        for constraint in constraints:
            covered = []
            for number, request in enumerate(self._terms.requests):
                open_choices = [chosen[number]] if number < len(chosen) else self._choices[number]
                alternatives = (request.alternatives[c.alternative] for c in open_choices)
                if all(constraint.covers(request, alternative) for alternative in alternatives):
                    covered.append(number)
            if covered:
                rules = distinct if constraint.distinct else match
                rules.append(Rule(constraint.attribute, tuple(covered)))
        return match, distinct

    def _answer(
        self, chosen: list[Choice], found: Chosen, preferred: tuple[Constraint, ...]
    ) -> Answer:
        members = tuple(
            Member(
                request=request.name,
                alternative=choice.alternative,
                device=self._index.devices[number].name,
                share=self._share(choice, number),
            )
            for request, choice, numbers in zip(self._terms.requests, chosen, found, strict=True)
            for number in numbers
        )
        return Answer(
            verdict=Verdict.SATISFIED,
            members=members,
            preferred=preferred,
            steps=self._work.steps,
        )

    def _share(self, choice: Choice, number: int) -> Amounts | None:
        shareable = self._index.shareable >> number & 1
        shares = shareable and choice.group.capacity and not choice.group.totals
        return choice.group.capacity if shares else None
