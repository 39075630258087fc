"""What the simulator knows of who can know what behind an API that misbehaves."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

from bullpen.kit.clock import VirtualClock
from bullpen.sim import virtual_time
from bullpen.sim.hangs import Hangs
from bullpen.sim.homes import CATCH_UP, PlayedApi
from bullpen.sim.plan import Weather

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_who_was_cut_off_takes_the_last_it_saw_for_the_present_until_it_has_caught_up() -> None:
    async def main() -> list[float]:
        api = PlayedApi(random.Random(1), Weather(), Hangs())
        await asyncio.sleep(5)
        seen = [api.last_seen()]
        api.cut("lab-0", 10)
        await asyncio.sleep(10)
        seen.append(api.last_seen())
        api.cut("lab-0", 3)
        await asyncio.sleep(1)
        api.heal()
        seen.append(api.last_seen())
        await asyncio.sleep(CATCH_UP)
        return [*seen, api.last_seen()]

    assert virtual_time.run(VirtualClock(NOON), main()) == [5.0, 5.0, 5.0, 16.0 + CATCH_UP]
