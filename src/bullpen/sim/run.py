"""One run of one seed: prepare, run the steps with faults, stop the faults, check again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from bullpen.kit.clock import VirtualClock
from bullpen.sim import liveness, virtual_time
from bullpen.sim.claimants import Claimant
from bullpen.sim.homes import ClusterHome
from bullpen.sim.lasting_operator import LastingOperator
from bullpen.sim.operators import SPACE, Operator
from bullpen.sim.plan import Plan, Size
from bullpen.sim.story import Story
from bullpen.sim.trace import listening_to_logs
from bullpen.sim.truth import Violation
from bullpen.sim.world import World

READY = 5.0
"""Seconds a lab has to start before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run."""

    plan: Plan
    violations: tuple[Violation, ...]
    digest: str
    events: int
    leases: int
    commits: int
    seconds: float
    """Virtual time."""

    tail: tuple[str, ...]
    """The last lines of the trace, if a promise was broken."""

    @property
    def ok(self) -> bool:
        return not self.violations


def run(plan: Plan) -> Outcome:
    """Run a plan to its end, or to the first broken promise."""
    clock = VirtualClock()
    return virtual_time.run(clock, _run(plan, clock))


async def _run(plan: Plan, clock: VirtualClock) -> Outcome:
    world = World(plan, clock)
    _forbid_strays(world)
    with listening_to_logs(world.logged):
        await _until_over(world)
    return Outcome(
        plan=plan,
        violations=tuple(world.violations),
        digest=world.trace.digest,
        events=world.trace.count,
        leases=world.history.count,
        commits=world.truth.commits,
        seconds=world.time,
        tail=world.trace.tail if world.violations else (),
    )


def _forbid_strays(world: World) -> None:
    """Fail a run in which a stream stays open until the garbage collector finds it.

    That is a leak, and the stream would be closed at a time that the seed does not determine.
    """

    def stray(stream: AsyncGenerator[Any, Any]) -> None:
        text = f"{getattr(stream, '__qualname__', 'a stream')} was never closed"
        world.breaks(Violation("same seed, same trace", text, world.time))

    sys.set_asyncgen_hooks(finalizer=stray)


async def _until_over(world: World) -> None:
    """Run until the story is complete or a promise is broken."""
    try:
        async with world.tasks as tasks:
            telling = tasks.create_task(_tell(world))
            breaking = tasks.create_task(world.broken.wait())
            await asyncio.wait((telling, breaking), return_when=asyncio.FIRST_COMPLETED)
            raise _Over
    except* _Over:
        world.say("run", "is over")


class _Over(Exception):
    """The run has ended; all remaining tasks are stopped."""


async def _tell(world: World) -> None:
    operator = Operator(world)
    if isinstance(world.home, ClusterHome):
        await world.home.prepare()
        world.tasks.create_task(world.home.run())
    world.tasks.create_task(world.supervise())
    if world.plan.router:
        world.start_router()
    world.watch()
    await operator.prepare(world.plan.boards, world.plan.ceilings)
    if world.plan.lasting:
        await LastingOperator(world, operator).prepare(world.plan.lasting)
    if world.plan.size is Size.CLAIMS:
        await Claimant(world, operator).prepare()
    for number in range(world.plan.boards):
        world.plug(SPACE, f"board{number}")
    await asyncio.sleep(READY)
    await Story(world, operator).tell()
    await liveness.check(world)
