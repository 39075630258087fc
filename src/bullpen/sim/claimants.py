"""Simulated people who claim several targets at once, use them for a while, and release them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from bullpen.kit import times
from bullpen.sim.operators import BOARD, CLIENTS, DEVICE, SPACE, Operator, set_labels, set_name
from bullpen.sim.truth import Raw
from bullpen.sim.world import World

BOARDS = "boards"
"""The class of all boards. Each pool is a class under its own name."""

ADMIN_EACH = 4
"""One of so many claims may take what others have."""

SEATS, SEATS_MAX, SEAT_EACH = "seats", 1, 2
"""A DevicePool of licences, how many claims can have one at once, and how many want one."""

AFTER_MAX = 8
"""Seconds after which an alternative opens, at most."""


class Claimant:
    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._count = 0

    async def prepare(self) -> None:
        """Create the classes that claims name, and the licences."""
        for name, labels in self._classes():
            await self._operator.apply(class_of(name, labels))
        await self._operator.apply(licences())

    def _classes(self) -> Iterator[tuple[str, dict[str, str]]]:
        yield BOARDS, BOARD
        yield SEATS, {"pool": SEATS}
        for number in range(len(self._world.plan.ceilings)):
            yield set_name(number), set_labels(number)

    async def claim(self, chance: random.Random) -> None:
        """Claim something, change one's mind now and then, and release it in the end."""
        self._count += 1
        name, plan = f"claim{self._count}", self._world.plan
        spec = {
            "clientRef": {"name": chance.choice(CLIENTS)},
            "requests": [*self._requests(chance), *self._seats()],
            "duration": f"{chance.choice(plan.durations)}s",
            "priority": chance.choice((0, 0, 0, 1)),
            "preemptible": chance.random() < 0.3,
            "adminAccess": self._count % ADMIN_EACH == 0,
            "memberLoss": chance.choice(("End", "Replace")),
        }
        if chance.random() < 0.2:
            begin = self._world.clock.now() + timedelta(seconds=chance.uniform(1, 20))
            spec["beginTime"] = times.text(begin)
        await self.make(name, spec)
        await asyncio.sleep(chance.uniform(0, plan.holds_max))
        if chance.random() < 0.2:
            await self._change(name, duration=f"{2 * max(plan.durations)}s")
        await asyncio.sleep(chance.uniform(0, plan.holds_max))
        await self.release(name)

    def _requests(self, chance: random.Random) -> list[Raw]:
        plan = self._world.plan
        count = chance.randint(1, plan.boards)
        found: list[Raw] = [
            {"name": "boards", "exactly": {"deviceClassName": BOARDS, "count": count}}
        ]
        if not plan.ceilings or chance.random() < 0.4:
            return found
        pool = set_name(chance.randrange(len(plan.ceilings)))
        if chance.random() < 0.5:
            found.append({"name": "virtual", "exactly": {"deviceClassName": pool}})
            return found
        after = f"{chance.randint(0, AFTER_MAX)}s"
        ladder = [
            {"name": "real", "deviceClassName": BOARDS},
            {"name": "virtual", "deviceClassName": pool, "after": after},
        ]
        return [{"name": "dut", "firstAvailable": ladder}]

    def _seats(self) -> list[Raw]:
        if self._count % SEAT_EACH:
            return []
        return [{"name": "seat", "exactly": {"deviceClassName": SEATS}}]

    async def make(self, name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": SPACE}
        document = {"apiVersion": DEVICE, "kind": "DeviceClaim", "metadata": meta, "spec": spec}
        await self._operator.apply(document)

    async def release(self, name: str) -> None:
        await self._change(name, release=True)

    async def _change(self, name: str, **spec: Any) -> None:
        if self._world.truth.get("DeviceClaim", SPACE, name) is not None:
            await self._operator.change("DeviceClaim", name, {"spec": spec})


def licences() -> Raw:
    """A device for each of many claims, and a counter that only a few of them get."""
    names = [f"seat-{number}" for number in range(3)]
    return {
        "apiVersion": DEVICE,
        "kind": "DevicePool",
        "metadata": {"name": SEATS, "namespace": SPACE},
        "spec": {
            "sharedCounters": {"seats": SEATS_MAX},
            "devices": [{"name": name, "consumesCounters": {"seats": 1}} for name in names],
        },
    }


def class_of(name: str, labels: dict[str, str], **spec: Any) -> Raw:
    selectors = [{"labels": {"matchLabels": labels}}]
    return {
        "apiVersion": DEVICE,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, **spec},
    }
