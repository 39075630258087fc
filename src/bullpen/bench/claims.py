"""The queue of claims: a full pass and one freed device, in processor time.

The lab is synthetic: 70 % of the claims ask for one device, 20 % have three alternatives, 10 %
ask for two to six devices on one site. The references are fixed times; first fit: every claim
takes the first devices that a scan over the whole lab finds; and brute force: every claim tries
all sets of free devices of the right size.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import combinations

from bullpen.api.device_selectors import Comparison, parse_expression
from bullpen.app.up import GC_THRESHOLDS
from bullpen.bench.hard_claims import INSTANCES, Hard
from bullpen.bench.hard_queues import QUEUES, HardQueue
from bullpen.bench.measure import Goal, Result, compare, interleaved
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.claim_queue import Queue, Start, WaitingClaim, affected, decide
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.inventory import Inventory, InventoryDevice
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from bullpen.kit.clock import EPOCH

SIZE = 10_000
SMALL = 1_000
"""First fit scans the lab for every claim, so it is compared on a smaller lab."""

TINY = 24
"""Brute force tries up to 134,596 sets of six of so many devices."""

PASS_MS, FREED_MS, HARD_MS = 300.0, 5.0, 20.0
"""The times that the goals name."""

SITES, MODELS, RACKS = 50, 40, 20


async def run(
    *, rounds: int, size: int = SIZE, small: int = SMALL, tiny: int = TINY
) -> tuple[Result, ...]:
    """A long queue, one freed device, hard claims, and passes against first fit and brute force."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)  # as in the service
    try:
        return await _measured(rounds, size, small, tiny)
    finally:
        gc.set_threshold(*thresholds)


async def _measured(rounds: int, size: int, small: int, tiny: int) -> tuple[Result, ...]:
    large, little, least = _World.of(size), _World.of(small), _World.of(tiny)
    for world in (large, little, least):
        world.prepare()
    passes, freed = await interleaved(rounds, _timed(large.full_pass), _timed(large.freed))
    ours, first_fit = await interleaved(rounds, _timed(little.full_pass), _timed(little.first_fit))
    quick, brute = await interleaved(rounds, _timed(least.full_pass), _timed(least.brute_force))
    answers = {found.name: _answer(found) for found in (make() for make in INSTANCES)}
    answers |= {found.name: _decisions(found) for found in (make() for make in QUEUES)}
    hard = await interleaved(rounds, *(_timed(answer) for answer in answers.values()))
    smallest = {"served": float(least.full_pass()), "brute force": float(least.brute_force())}
    served = {"served": float(large.full_pass()), "terms": float(len(large.terms))}
    compared = {"served": float(little.full_pass()), "first fit": float(little.first_fit())}
    return (
        compare(
            f"full pass, {size:,} claims on {size:,} devices",
            passes,
            [PASS_MS] * rounds,
            unit="ms",
            goal=Goal(1.0, at_least=False),
            details=served,
        ),
        compare(
            f"one freed device, {size:,} claims waiting",
            freed,
            [FREED_MS] * rounds,
            unit="ms",
            goal=Goal(1.0, at_least=False),
        ),
        compare(
            f"the slowest of {len(answers)} claims and queues that are hard to answer",
            [max(times) for times in zip(*hard, strict=True)],
            [HARD_MS] * rounds,
            unit="ms",
            goal=Goal(1.0, at_least=False),
            details={name: min(times) for name, times in zip(answers, hard, strict=True)},
        ),
        compare(
            f"full pass, {small:,} claims on {small:,} devices, against first fit",
            ours,
            first_fit,
            unit="ms",
            goal=None,
            details=compared,
        ),
        compare(
            f"full pass, {tiny:,} claims on {tiny:,} devices, against brute force",
            quick,
            brute,
            unit="ms",
            goal=None,
            details=smallest,
        ),
    )


def _answer(hard: Hard) -> Callable[[], object]:
    """The search for the answer; the index of the lab is there."""
    index = InventoryIndex(hard.inventory)
    assert index.profiles, "what expressions are evaluated on is made when it is first used"

    def answer() -> object:
        allocator = Allocator(index, CriteriaIndex(index))
        return allocator.allocate(hard.terms, Ledger(index))

    return answer


def _decisions(hard: HardQueue) -> Callable[[], object]:
    """One pass over the queue; the index of the lab is there."""
    index = InventoryIndex(hard.inventory)
    return lambda: hard.answer(index)


def _timed(work: Callable[[], object]) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        begin = time.process_time()
        work()
        return (time.process_time() - begin) * 1e3

    return sample


@dataclass(frozen=True)
class _World:
    inventory: Inventory
    claims: tuple[WaitingClaim, ...]
    terms: tuple[Terms, ...]

    @cached_property
    def index(self) -> InventoryIndex:
        return InventoryIndex(self.inventory)

    @cached_property
    def allocator(self) -> Allocator:
        """One that has seen the queue before: a freed device comes between passes."""
        allocator = Allocator(self.index, CriteriaIndex(self.index))
        for terms in self.terms:
            allocator.allocate(terms, Ledger(self.index))
        return allocator

    @classmethod
    def of(cls, size: int) -> _World:
        source = random.Random(size)
        devices = tuple(_device(source, number) for number in range(size))
        known: dict[Terms, Terms] = {}
        claims = []
        for number in range(size):
            terms = _terms(source)
            # As in a lab, claims that ask for the same thing share one value.
            terms = known.setdefault(terms, terms)
            claims.append(
                WaitingClaim(
                    name=f"c{number:05}",
                    terms=terms,
                    since=EPOCH + timedelta(seconds=number),
                    duration=timedelta(hours=1),
                )
            )
        return cls(Inventory(devices=devices), tuple(claims), tuple(known))

    def prepare(self) -> None:
        """Make what lasts from pass to pass, before anything is measured."""
        assert self.allocator.index is self.index

    def full_pass(self) -> int:
        """Selectors and decisions; returns the number of claims that are served."""
        allocator = Allocator(self.index, CriteriaIndex(self.index))
        now = EPOCH + timedelta(days=1)
        decisions = decide(allocator, Queue(claims=self.claims), now=now)
        return sum(isinstance(decision, Start) for decision in decisions)

    def freed(self) -> int:
        """Which claims one device can serve, and the answer to each kind of them."""
        allocator = self.allocator
        ledger = Ledger(allocator.index)
        name = self.inventory.devices[len(self.inventory.devices) // 2].name
        ledger.unused = 1 << allocator.index.numbers[name]
        found = affected(allocator, self.terms, name)
        return sum(bool(allocator.allocate(terms, ledger).members) for terms in found)

    def first_fit(self) -> int:
        """Every claim scans all devices; no constraint is considered but the site."""
        free = {device.name: device for device in self.inventory.devices}
        served = 0
        for claim in self.claims:
            chosen = _first_fit(claim.terms, free)
            served += bool(chosen)
            for name in chosen:
                del free[name]
        return served

    def brute_force(self) -> int:
        """Every claim tries all sets of free devices, for one alternative after the other."""
        free = {device.name: device for device in self.inventory.devices}
        served = 0
        for claim in self.claims:
            chosen = _brute_force(claim.terms, free)
            served += bool(chosen)
            for name in chosen:
                del free[name]
        return served


def _brute_force(terms: Terms, free: Mapping[str, InventoryDevice]) -> list[str]:
    for alternative in terms.requests[0].alternatives:
        for devices in combinations(free.values(), alternative.count):
            sites = {device.attributes["site"] for device in devices}
            if all(_matches(alternative, device) for device in devices) and (
                len(sites) == 1 or not terms.constraints
            ):
                return [device.name for device in devices]
    return []


def _device(source: random.Random, number: int) -> InventoryDevice:
    site = source.randrange(SITES)
    return InventoryDevice(
        name=f"d{number:05}",
        attributes={
            "model": f"m{source.randrange(MODELS)}",
            "site": f"s{site}",
            "rack": f"s{site}-r{source.randrange(RACKS)}",
            "fidelity": source.choice(("full", "high", "low")),
        },
    )


def _terms(source: random.Random) -> Terms:
    kind = source.random()
    model = source.randrange(MODELS)
    if kind < 0.7:
        selector = f"model == 'm{model}'"
        if source.random() < 0.5:
            selector += f" && site == 's{source.randrange(SITES // 2)}'"
        return _asked(_one(selector))
    if kind < 0.9:
        tiers = ("full", "high", "low")
        return _asked(*(_one(f"model == 'm{model}' && fidelity == '{t}'") for t in tiers))
    count = source.randint(2, 6)
    return Terms(
        requests=(Request(name="r", alternatives=(_one(f"model == 'm{model}'", count),)),),
        constraints=(Constraint(attribute="site"),),
    )


def _one(selector: str, count: int = 1) -> Alternative:
    return Alternative(criteria=Criteria(expressions=(parse_expression(selector),)), count=count)


def _asked(*alternatives: Alternative) -> Terms:
    return Terms(requests=(Request(name="r", alternatives=alternatives),))


def _first_fit(terms: Terms, free: Mapping[str, InventoryDevice]) -> list[str]:
    for alternative in terms.requests[0].alternatives:
        by_site: dict[object, list[str]] = {}
        for device in free.values():
            if _matches(alternative, device):
                site = device.attributes["site"] if terms.constraints else ""
                found = by_site.setdefault(site, [])
                found.append(device.name)
                if len(found) == alternative.count:
                    return found
    return []


def _matches(alternative: Alternative, device: InventoryDevice) -> bool:
    return all(
        isinstance(term, Comparison) and device.attributes.get(term.attribute) in term.values
        for expression in alternative.criteria.expressions
        for term in expression.terms
    )
