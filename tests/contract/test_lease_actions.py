"""A plan of writes, performed over the real registry: complete, or undone when one is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_actions import LeaseActions
from bullpen.controllers.views import Views
from bullpen.core.lab_index import holder_of
from bullpen.core.leases import assignment
from bullpen.core.leases.access import Approval
from bullpen.core.leases.assignment import Part, Plan
from bullpen.errors import Conflict
from bullpen.runtime.events import Events
from support.lab_world import SPACE, LabWorld

NUMBERS = range(3)


async def three_of(world: LabWorld) -> tuple[LeaseActions, Plan]:
    """Three waiting leases and exporters, and the plan that assigns them together."""
    views = Views(world.objects, retry=lambda failures: timedelta(0))
    labs = Labs(world.objects, views, connected=lambda key: True)
    events = Events(world.objects, clock=world.clock, ids=world.sources.ids, component="bullpen")
    parts = [
        Part(
            lease=await world.make_lease(f"l{number}"),
            exporter=await world.make_exporter(f"e{number}"),
            approval=Approval(),
        )
        for number in NUMBERS
    ]
    plan = assignment.assign(parts, now=world.clock.now())
    return LeaseActions(world.objects, views, labs, events), plan


async def holders(world: LabWorld) -> list[str]:
    found = [await world.objects.get(Exporter, SPACE, f"e{number}") for number in NUMBERS]
    return [holder_of(exporter) for exporter in found]


async def told(world: LabWorld) -> list[str | None]:
    found = [await world.objects.get(Lease, SPACE, f"l{number}") for number in NUMBERS]
    return [x.status.exporter_ref.name if x.status.exporter_ref else None for x in found]


def test_an_assignment_of_several_exporters_is_written_completely() -> None:
    async def story(world: LabWorld) -> None:
        actions, plan = await three_of(world)
        await actions.perform(plan)
        assert await holders(world) == ["l0", "l1", "l2"]
        assert await told(world) == ["e0", "e1", "e2"]

    LabWorld().run_without_service(story)


@pytest.mark.parametrize("changed", NUMBERS)
def test_an_exporter_that_changed_meanwhile_leaves_no_other_exporter_taken(changed: int) -> None:
    async def story(world: LabWorld) -> None:
        actions, plan = await three_of(world)
        found = await world.objects.get(Exporter, SPACE, f"e{changed}")
        await world.objects.update(replace(found, spec=replace(found.spec, enabled=False)))
        with pytest.raises(Conflict):
            await actions.perform(plan)
        assert await holders(world) == ["", "", ""]
        assert await told(world) == [None, None, None]

    LabWorld().run_without_service(story)


def test_a_lease_that_changed_meanwhile_does_not_undo_what_was_committed() -> None:
    async def story(world: LabWorld) -> None:
        actions, plan = await three_of(world)
        await world.edit_lease("l2", allow_disabled=True)
        with pytest.raises(Conflict):
            await actions.perform(plan)
        assert await holders(world) == ["l0", "l1", "l2"]

    LabWorld().run_without_service(story)
