"""Sessions in a lease's status: who connected, in few writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.core import Event
from bullpen.api.kinds.lease import SESSIONS_MAX, LeaseSession
from bullpen.api.meta import LocalObjectReference
from bullpen.controllers.leases.session_recorder import STREAMS_MAX
from bullpen.core.leases.sessions import Session
from support.lab_world import SPACE, LabWorld

SECOND = timedelta(seconds=1)


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


class Link:
    """A stream of a lease, as a router tells of it."""

    def __init__(self, world: LabWorld, stream: str, lease: str = "one") -> None:
        self._world = world
        uid = world.lease(lease).metadata.uid
        self._session = Session(stream=stream, lease=uid, started=world.clock.now())
        world.sessions.saw(self._session)

    def close(self, sent: int = 1000) -> None:
        now = self._world.clock.now()
        self._world.sessions.saw(
            replace(self._session, ended=now, from_client=sent, from_exporter=2 * sent)
        )


async def begin(world: LabWorld) -> None:
    await world.make_lease("one")
    await world.assigned("one")
    await world.settle()


def listed(world: LabWorld) -> tuple[LeaseSession, ...]:
    return world.lease("one").status.sessions


def revision(world: LabWorld) -> int:
    return int(world.lease("one").metadata.resource_version)


async def reasons(world: LabWorld) -> list[str]:
    await world.settle()
    found = (await world.objects.list(Event)).items
    mine = [event for event in found if event.involved_object.name == "one"]
    return [event.reason for event in mine for _ in range(event.count or 1)]


def test_a_session_is_listed_while_it_lasts_and_with_its_bytes_afterwards(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            link = Link(world, "s1")
            await asyncio.sleep(2)
            (session,) = listed(world)
            assert (session.client, session.end_time) == ("alice", None)
            await asyncio.sleep(10)
            link.close(sent=1234)
            await asyncio.sleep(2)
            (session,) = listed(world)
            assert session.end_time is not None
            assert (session.bytes_from_client, session.bytes_from_exporter) == (1234, 2468)
            told = await reasons(world)
            assert told.count("SessionStarted") == told.count("SessionEnded") == 1

    world.run(story)


def test_a_probe_leaves_no_trace(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            before = revision(world)
            link = Link(world, "probe")
            await asyncio.sleep(0.3)
            link.close(sent=7)
            await asyncio.sleep(3)
            assert listed(world) == ()
            assert revision(world) == before, "nothing was written"
            assert "SessionEnded" not in await reasons(world)

    world.run(story)


def test_many_sessions_of_one_moment_are_one_write_and_the_newest_are_kept(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            long_one = Link(world, "long")
            await asyncio.sleep(2)
            writes: list[object] = []
            world.views.leases.listen(lambda old, new: writes.append(new))
            for number in range(5 * STREAMS_MAX):
                Link(world, f"s{number:03d}").close()
            await asyncio.sleep(2)
            assert len(writes) == 1
            assert len(listed(world)) == SESSIONS_MAX
            assert "long" in {session.stream for session in listed(world)}
            long_one.close()

    world.run(story)


def test_who_connected_is_who_had_the_lease_then(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            first = Link(world, "s1")
            await asyncio.sleep(2)
            await world.edit_lease("one", client_ref=LocalObjectReference(name="bob"))
            await world.settle()
            second = Link(world, "s2")
            first.close()
            await asyncio.sleep(2)
            second.close()
            await asyncio.sleep(2)
            assert {(s.stream, s.client) for s in listed(world)} == {("s1", "alice"), ("s2", "bob")}

    world.run(story)


def test_the_end_of_the_lease_ends_its_sessions_and_their_bytes_are_learnt_later(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            link = Link(world, "s1")
            await asyncio.sleep(5)
            await world.edit_lease("one", release=True)
            await world.ended("one")
            assert listed(world)[0].end_time is not None
            link.close(sent=77_000)
            await asyncio.sleep(2)
            assert listed(world)[0].bytes_from_client == 77_000
            assert not world.sessions._reconciler._unwritten, (
                "nothing is kept of what is over and written"
            )

    world.run(story)


def test_what_another_router_wrote_stays(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            lease = world.lease("one")
            theirs = LeaseSession(
                stream="theirs", client="alice", start_time=world.clock.now() - SECOND
            )
            status = replace(lease.status, sessions=(theirs,))
            await world.objects.update_status(replace(lease, status=status))
            Link(world, "ours")
            await asyncio.sleep(2)
            assert [s.stream for s in listed(world)] == ["theirs", "ours"]

    world.run(story)


def test_a_deleted_lease_takes_its_sessions_along(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await begin(world)
            link = Link(world, "s1")
            await world.objects.delete(world.lease("one"))
            await world.until(lambda: world.views.leases.get(SPACE, "one") is None)
            link.close()
            await asyncio.sleep(3)
            assert not world.sessions._reconciler._unwritten
            assert not world.sessions._reconciler._leases

    world.run(story)


def test_a_lease_whose_client_vanished_ends_after_its_idle_timeout(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", tags={"idle-timeout": "1m"})
            await world.assigned("one")
            await asyncio.sleep(50)
            link = Link(world, "first")
            await asyncio.sleep(600)
            assert not world.lease("one").status.ended, "its client is connected"
            link.close()
            await asyncio.sleep(55)
            assert not world.lease("one").status.ended
            await asyncio.sleep(10)
            assert await world.ended("one") == "Idle"
            await world.make_lease("two")
            await world.assigned("two")
            await asyncio.sleep(1800)
            assert not world.lease("two").status.ended, "there is no time-out by default"
        found = (await world.objects.list(Event)).items
        assert "LeaseIdle" in {event.reason for event in found}

    world.run(story)


def test_a_lease_that_nobody_ever_connected_to_ends_after_its_idle_timeout(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", tags={"idle-timeout": "30s"})
            await world.assigned("one")
            await asyncio.sleep(31)
            assert await world.ended("one") == "Idle"

    world.run(story)
