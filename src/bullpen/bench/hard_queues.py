"""Queues in which claims could starve, block each other or lose what they booked, with the answer.

``bullpen bench claims`` measures them; the tests count the questions put to the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.bench.hard_claims import claim, device, devices, lab, one, request, same
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_queue import (
    Book,
    Decision,
    Preempt,
    Queue,
    Start,
    Wait,
    WaitingClaim,
    decide,
)
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.preemption_victims import Holder
from bullpen.kit.clock import EPOCH

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class HardQueue:
    """One queue, what is decided, and how much may be asked and tried for it."""

    name: str
    inventory: Inventory
    claims: tuple[WaitingClaim, ...]
    expected: dict[str, int]
    """How many claims start, are booked, end others, and wait with an expected time or without."""

    questions_max: int
    steps_max: int
    holders: tuple[Holder, ...] = ()
    first: Decision | None = None
    """What the first claim of the queue is told, where it is not one of many."""

    def answer(self, index: InventoryIndex) -> tuple[Allocator, tuple[Decision, ...]]:
        allocator = Allocator(index, CriteriaIndex(index))
        queue = Queue(
            claims=self.claims,
            uses=self.inventory.uses,
            holders={holder.name: holder for holder in self.holders},
        )
        return allocator, decide(allocator, queue, now=EPOCH)


def outcome(decision: Decision) -> str:
    """The kind of a decision, as ``HardQueue.expected`` counts them."""
    match decision:
        case Start():
            return "start"
        case Book():
            return "book"
        case Preempt():
            return "end others"
        case Wait(starts=datetime()):
            return "wait until"
        case _:
            return "wait"


def gang_behind_small_claims() -> HardQueue:
    """A gang needs 40 devices at once; hundreds of small claims would take each that is freed."""
    found = devices(400)
    uses = [_use(f"d{n:05}", f"lease{n}", minutes=n) for n in range(10, 400)]
    gang = _waiting("gang", claim(request("r", one(count=40))), age_s=60)
    small = [_waiting(f"small{n:03}", claim(request("r"))) for n in range(400)]
    return HardQueue(
        "H14",
        _using(lab(found), uses),
        (gang, *small),
        # Ten devices are free, and are kept for the gang: the small claims would still run when
        # the last of its devices is freed. Seven of them are told when they start.
        {"wait until": 1 + 7, "wait": 393},
        questions_max=400,
        steps_max=0,
    )


def gangs_that_cross() -> HardQueue:
    """A hundred gangs need all devices of two kinds, half of them in the other order."""
    kinds = [devices(16, prefix=f"{kind}-", kind=kind) for kind in "xy"]
    x, y = (request(kind, one(f"kind == '{kind}'", 16)) for kind in "xy")
    gangs = [_waiting(f"gang{n:03}", claim(*((x, y), (y, x))[n % 2])) for n in range(100)]
    return HardQueue(
        "H15",
        lab(*kinds),
        tuple(gangs),
        # One gang of either order is told when it starts; for those like it the answer is known.
        {"start": 1, "wait until": 2, "wait": 97},
        questions_max=20,
        steps_max=0,
    )


def bookings_against_leases_without_end() -> HardQueue:
    """Two hundred bookings; a hundred devices are free by then, of the others it is not known."""
    found = devices(200)
    uses = [_use(f"d{n:05}", f"lease{n}", minutes=None if n % 2 else 30) for n in range(200)]
    booked = [
        _waiting(f"booked{n:03}", claim(request("r")), begin=EPOCH + HOUR) for n in range(200)
    ]
    return HardQueue(
        "H16",
        _using(lab(found), uses),
        tuple(booked),
        {"book": 100, "wait": 100},
        questions_max=200,
        steps_max=0,
    )


def victims_that_are_gangs() -> HardQueue:
    """Sixty gangs hold a device each of what is needed. Those that end lose all their devices."""
    found = [
        device(f"g{gang:02}-{number}", kind="xyz"[number], site=f"s{gang % 4}")
        for gang in range(60)
        for number in range(3)
    ]
    uses = [_use(found.name, f"gang{found.name[1:3]}", minutes=60) for found in found]
    holders = tuple(
        Holder(name=f"gang{n:02}", since=EPOCH - HOUR, preemptible=True, priority=n)
        for n in range(60)
    )
    urgent = _waiting(
        "urgent",
        claim(request("r", one("kind == 'x'", 8)), same("site")),
        priority=100,
    )
    next_one = _waiting("next", claim(request("r", one("kind == 'y'"))), priority=50)
    victims = tuple(f"gang{n:02}" for n in range(0, 32, 4))
    return HardQueue(
        "H17",
        _using(lab(found), uses),
        (urgent, next_one),
        {"end others": 2},
        questions_max=80,
        steps_max=40,
        holders=holders,
        first=Preempt(
            claim="urgent", holders=victims, devices=tuple(f"g{n:02}-0" for n in range(0, 32, 4))
        ),
    )


QUEUES: list[Callable[[], HardQueue]] = [
    gang_behind_small_claims,
    gangs_that_cross,
    bookings_against_leases_without_end,
    victims_that_are_gangs,
]


def _waiting(
    name: str,
    terms: Terms,
    *,
    age_s: int = 0,
    priority: int = 0,
    begin: datetime | None = None,
) -> WaitingClaim:
    return WaitingClaim(
        name=name,
        terms=terms,
        since=EPOCH - timedelta(seconds=age_s),
        duration=HOUR,
        priority=priority,
        begin=begin,
    )


def _use(name: str, holder: str, *, minutes: int | None) -> Use:
    until = None if minutes is None else EPOCH + timedelta(minutes=minutes)
    return Use(device=name, holder=holder, until=until)


def _using(inventory: Inventory, uses: Sequence[Use]) -> Inventory:
    return Inventory(devices=inventory.devices, counters=inventory.counters, uses=tuple(uses))
