"""One replica leads; the next takes over at once when it goes, and later when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.app.cluster_process import Joined, lead
from bullpen.app.health import Health
from bullpen.cluster.leadership import Leadership, LeadershipWatch, Tell, Timing, may_take
from bullpen.errors import Unavailable, Unreachable
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore

QUICK = Timing(
    lasts=timedelta(seconds=60),
    renewed_within=timedelta(seconds=0.2),
    retry=timedelta(seconds=0.02),
)


class Home(RegistryObjects):
    """Objects whose API server may be made to stay silent."""

    down = False

    async def update(self, value: Any) -> Any:
        if self.down:
            raise Unreachable("nobody answers")
        return await super().update(value)


@pytest.fixture
async def objects() -> AsyncIterator[Home]:
    store = MemoryStore()
    registry = Registry(store, clock=SystemClock(), ids=RandomIds(random.Random(3)))
    await registry.ensure_namespaces(("default",))
    yield Home(registry, manager="test")
    await store.close()


def claim(
    objects: Home,
    identity: str,
    *,
    address: str = "",
    tell: Tell = lambda text, *, standby=False: None,
    timing: Timing = QUICK,
) -> Leadership:
    return Leadership(
        objects,
        namespace="default",
        name="leader",
        identity=identity,
        clock=SystemClock(),
        address=address,
        tell=tell,
        timing=timing,
    )


async def held(objects: Home) -> CoordinationLease:
    return await objects.get(CoordinationLease, "default", "leader")


async def within(seconds: float, act: Awaitable[None]) -> bool:
    """Whether something happened in time."""
    try:
        async with asyncio.timeout(seconds):
            await act
    except TimeoutError:
        return False
    return True


class TestTaking:
    @given(
        holder=st.sampled_from(["", "me", "other"]),
        lasts=st.none() | st.integers(1, 60),
        idle=st.floats(0, 100),
    )
    def test_is_for_who_has_it_or_finds_it_free_or_abandoned(
        self, holder: str, lasts: int | None, idle: float
    ) -> None:
        spec = CoordinationLeaseSpec(holder_identity=holder, lease_duration_seconds=lasts)
        allowed = may_take(spec, "me", idle=idle)
        assert allowed is (holder != "other" or idle > (15 if lasts is None else lasts))

    async def test_the_first_one_leads_and_the_second_stands_by(self, objects: Home) -> None:
        first, second = claim(objects, "a"), claim(objects, "b")
        await first.acquire()
        assert not await within(0.2, second.acquire())
        found = await held(objects)
        assert found.spec.holder_identity == "a"
        assert found.spec.lease_transitions in (0, None)

    async def test_who_cannot_ask_says_so(self, objects: Home) -> None:
        said: list[tuple[str, bool]] = []

        def tell(text: str, *, standby: bool = False) -> None:
            said.append((text, standby))

        leader = claim(objects, "a")
        await leader.acquire()
        await leader.release()
        objects.down = True
        assert not await within(0.1, claim(objects, "b", tell=tell).acquire())
        assert set(said) == {("the leader is unknown: nobody answers", False)}

    async def test_what_is_released_is_taken_at_the_next_look(self, objects: Home) -> None:
        first, second = claim(objects, "a"), claim(objects, "b")
        await first.acquire()
        await first.release()
        assert await within(1.0, second.acquire())
        assert (await held(objects)).spec.lease_transitions == 1

    async def test_what_nobody_renews_is_taken_when_it_has_run_out(self, objects: Home) -> None:
        await claim(objects, "a").acquire()
        found = await held(objects)
        await objects.update(replace(found, spec=replace(found.spec, lease_duration_seconds=1)))
        assert await within(5.0, claim(objects, "b").acquire())

    async def test_what_is_renewed_is_left_alone_whatever_its_dates_say(
        self, objects: Home
    ) -> None:
        """The leader's clock may be years behind ours."""
        short = replace(QUICK, lasts=timedelta(seconds=1))
        first, second = (claim(objects, name, timing=short) for name in ("a", "b"))
        await first.acquire()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(first.keep())
            assert not await within(1.5, second.acquire())
            keeping.cancel()


class TestKeeping:
    async def test_renews(self, objects: Home) -> None:
        leader = claim(objects, "a")
        await leader.acquire()
        before = (await held(objects)).spec.renew_time
        assert not await within(0.1, leader.keep())
        after = (await held(objects)).spec.renew_time
        assert before is not None
        assert after is not None
        assert after > before

    async def test_survives_a_server_that_is_silent_for_a_moment(self, objects: Home) -> None:
        leader = claim(objects, "a")
        await leader.acquire()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(leader.keep())
            objects.down = True
            await asyncio.sleep(0.1)
            objects.down = False
            await asyncio.sleep(0.2)
            assert not keeping.done()
            keeping.cancel()

    async def test_ends_before_others_may_begin_when_it_cannot_renew(self, objects: Home) -> None:
        leader = claim(objects, "a")
        await leader.acquire()
        objects.down = True
        async with asyncio.timeout(QUICK.lasts.total_seconds()):
            with pytest.raises(Unavailable, match="could not be renewed"):
                await leader.keep()

    async def test_ends_at_once_when_somebody_else_has_it(self, objects: Home) -> None:
        leader = claim(objects, "a")
        await leader.acquire()
        found = await held(objects)
        await objects.update(replace(found, spec=replace(found.spec, holder_identity="b")))
        with pytest.raises(Unavailable, match="b holds it now"):
            await leader.keep()

    async def test_does_not_mind_who_only_touches_it(self, objects: Home) -> None:
        leader = claim(objects, "a")
        await leader.acquire()
        found = await held(objects)
        noted = replace(found.metadata, annotations={"note": "hello"})
        await objects.update(replace(found, metadata=noted))
        assert not await within(0.2, leader.keep())


@contextlib.asynccontextmanager
async def somebody(port: int = 0) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A process that can be seen to be there, and how to hang up on who looks."""
    writers: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read()

    def hang_up() -> None:
        for writer in writers:
            writer.close()
        writers.clear()

    server = await asyncio.start_server(hold, "127.0.0.1", port)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", hang_up
    finally:
        server.close()
        hang_up()
        await server.wait_closed()


class TestVigil:
    async def test_who_is_there_is_not_gone(self) -> None:
        async with somebody() as (address, _):
            watch = LeadershipWatch()
            assert not await watch.gone(address, seconds=0.05)
            assert not await watch.gone(address, seconds=0.05)
            watch.leave()

    async def test_who_vanishes_is_gone_at_once(self) -> None:
        watch = LeadershipWatch()
        async with somebody() as (address, _):
            assert not await watch.gone(address, seconds=0.05)
        assert not await watch.gone(address, seconds=10)
        assert watch.hung_up, "so that the Lease is looked at first"
        assert await watch.gone(address, seconds=10)
        assert await watch.gone(address, seconds=10), "and stays so"

    async def test_who_only_hangs_up_is_not_gone(self) -> None:
        async with somebody() as (address, hang_up):
            watch = LeadershipWatch()
            assert not await watch.gone(address, seconds=0.05)
            hang_up()
            for _ in range(2):
                assert not await watch.gone(address, seconds=0.5)
            assert not watch.hung_up
            watch.leave()

    async def test_who_was_never_seen_is_never_gone(self) -> None:
        async with somebody() as (address, _):
            pass
        assert not await LeadershipWatch().gone(address, seconds=0.05)
        assert not await LeadershipWatch().gone("nonsense", seconds=0.05)

    async def test_a_leader_that_vanishes_is_replaced_before_its_hold_runs_out(
        self, objects: Home
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            async with somebody() as (address, _):
                await claim(objects, "a", address=address).acquire()
                standby = tasks.create_task(claim(objects, "b").acquire())
                await asyncio.sleep(0.1)
                assert not standby.done()
            async with asyncio.timeout(10):
                await standby
        assert (await held(objects)).spec.holder_identity == "b"


class TestLeading:
    def joined(self, objects: Home) -> Joined:
        return Joined(
            objects=objects,  # type: ignore[arg-type]
            namespace="default",
            health=Health(),
            stop=asyncio.Event(),
            address="",
        )

    async def test_work_is_done_while_leading_and_over_before_the_hold_is_given_back(
        self, objects: Home
    ) -> None:
        here, story, begun = self.joined(objects), list[str](), asyncio.Event()

        @contextlib.asynccontextmanager
        async def work() -> AsyncIterator[str]:
            story.append(f"begun by {(await held(objects)).spec.holder_identity}")
            begun.set()
            yield "at work"
            story.append(f"ended by {(await held(objects)).spec.holder_identity}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lead(claim(objects, "a"), here, work))
            await begun.wait()
            await asyncio.sleep(0)
            assert here.health.ready == "at work"
            here.stop.set()
        assert story == ["begun by a", "ended by a"]
        assert (await held(objects)).spec.holder_identity == ""

    async def test_who_is_told_to_stop_while_standing_by_does_nothing(self, objects: Home) -> None:
        await claim(objects, "a").acquire()
        here = self.joined(objects)

        def work() -> contextlib.AbstractAsyncContextManager[str]:
            raise AssertionError("it was not our turn")

        async with asyncio.TaskGroup() as tasks:
            standby = claim(objects, "b", tell=here.health.wait_for)
            tasks.create_task(lead(standby, here, work))
            await asyncio.sleep(0.1)
            assert not here.health.ready
            assert here.health.waiting == "standby: a is the leader"
            assert here.health.answers_ready, "a Deployment with a standby is healthy"
            here.stop.set()
        assert (await held(objects)).spec.holder_identity == "a"

    async def test_work_that_cannot_begin_is_given_up_when_we_are_told_to_stop(
        self, objects: Home
    ) -> None:
        here, waiting = self.joined(objects), asyncio.Event()

        @contextlib.asynccontextmanager
        async def work() -> AsyncIterator[str]:
            waiting.set()
            await asyncio.Event().wait()
            yield "never"

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lead(claim(objects, "a"), here, work))
            await waiting.wait()
            here.stop.set()
        assert (await held(objects)).spec.holder_identity == ""

    async def test_work_stops_when_the_lead_is_lost(self, objects: Home) -> None:
        here, story = self.joined(objects), list[str]()

        @contextlib.asynccontextmanager
        async def work() -> AsyncIterator[str]:
            objects.down = True
            try:
                yield "at work"
            finally:
                story.append("stopped")

        with pytest.raises(ExceptionGroup) as lost:
            await lead(claim(objects, "a"), here, work)
        assert story == ["stopped"]
        assert lost.group_contains(Unavailable, match="leader was lost")
