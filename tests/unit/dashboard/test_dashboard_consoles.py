"""Consoles: the output that is kept, several viewers, and who may open one."""

from __future__ import annotations

import asyncio
import base64
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from bullpen.client.config import ClientConfig
from bullpen.dashboard.consoles import INPUT_BYTES_MAX, Console, Consoles, Scrollback
from bullpen.dashboard.feed import ALIVE
from bullpen.errors import BadRequest, NotFound, TooManyRequests, Unavailable
from bullpen.kit.ids import RandomIds
from bullpen.services.dialing import Call
from support.dashboard_world import (
    ADMIN_TOKEN,
    VIEW_TOKEN,
    DashboardWorld,
    client_token,
)

CONFIG = ClientConfig(name="", namespace="", endpoint="", token="")


async def never() -> Call:
    await asyncio.Event().wait()
    raise AssertionError


async def always() -> bool:
    return True


def made_console() -> Console:
    return Console(CONFIG, never, RandomIds(), epoch="e")


async def shown(console: Console, last: str = "", *, events: int) -> list[tuple[str, Any]]:
    """The first events that a new viewer gets."""
    found = []
    view = console.view(last, always)
    async for chunk in view:
        if chunk == ALIVE:
            continue
        fields = dict(line.split(": ", 1) for line in chunk.decode().strip().split("\n"))
        found.append((fields["event"], msgspec.json.decode(fields["data"])))
        if len(found) == events:
            break
    await view.aclose()  # type: ignore[attr-defined]
    return found


def test_the_scrollback_keeps_the_newest_bytes_and_all_positions() -> None:
    kept = Scrollback(limit=4)
    kept.add(b"abc")
    assert (kept.end, kept.since(0), kept.since(3)) == (3, b"abc", b"")
    kept.add(b"def")
    assert (kept.end, kept.since(4), kept.since(6)) == (6, b"ef", b"")
    assert kept.since(1) == b"cdef", "what is lost cannot be shown"
    assert kept.since(99) == b"cdef"
    positions = [kept.since(position) for position in range(2, 7)]
    assert all(later in earlier for earlier, later in pairwise(positions))


async def test_a_viewer_that_comes_back_continues_and_one_that_comes_late_sees_all() -> None:
    console = made_console()
    console.scrollback.add(b"boot ")
    console.scrollback.add(b"prompt")
    for last, expected in (("", b"boot prompt"), ("e-5", b"prompt"), ("other-5", b"boot prompt")):
        _, output = await shown(console, last, events=2)
        assert output == ("output", base64.b64encode(expected).decode()), last


async def test_a_quiet_console_does_not_keep_the_service_busy() -> None:
    console, steps = made_console(), 0

    async def counted() -> bool:
        nonlocal steps
        steps += 1
        return True

    async def look() -> None:
        async for _ in console.view("", counted):
            pass

    viewer = asyncio.ensure_future(look())
    for _ in range(100):
        await asyncio.sleep(0)
    viewer.cancel()
    await asyncio.gather(viewer, return_exceptions=True)
    assert steps < 5


async def test_several_viewers_are_counted_until_they_leave() -> None:
    console = made_console()
    views = [console.view("", always) for _ in range(2)]
    for view in views:
        await anext(view)
    assert console.viewers == 2
    for view in views:
        await view.aclose()  # type: ignore[attr-defined]
    assert console.viewers == 0


async def test_input_that_the_target_does_not_take_is_bounded() -> None:
    console = made_console()
    console.type(b"x" * INPUT_BYTES_MAX)
    with pytest.raises(TooManyRequests):
        console.type(b"y")


async def test_a_console_that_cannot_connect_says_why() -> None:
    async def refused() -> Call:
        raise OSError("no router")

    console = Console(CONFIG, refused, RandomIds(), epoch="e")
    running = asyncio.ensure_future(console.run())
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await shown(console, events=1))[0][1]["state"] == "closed"
    with pytest.raises(Unavailable):
        console.type(b"x")
    with pytest.raises(Unavailable):
        await console.power("on")
    with pytest.raises(BadRequest):
        await console.power("explode")


async def test_a_lease_has_one_console_and_input_needs_an_open_one() -> None:
    consoles = Consoles(CONFIG, RandomIds())
    with pytest.raises(NotFound):
        consoles.get(("default", "lease"))
    first = consoles.open(("default", "lease"), never)
    assert consoles.open(("default", "lease"), never) is first
    consoles.close()
    await asyncio.sleep(0.01)


def test_only_who_may_act_as_the_holder_opens_its_console() -> None:
    async def story(world: DashboardWorld) -> None:
        alice = await world.browser(client_token("alice"))
        await world.make_exporter("e1")
        body = {"namespace": "default", "client": "alice", "selector": "board=x"}
        name = (await alice.call("POST", "leases", body)).document["metadata"]["name"]
        path = f"consoles/default/{name}"
        for token, code in ((client_token("bob"), 403), (VIEW_TOKEN, 403)):
            other = await world.browser(token)
            assert (await other.call("GET", path)).status == code
            assert (await other.call("POST", f"{path}/input", "x")).status == code
            assert (await other.call("POST", f"{path}/power", {"action": "on"})).status == code
            assert (await other.call("GET", f"{path}/screen")).status == code
            assert (await other.call("POST", f"{path}/screen/x", "x")).status == code
            assert (await other.call("POST", f"{path}/flash", {"size": 1})).status == code
            assert (await other.call("POST", f"{path}/flash/x/0", "x")).status == code
        admin = await world.browser(ADMIN_TOKEN)
        assert (await admin.call("POST", f"{path}/input", "x")).status == 404, "not open yet"
        assert (await admin.call("GET", "consoles/default/nothing")).status == 404

    DashboardWorld().run(story)
