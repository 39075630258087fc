"""How many modules a reader has to open to follow a lease from the request to its exporter."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import FrameType
from typing import Any

from bullpen.services.lease_requests import LeaseRequest
from support.lab_world import LabWorld

REQUEST = LeaseRequest(selector="board=x", duration=timedelta(hours=1), tags={})

LEASING = ("services", "controllers", "core", "runtime")
"""The packages that decide and act; what they read and write is the business of those below."""

MODULES_MAX = 33
"""docs/explanation/cost-of-change.md has this figure; a new module on the path needs a reason."""


class Trace:
    """The modules of which a function ran."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("bullpen."):
            self.modules.add(name.removeprefix("bullpen."))

    def within(self, *packages: str) -> list[str]:
        return sorted(name for name in self.modules if name.split(".")[0] in packages)


def test_a_lease_reaches_its_exporter_through_few_modules() -> None:
    trace, before = Trace(), sys.getprofile()

    async def story(world: LabWorld) -> None:
        async with world.player("a"):
            await world.settle()
            sys.setprofile(trace)
            try:
                lease = await world.leases.create(world.client(), REQUEST)
            finally:
                sys.setprofile(before)
            assert lease.status.exporter_ref is not None

    LabWorld().run(story)
    path = trace.within(*LEASING)
    assert {"services.leases", "core.leases.scheduler", "core.leases.assignment"} <= set(path)
    assert len(path) <= MODULES_MAX, "\n".join(path)
