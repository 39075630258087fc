"""What a claim may ask of its devices together, with exporters as devices."""

from __future__ import annotations

from typing import Any

from support.claim_stories import allocated, lab, make_claim, said
from support.lab_world import LabWorld

BOARDS = {"a": "brno", "b": "prague", "c": "brno"}
"""The site of each."""


def request(name: str, count: int = 1) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "any", "count": count}}


async def with_sites(world: LabWorld) -> None:
    for name, site in BOARDS.items():
        await world.make_exporter(name, site=site)
    await world.settle()


def placed(claim: Any) -> dict[str, set[str]]:
    """By request, the devices that it got."""
    found: dict[str, set[str]] = {}
    for member in claim.status.members:
        found.setdefault(member.request, set()).add(member.device)
    return found


def test_devices_that_must_agree_or_differ_do() -> None:
    async def story(world: LabWorld) -> None:
        await with_sites(world)
        async with lab(world, *BOARDS):
            together = [{"matchAttribute": "site"}]
            await make_claim(world, "same", request("x", 2), constraints=together)
            assert placed(await allocated(world, "same")) == {"x": {"a", "c"}}
            await make_claim(world, "more", request("x", 2), constraints=together)
            await world.until(lambda: said(world, "more")[0] == "False")

    LabWorld().run(story)


def test_a_constraint_on_one_request_leaves_the_others_alone() -> None:
    async def story(world: LabWorld) -> None:
        await with_sites(world)
        async with lab(world, *BOARDS):
            together = [{"matchAttribute": "site", "requests": ["x"]}]
            await make_claim(world, "c", request("x", 2), request("y"), constraints=together)
            assert placed(await allocated(world)) == {"x": {"a", "c"}, "y": {"b"}}

    LabWorld().run(story)


def test_a_constraint_that_is_only_preferred_is_given_up_when_it_must_be() -> None:
    async def story(world: LabWorld) -> None:
        await with_sites(world)
        async with lab(world, *BOARDS):
            wish = [{"matchAttribute": "site", "prefer": True}]
            await make_claim(world, "two", request("x", 2), constraints=wish)
            assert placed(await allocated(world, "two")) == {"x": {"a", "c"}}
            await make_claim(world, "one", request("x"))
            assert placed(await allocated(world, "one")) == {"x": {"b"}}

    LabWorld().run(story)
