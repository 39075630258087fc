"""A brute-force allocator and random instances, to compare the real allocator with.

The reference works on the values themselves, without numbers, sets or bounds: it tries every
choice in the documented order and checks the whole result.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, product

from bullpen.api.device_selectors import parse_expression
from bullpen.core.claims.allocator import Allocator, Answer
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.criteria import ClassDefinition, CriteriaIndex
from bullpen.core.claims.inventory import (
    Amounts,
    Effect,
    Inventory,
    InventoryDevice,
    Taint,
    Toleration,
    Use,
)
from bullpen.core.claims.inventory_index import InventoryIndex, repels, values_in
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.work import BUDGET

KINDS = ("a", "b", "c")


@dataclass(frozen=True)
class Reference:
    """What the brute-force allocator found."""

    choices: tuple[tuple[int, int], ...]
    """For each request the alternative and the number of devices."""

    running: bool
    preferred: tuple[Constraint, ...]


def allocator_of(inventory: Inventory, classes: Sequence[ClassDefinition] = ()) -> Allocator:
    index = InventoryIndex(inventory)
    return Allocator(index, CriteriaIndex(index, classes))


def allocate(
    inventory: Inventory,
    terms: Terms,
    classes: Sequence[ClassDefinition] = (),
    *,
    budget: int = BUDGET,
) -> Answer:
    allocator = allocator_of(inventory, classes)
    return allocator.allocate(terms, Ledger(allocator.index, inventory.uses), budget=budget)


def brute_force(inventory: Inventory, terms: Terms) -> Reference | None:
    """The best allocation, by trying everything."""
    ways = [list(_ways(inventory, request)) for request in terms.requests]
    hard = [c for c in terms.constraints if not c.prefer]
    for chosen in product(*ways):
        for running in (True, False):
            if not _feasible(inventory, terms, chosen, hard, running=running):
                continue
            kept: list[Constraint] = []
            for constraint in terms.constraints:
                tried = [*hard, *kept, constraint]
                if constraint.prefer and _feasible(
                    inventory, terms, chosen, tried, running=running
                ):
                    kept.append(constraint)
            return Reference(tuple(chosen), running, tuple(kept))
    return None


def problems(inventory: Inventory, terms: Terms, answer: Answer) -> list[str]:
    """What is wrong with an allocation; empty if it is valid."""
    chosen = []
    picked: list[tuple[int, InventoryDevice]] = []
    by_name = {device.name: device for device in inventory.devices}
    for number, request in enumerate(terms.requests):
        members = [m for m in answer.members if m.request == request.name]
        numbers = {m.alternative for m in members}
        if len(numbers) != 1:
            return [f"{request.name} has no alternative, or several"]
        chosen.append((numbers.pop(), len(members)))
        picked += [(number, by_name[m.device]) for m in members]
    hard = [c for c in terms.constraints if not c.prefer]
    kept = [*hard, *answer.preferred]
    if not _valid(inventory, terms, chosen, picked, kept):
        return [f"{answer.devices} is not a valid allocation"]
    for member in answer.members:
        alternative = next(r for r in terms.requests if r.name == member.request).alternatives[
            member.alternative
        ]
        shares = by_name[member.device].shareable and alternative.capacity
        wanted = alternative.capacity if shares and not alternative.totals else None
        if member.share != wanted:
            return [f"{member.device} has the share {member.share}"]
    return []


def _ways(inventory: Inventory, request: Request) -> Iterator[tuple[int, int]]:
    for number, alternative in enumerate(request.alternatives):
        if alternative.every:
            count = len([d for d in inventory.devices if _eligible(d, alternative)])
            yield from [(number, count)] if count else []
        else:
            most = max(alternative.count, alternative.count_max if alternative.totals else 0)
            yield from ((number, count) for count in range(alternative.count, most + 1))


def _feasible(
    inventory: Inventory,
    terms: Terms,
    chosen: Sequence[tuple[int, int]],
    constraints: Sequence[Constraint],
    *,
    running: bool,
) -> bool:
    def usable(device: InventoryDevice, alternative: Alternative) -> bool:
        tolerated = not any(repels(taint, alternative.tolerations) for taint in device.taints)
        started = device.start == timedelta(0) or not running
        return tolerated and started and not device.blocked and _eligible(device, alternative)

    def search(number: int, picked: list[tuple[int, InventoryDevice]]) -> bool:
        if number == len(chosen):
            return _valid(inventory, terms, chosen, picked, constraints)
        which, count = chosen[number]
        alternative = terms.requests[number].alternatives[which]
        devices = [d for d in inventory.devices if usable(d, alternative)]
        return any(
            search(number + 1, [*picked, *((number, device) for device in found)])
            for found in combinations(devices, count)
        )

    return search(0, [])


def _eligible(device: InventoryDevice, alternative: Alternative) -> bool:
    for expression in alternative.criteria.expressions:
        name, _, wanted = expression.text.replace("'", "").partition(" == ")
        if device.attributes.get(name) != wanted:
            return False
    return all(device.capacity.get(name, -1) >= least for name, least in alternative.capacity)


def _valid(
    inventory: Inventory,
    terms: Terms,
    chosen: Sequence[tuple[int, int]],
    picked: Sequence[tuple[int, InventoryDevice]],
    constraints: Sequence[Constraint],
) -> bool:
    def alternative(number: int) -> Alternative:
        return terms.requests[number].alternatives[chosen[number][0]]

    uses = [(use.device, use.share) for use in inventory.uses]
    for number, device in picked:
        asked = alternative(number)
        if asked.every and device.pool in inventory.incomplete:
            return False
        shared = device.shareable and asked.capacity and not asked.totals
        uses.append((device.name, asked.capacity if shared else None))
    if not _fits(inventory, uses):
        return False
    for number in range(len(chosen)):
        mine = [device for owner, device in picked if owner == number]
        if len({device.name for device in mine}) != len(mine):
            return False
        for name, least in alternative(number).totals:
            if sum(device.capacity.get(name, 0) for device in mine) < least:
                return False
    for constraint in constraints:
        covered = [
            device
            for number, device in picked
            if constraint.covers(terms.requests[number], alternative(number))
        ]
        if not _holds(constraint, covered):
            return False
    return True


def _fits(inventory: Inventory, uses: Sequence[tuple[str, Amounts | None]]) -> bool:
    """Whether nobody has what another one uses, and no counter is overdrawn."""
    drawn: dict[str, int] = {}
    for device in inventory.devices:
        shares = [share for name, share in uses if name == device.name]
        if len(shares) > 1 and (None in shares or not device.shareable):
            return False
        used: dict[str, int] = {}
        for name, amount in (pair for share in shares for pair in share or ()):
            used[name] = used.get(name, 0) + amount
        if any(amount > device.capacity.get(name, -1) for name, amount in used.items()):
            return False
        for counter, amount in device.draws if shares else ():
            drawn[counter] = drawn.get(counter, 0) + amount
    return all(amount <= inventory.counters.get(name, 0) for name, amount in drawn.items())


def _holds(constraint: Constraint, devices: Sequence[InventoryDevice]) -> bool:
    if any(constraint.attribute not in device.attributes for device in devices):
        return False
    found = [set(values_in(device.attributes[constraint.attribute])) for device in devices]
    if constraint.distinct:
        return all(not one & other for one, other in combinations(found, 2))
    return not found or bool(set.intersection(*found))


def random_instance(source: random.Random) -> tuple[Inventory, Terms]:
    """A small instance. Each feature is rare enough for plain instances to occur too."""
    features = {name for name in _FEATURES if source.random() < 0.35}
    if source.random() < 0.15:
        # Draws of shared devices matter only if several requests want the same device.
        features = {"shares", "draws"}
    devices = tuple(
        _random_device(source, number, features) for number in range(source.randint(1, 6))
    )
    counters = {"x": source.randint(0, 6), "y": source.randint(0, 4)} if "draws" in features else {}
    requests = tuple(
        _random_request(source, f"r{number}", features) for number in range(source.randint(1, 3))
    )
    constraints = tuple(
        _random_constraint(source, requests, features)
        for _ in range(source.choice((0, 0, 1, 1, 2)))
    )
    inventory = Inventory(
        devices=devices,
        counters=counters,
        uses=tuple(_random_uses(source, devices, counters)),
        incomplete=frozenset({"p1"}) if source.random() < 0.1 else frozenset(),
    )
    return inventory, Terms(requests=requests, constraints=constraints)


_FEATURES = ("lists", "draws", "shares", "totals", "taints", "start", "every", "blocked", "named")


def _random_device(source: random.Random, number: int, features: set[str]) -> InventoryDevice:
    attributes: dict[str, str | tuple[str, ...]] = {"kind": source.choice(KINDS)}
    for name in ("site", "host"):
        if source.random() < 0.9:
            attributes[name] = f"{name}{source.randint(0, 2)}"
            if "lists" in features and source.random() < 0.4:
                size = source.randint(1, 2)
                attributes[name] = tuple(f"{name}{n}" for n in source.sample(range(3), size))
    draws: Mapping[str, int] = {}
    if "draws" in features and source.random() < 0.7:
        draws = {name: source.randint(1, 3) for name in "xy" if source.random() < 0.6}
    return InventoryDevice(
        name=f"d{number}",
        pool=f"p{source.randint(0, 1)}",
        attributes=attributes,
        capacity={"mem": source.randint(1, 4)} if {"shares", "totals"} & features else {},
        draws=tuple(sorted(draws.items())),
        shareable="shares" in features and source.random() < 0.6,
        taints=(_random_taint(source),) if "taints" in features and source.random() < 0.4 else (),
        start=timedelta(seconds=source.choice((0, 30))) if "start" in features else timedelta(0),
        blocked="offline" if "blocked" in features and source.random() < 0.3 else "",
        position=number,
    )


def _random_taint(source: random.Random) -> Taint:
    return Taint(key=source.choice("kl"), effect=source.choice(list(Effect)))


def _random_request(source: random.Random, name: str, features: set[str]) -> Request:
    alternatives = []
    for number in range(source.choice((1, 1, 2, 3))):
        kinds = tuple(
            parse_expression(f"kind == '{kind}'")
            for kind in source.sample(KINDS, 1)
            if source.random() < 0.7
        )
        totals = "totals" in features and source.random() < 0.5
        shares = "shares" in features and source.random() < 0.6
        every = "every" in features and not totals and source.random() < 0.3
        tolerant = "taints" in features and source.random() < 0.5
        alternatives.append(
            Alternative(
                name=f"a{number}",
                criteria=Criteria(expressions=kinds),
                count=source.choice((1, 1, 2)),
                every=every,
                capacity=(("mem", source.randint(1, 3)),) if shares and not every else (),
                totals=(("mem", source.randint(1, 8)),) if totals else (),
                count_max=source.randint(1, 3) if totals else 0,
                tolerations=(Toleration(key=source.choice("kl")),) if tolerant else (),
            )
        )
    return Request(name=name, alternatives=tuple(alternatives))


def _random_constraint(
    source: random.Random, requests: Sequence[Request], features: set[str]
) -> Constraint:
    named: list[str] = []
    if "named" in features:
        for request in requests:
            if source.random() < 0.6:
                part = f"/a{source.randint(0, 1)}" if source.random() < 0.3 else ""
                named.append(request.name + part)
    return Constraint(
        attribute=source.choice(("site", "host")),
        distinct=source.random() < 0.5,
        requests=tuple(named),
        prefer=source.random() < 0.3,
    )


def _random_uses(
    source: random.Random, devices: Sequence[InventoryDevice], counters: Mapping[str, int]
) -> Iterator[Use]:
    """Uses that are possible: no counter is overdrawn from the start."""
    left = dict(counters)
    for device in devices:
        if source.random() < 0.8 or any(left.get(n, 0) < amount for n, amount in device.draws):
            continue
        for name, amount in device.draws:
            left[name] -= amount
        share: Amounts | None = None
        if device.shareable and source.random() < 0.8:
            share = (("mem", source.randint(1, device.capacity["mem"])),)
        yield Use(device=device.name, holder="other", share=share)
