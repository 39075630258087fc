"""A pool that cannot do its job says so, and goes on when it can.

Checked once everything else is quiet: the members of a pool die while its backend refuses to
make others.
"""

from __future__ import annotations

import asyncio

from bullpen.sim.operators import SPACE, Operator, set_name
from bullpen.sim.truth import Raw, Violation, status
from bullpen.sim.world import World

PROMISE = "a pool that cannot do its job says so"

REFUSES = 30.0
"""Seconds that the backend refuses."""

SAID_MAX = 10.0
"""Seconds within which a pool that lacks members says so."""

HEALED_MAX = 900.0
"""Seconds until it has them again: the longest back-off, doubled."""

LOOK = 1.0


async def check(world: World) -> None:
    if not world.plan.ceilings:
        return
    name = set_name(0)
    spec = {"minReplicas": 0, "maxReplicas": 2, "minAvailableReplicas": 1, "paused": False}
    await Operator(world).change("ExporterSet", name, {"spec": spec})
    if not await _is_available(world, name, expected=True, seconds=HEALED_MAX):
        return _break(world, f"{name} is not available although nothing hinders it")
    world.machines.refuses_until = world.time + REFUSES
    backend = world.machines.backend
    for key in backend.held():
        if key[1].rpartition("-")[0] == name:
            backend.crash(key)
    if not await _is_available(world, name, expected=False, seconds=SAID_MAX):
        return _break(world, f"{name} has no member and says that it is available")
    said = _conditions(world, name).get("Available", {})
    if not said.get("reason") or not said.get("message"):
        return _break(world, f"{name} does not say why it is not available")
    if not await _is_available(world, name, expected=True, seconds=REFUSES + HEALED_MAX):
        _break(world, f"{name} did not go on when its backend did")


async def _is_available(world: World, name: str, *, expected: bool, seconds: float) -> bool:
    """Wait until the pool says so, at most this long."""
    end = world.time + seconds
    while world.time < end:
        found = _conditions(world, name).get("Available", {}).get("status")
        if found == ("True" if expected else "False"):
            return True
        await asyncio.sleep(LOOK)
    return False


def _conditions(world: World, name: str) -> dict[str, Raw]:
    found = status(world.truth.get("ExporterSet", SPACE, name)).get("conditions", ())
    return {condition["type"]: condition for condition in found}


def _break(world: World, text: str) -> None:
    world.breaks(Violation(PROMISE, text, world.time))
