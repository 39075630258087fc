"""What claims are promised once faults have stopped: no starvation, bookings, and a fair share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.deviceclass import DEFAULT_COST
from bullpen.core.leases.fair_share import HANDICAP_MAX
from bullpen.kit import times
from bullpen.sim.checkers import is_allocated
from bullpen.sim.claimants import BOARDS, SEATS, SEATS_MAX, Claimant, class_of
from bullpen.sim.clients import Client, Job
from bullpen.sim.operators import BOARD, CLIENTS, SPACE, Operator
from bullpen.sim.truth import Raw, Violation, status
from bullpen.sim.world import World

SERVED_MAX = 5.0
"""Seconds within which a claim is served when everything it needs is free."""

ROUND = 20.0
"""Seconds that the leases of a stream last."""

ASKING = CLIENTS[0]
"""One client asks for everything here, so that fair share changes no order."""

FAIR = "the share of a client is fair within a bound"
DEAR = "dear"
DEAR_COST = 1000
USED = 120.0
"""Seconds for which a client has a dear board: so many hours of others."""

SHARE_ROUND = 300.0
"""Seconds that others have the board for which all of them wait."""

SEAT_USED = 10
"""Seconds for which a claim has a licence."""

BOOKED_IN = 30.0
RELEASED_MAX = 60.0
LOOK = 0.5


async def release_all(world: World) -> None:
    """All claims are released, and end."""
    claimant = Claimant(world, Operator(world))
    for claim in _open(world):
        await claimant.release(claim["metadata"]["name"])
    await _until(world, lambda: not _open(world), RELEASED_MAX, "a released claim goes on")
    await _until(world, lambda: not _used(world), RELEASED_MAX, "a released claim has a licence")


def _open(world: World) -> list[Raw]:
    return [claim for claim in world.truth.all("DeviceClaim") if not status(claim).get("ended")]


def _used(world: World) -> list[Raw]:
    """What is recorded as used of DevicePools."""
    return [a for p in world.truth.all("DevicePool") for a in status(p).get("allocations") or ()]


async def check(world: World) -> None:
    """What claims are promised when nothing fails."""
    await _waits_one_round(world)
    await release_all(world)
    await _licences_go_round(world)
    await release_all(world)
    await _booking_is_kept(world)
    await release_all(world)
    await _share_is_fair(world)


def _all_boards(world: World, **spec: object) -> dict[str, object]:
    exactly = {"deviceClassName": BOARDS, "count": world.plan.boards}
    return {
        "clientRef": {"name": ASKING},
        "requests": [{"name": "all", "exactly": exactly}],
        "duration": "60s",
        **spec,
    }


async def _waits_one_round(world: World) -> None:
    """A claim for all boards waits for the leases that it finds, not for those that come later.

    One of these waits itself, and goes first.
    """
    claimant = Claimant(world, Operator(world))

    async def stream() -> None:
        while True:
            await Client(world, _job(duration=ROUND, holds=ROUND)).run()

    async with asyncio.TaskGroup() as tasks:
        streams = []
        for _ in range(world.plan.boards + 1):
            streams.append(tasks.create_task(stream()))
            await asyncio.sleep(ROUND / (world.plan.boards + 1))
        await claimant.make("gang", _all_boards(world))
        await _until(
            world,
            lambda: is_allocated(world.truth.get("DeviceClaim", SPACE, "gang")),
            2 * ROUND + SERVED_MAX,
            "a claim waits behind leases that came after it",
            promise="no claim starves",
        )
        for task in streams:
            task.cancel()


async def _licences_go_round(world: World) -> None:
    """More claims than there are licences: each has one for a while, and ends."""
    claimant = Claimant(world, Operator(world))
    names = [f"licensed{number}" for number in range(2 * SEATS_MAX + 1)]
    seat = {"name": "seat", "exactly": {"deviceClassName": SEATS}}
    for name in names:
        spec = {"clientRef": {"name": ASKING}, "requests": [seat], "duration": f"{SEAT_USED}s"}
        await claimant.make(name, spec)

    def ended() -> bool:
        found = (world.truth.get("DeviceClaim", SPACE, name) for name in names)
        return all(status(claim).get("members") and status(claim).get("ended") for claim in found)

    await _until(
        world,
        ended,
        len(names) * (SEAT_USED + SERVED_MAX),
        "a claim for a licence does not get it or does not end",
        promise="no claim starves",
    )


async def _booking_is_kept(world: World) -> None:
    """Longer leases do not get the boards that a claim has booked; a shorter one does."""
    claimant = Claimant(world, Operator(world))
    begin = world.clock.now() + timedelta(seconds=BOOKED_IN)
    await claimant.make("booked", _all_boards(world, beginTime=times.text(begin)))
    await asyncio.sleep(SERVED_MAX)
    short = Client(world, _job(duration=BOOKED_IN / 3, holds=1.0))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(world.plan.boards):
            tasks.create_task(Client(world, _job(duration=3600.0, holds=2 * BOOKED_IN)).run())
        await asyncio.sleep(LOOK)
        tasks.create_task(short.run())
        await _until(
            world,
            lambda: is_allocated(world.truth.get("DeviceClaim", SPACE, "booked")),
            BOOKED_IN + SERVED_MAX,
            "a claim does not have the boards that it booked",
            promise="what a claim booked is kept",
        )
        await release_all(world)
    if world.history.waited(SPACE, short.lease) is None:
        text = "a lease that would be over in time did not get a booked board"
        world.breaks(Violation("what a claim booked is kept", text, world.time))


async def _share_is_fair(world: World) -> None:
    """Use of dear boards delays the requests of their client, but not beyond the bound."""
    operator = Operator(world)
    await operator.apply(class_of(DEAR, BOARD, cost=DEAR_COST))
    heavy, light, other = CLIENTS
    await Client(world, _one_board(heavy, holds=USED)).run()
    await operator.apply(class_of(DEAR, BOARD, cost=DEFAULT_COST))
    asked = Client(world, _one_board(heavy, holds=LOOK))
    later = Client(world, _one_board(light, holds=SHARE_ROUND))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Client(world, _one_board(other, holds=SHARE_ROUND)).run())
        await asyncio.sleep(SERVED_MAX)
        end = world.time + HANDICAP_MAX.total_seconds() + SHARE_ROUND + SERVED_MAX
        for client in (asked, later):
            tasks.create_task(client.run())
            await asyncio.sleep(SERVED_MAX)

        async def stream() -> None:
            """Others ask again and again, so that one request of theirs always waits."""
            while asked.lease and not _served(world, asked) and world.time < end:
                await Client(world, _one_board(other, holds=SHARE_ROUND)).run()

        tasks.create_task(stream())
        tasks.create_task(stream())
    first, second = _served(world, later), _served(world, asked)
    if first is None or (second is not None and second < first):
        text = f"{light} used nothing, and is served at {first} s; {heavy} at {second} s"
        world.breaks(Violation(FAIR, text, world.time))
    if second is None or second > end:
        text = f"{heavy} asked before others and was served at {second} s, not by {end:.0f} s"
        world.breaks(Violation(FAIR, text, world.time))


def _served(world: World, client: Client) -> float | None:
    return world.history.served(SPACE, client.lease)


def _one_board(client: str, *, holds: float) -> Job:
    patience = 2 * HANDICAP_MAX.total_seconds()
    return replace(
        _job(duration=holds + LOOK, holds=holds),
        client=client,
        selector="",
        exporter="board0",
        patience=patience,
    )


def _job(*, duration: float, holds: float) -> Job:
    return Job(
        client=ASKING,
        selector="board=real",
        duration=duration,
        holds=holds,
        patience=10 * ROUND,
        dials=0,
    )


async def _until(
    world: World,
    holds: Callable[[], bool],
    seconds: float,
    text: str,
    *,
    promise: str = "released claims end",
) -> None:
    end = world.time + seconds
    while not holds():
        if world.time >= end:
            world.breaks(Violation(promise, f"{text} for {seconds:.0f} s", world.time))
            return
        await asyncio.sleep(LOOK)
