"""The machine of the service on the page of hosts."""

from __future__ import annotations

from bullpen.placements.local.capacity import host_load
from support.dashboard_world import (
    STRANGER_TOKEN,
    VIEW_TOKEN,
    DashboardWorld,
    client_token,
)


def test_who_may_see_all_providers_sees_what_the_machine_has_promised_and_its_load() -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(VIEW_TOKEN)
        assert (await browser.call("GET", "machine")).document["machine"] == {
            "instances": 2,
            "maxInstances": 500,
            "memoryBytes": 256 << 20,
            "maxMemoryBytes": 4 << 30,
            "cpus": 2,
            "maxCpus": 16,
            "cpu": 35,
            "memory": 60,
        }
        for token in (STRANGER_TOKEN, client_token("alice")):
            browser = await world.browser(token)
            assert (await browser.call("GET", "machine")).status == 403

    DashboardWorld().run(story)


def test_the_load_of_this_machine_is_read_in_percent() -> None:
    found = host_load()
    assert found.cpu >= 0
    assert 0 < found.memory <= 100
