"""Dialling: it waits for the exporter, loses no call, and connects nobody it should not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bullpen.api.kinds.exporter import ExporterStatusValue
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LocalObjectReference
from bullpen.errors import NotFound
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Tickets
from bullpen.services.dialing import (
    CALLS_MAX,
    DIAL_SECONDS_MAX,
    Call,
    NotReady,
    PermissionDenied,
    Precondition,
)
from support.lab_world import SPACE, LabWorld, Player

S = ExporterStatusValue
TICKETS = Tickets(b"k" * 32)


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


class Ear:
    """An exporter's Listen stream and what came over it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.over = False
        self.task: asyncio.Task[None] | None = None


@contextlib.asynccontextmanager
async def listening(world: LabWorld, lease: str) -> AsyncIterator[Ear]:
    ear = Ear()

    async def follow() -> None:
        stream = world.switchboard.listen(world.exporter(), lease)
        async with contextlib.aclosing(stream):
            async for call in stream:
                ear.calls.append(call)
        ear.over = True

    async with asyncio.TaskGroup() as tasks:
        ear.task = tasks.create_task(follow())
        await asyncio.sleep(0)
        try:
            yield ear
        finally:
            ear.task.cancel()


@contextlib.asynccontextmanager
async def leased(world: LabWorld, name: str = "one") -> AsyncIterator[Player]:
    """An exporter with a lease of alice's, ready."""
    async with world.player() as player:
        await world.make_lease(name)
        await world.assigned(name)
        await world.settle()
        yield player


async def dial(world: LabWorld, client: str = "alice", lease: str = "one") -> Call:
    return await world.switchboard.dial(world.client(client), lease)


def stream_of(world: LabWorld, call: Call) -> str:
    return TICKETS.verify(call.token, now=world.clock.now()).stream


def test_both_sides_get_tokens_for_the_same_stream(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world), listening(world, "one") as ear:
            answer = await dial(world)
            await world.settle()
            (call,) = ear.calls
            assert answer.endpoint == call.endpoint == "router:1"
            mine, theirs = (
                TICKETS.verify(item.token, now=world.clock.now()) for item in (answer, call)
            )
            assert (mine.role, theirs.role) == (Role.CLIENT, Role.EXPORTER)
            assert (mine.stream, mine.lease, mine.epoch) == (
                theirs.stream,
                theirs.lease,
                theirs.epoch,
            )
            assert mine.lease == world.lease("one").metadata.uid
            assert mine.epoch == world.lease("one").status.epoch
            assert mine.stream != stream_of(world, await dial(world))

    world.run(story)


def test_a_dial_waits_for_the_exporter_to_listen_and_to_say_it_is_ready(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world) as player:
            await player.report(S.AVAILABLE)
            dialling = asyncio.ensure_future(dial(world))
            await asyncio.sleep(5)
            async with listening(world, "one"):
                await asyncio.sleep(5)
                assert not dialling.done(), "it has not said that it is ready"
                await player.report(S.LEASE_READY)
                before = world.clock.now()
                await dialling
                assert (world.clock.now() - before).total_seconds() < 0.1

    world.run(story)


def test_a_dial_gives_up_in_the_words_that_make_the_client_try_again(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world):
            before = world.clock.now()
            with pytest.raises(NotReady, match="not ready"):
                await dial(world)
            waited = (world.clock.now() - before).total_seconds()
            assert DIAL_SECONDS_MAX <= waited < DIAL_SECONDS_MAX + 1

    world.run(story)


def test_who_may_not_dial_is_told_so_at_once(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world), listening(world, "one"):
            with pytest.raises(PermissionDenied, match="permission denied"):
                await dial(world, client="bob")
            with pytest.raises(NotFound):
                await dial(world, lease="none")
            await world.edit_lease("one", release=True)
            await world.ended("one")
            with pytest.raises(Precondition, match="has ended"):
                await dial(world)

    world.run(story)


def test_a_dial_that_waits_ends_with_the_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world):
            dialling = asyncio.ensure_future(dial(world))
            await asyncio.sleep(1)
            await world.edit_lease("one", release=True)
            with pytest.raises(Precondition):
                await dialling

    world.run(story)


def test_a_newer_listener_takes_over_and_the_older_one_ends(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with (
            leased(world),
            listening(world, "one") as older,
            listening(world, "one") as newer,
        ):
            await world.settle()
            assert older.over
            await dial(world)
            await world.settle()
            assert (len(older.calls), len(newer.calls)) == (0, 1)

    world.run(story)


def test_calls_nobody_picked_up_wait_for_the_next_listener(world: LabWorld) -> None:
    """The exporter dies between two words and comes back; its callers have not noticed."""

    async def story(world: LabWorld) -> None:
        async with leased(world):
            stream = world.switchboard.listen(world.exporter(), "one")
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            answers = [await dial(world) for _ in range(3)]
            picked_up = await first
            await stream.aclose()
            async with listening(world, "one") as second:
                await world.settle()
            assert [stream_of(world, call) for call in (picked_up, *second.calls)] == [
                stream_of(world, answer) for answer in answers
            ]

    world.run(story)


def test_more_calls_than_fit_wait_instead_of_failing(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world):
            stream = world.switchboard.listen(world.exporter(), "one")
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await dial(world)
            await first
            for _ in range(CALLS_MAX):
                await dial(world)
            late = asyncio.ensure_future(dial(world))
            await asyncio.sleep(1)
            assert not late.done()
            await anext(stream)
            await asyncio.wait_for(late, 1)
            await stream.aclose()

    world.run(story)


def test_only_the_exporter_of_the_lease_may_listen(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world):
            await world.make_exporter("other", other="yes")
            await world.until(lambda: world.views.exporters.get(SPACE, "other"))
            for exporter, lease in (("other", "one"), ("e1", "none")):
                stream = world.switchboard.listen(world.exporter(exporter), lease)
                with pytest.raises(PermissionDenied):
                    await anext(stream)

    world.run(story)


def test_after_a_transfer_the_new_client_dials_under_a_new_epoch(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world), listening(world, "one"):
            before = TICKETS.verify((await dial(world)).token, now=world.clock.now())
            await world.edit_lease("one", client_ref=LocalObjectReference(name="bob"))
            after = TICKETS.verify((await dial(world, client="bob")).token, now=world.clock.now())
            assert after.epoch > before.epoch
            with pytest.raises(PermissionDenied):
                await dial(world)
            newest = await world.objects.get(Lease, SPACE, "one")
            assert newest.status.epoch == after.epoch == world.exporter().status.lease_epoch

    world.run(story)


def test_nothing_is_kept_of_leases_that_are_over(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with leased(world):
            async with listening(world, "one") as ear:
                await asyncio.gather(dial(world), dial(world))
                assert ear.task is not None
                ear.task.cancel()
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await world.settle()
            assert not world.switchboard._lines

    world.run(story)


def test_calls_that_are_queued_when_the_lease_ends_are_never_picked_up(world: LabWorld) -> None:
    """The exporter still listens, and was busy with the call before."""

    async def story(world: LabWorld) -> None:
        async with leased(world):
            stream = world.switchboard.listen(world.exporter(), "one")
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await dial(world)
            await first
            await dial(world)
            await world.edit_lease("one", release=True)
            await world.ended("one")
            late = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(1)
            assert not late.done(), "a call of an ended lease was handed out"
            late.cancel()

    world.run(story)
