"""What an exporter is told of its leases: each, in turn, and never twice the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.api.meta import LocalObjectReference
from bullpen.core.exporters.presence import FAILURE_PATIENCE, HOOK_PATIENCE
from bullpen.errors import Conflict, Forbidden, NotFound
from bullpen.services.peers import Peer
from support.lab_world import SPACE, LabWorld

S = ExporterStatusValue


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def test_the_first_word_comes_at_once_also_when_there_is_no_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.settle()
            assert player.told == [""]

    world.run(story)


def test_between_two_leases_it_hears_that_the_first_is_over(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.make_lease("two")
            await world.settle()
            await world.edit_lease("one", release=True)
            await world.assigned("two")
            await world.settle()
            assert player.told == ["", "one", "", "two"]

    world.run(story)


def test_a_reconnect_within_a_lease_is_no_end_of_it(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.hang_up()
            await world.settle()
            async with player.connected():
                await world.settle()
            assert player.told == ["", "one", "one"]

    world.run(story)


def test_what_it_missed_while_it_was_away_is_told_in_order(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.hang_up()
            await world.edit_lease("one", release=True)
            await world.settle()
            await player.report(S.AVAILABLE)
            await world.make_lease("two")
            async with player.connected():
                await world.assigned("two")
                await world.settle()
            assert player.told == ["", "one", "", "two"]

    world.run(story)


def test_a_transfer_is_a_new_client_of_the_same_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            await world.edit_lease("one", client_ref=LocalObjectReference(name="bob"))
            await world.settle()
            assert [(n.lease, n.client) for n in player.heard] == [
                ("", ""),
                ("one", "alice"),
                ("one", "bob"),
            ]

    world.run(story)


def test_a_namesake_of_a_deleted_lease_is_another_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
            await player.report(S.AVAILABLE)
            await world.settle()
            await world.objects.delete(world.lease("one"))
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            assert player.told == ["", "one", "", "one"]

    world.run(story)


@pytest.mark.parametrize(
    ("doing", "patience"),
    [
        pytest.param(S.AFTER_LEASE_HOOK_FAILED, FAILURE_PATIENCE, id="its last hook failed"),
        pytest.param(S.BEFORE_LEASE_HOOK_FAILED, FAILURE_PATIENCE, id="its first hook failed"),
        pytest.param(S.BEFORE_LEASE_HOOK, HOOK_PATIENCE, id="its first hook runs"),
        pytest.param(S.AFTER_LEASE_HOOK, HOOK_PATIENCE, id="its last hook runs"),
    ],
)
def test_the_end_of_a_lease_is_told_when_the_exporter_is_done_or_patience_is(
    world: LabWorld, doing: ExporterStatusValue, patience: timedelta
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            for finishes in (True, False):
                name = "done" if finishes else "hangs"
                player.obeys = True
                player.heard.clear()
                await world.make_lease(name)
                await world.assigned(name)
                await world.settle()
                player.obeys = False
                await player.report(doing)
                await world.edit_lease(name, release=True)
                await world.ended(name)
                await asyncio.sleep(patience.total_seconds() - 1)
                assert player.told == [name], "it was told too early"
                if finishes:
                    await player.report(S.AVAILABLE)
                    await world.settle()
                else:
                    await asyncio.sleep(1.5)
                assert player.told == [name, ""]
                await player.report(S.AVAILABLE)
                await world.settle()

    world.run(story)


def test_an_exporter_that_is_removed_hears_no_more(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        await world.make_exporter()
        await world.until(lambda: world.views.exporters.get(SPACE, "e1"))
        stream = world.exporters.status(world.exporter(), Peer())
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await world.settle()
        await world.objects.delete(await world.objects.get(Exporter, SPACE, "e1"))
        with pytest.raises(NotFound):
            await waiting

    world.run(story)


async def give_on(world: LabWorld) -> None:
    """Give an exporter that holds ``old`` to ``new``, without a word to it."""
    async with world.service(), world.player() as player:
        await world.make_lease("old")
        await world.assigned("old")
        await world.settle()
        player.obeys = False
        await player.report(S.AVAILABLE)
        player.hang_up()
        await world.edit_lease("old", release=True)
        await world.settle()
        await world.make_lease("new")
        # It must be connected to be given out; here it hears nothing of it any more.
        world.connections.opened((SPACE, "e1"))
        await world.edit_lease("new", duration=timedelta(hours=2))
        await world.assigned("new")


def test_after_a_restart_an_exporter_that_still_holds_an_older_lease_is_put_right(
    world: LabWorld,
) -> None:
    """The service died after it had given the exporter on, before it could tell."""

    async def story(world: LabWorld) -> None:
        await give_on(world)
        for listens_first in (False, True):
            async with world.service():
                player_heard: list[str] = []
                exporter = world.exporter()
                if listens_first:
                    world.exporters.listens(exporter, "old")
                stream = world.exporters.status(exporter, Peer())
                player_heard.append((await anext(stream)).lease)
                if not listens_first:
                    world.exporters.listens(exporter, "old")
                player_heard.append((await anext(stream)).lease)
                if not listens_first:
                    player_heard.append((await anext(stream)).lease)
                await stream.aclose()
                expected = ["", "new"] if listens_first else ["new", "", "new"]
                assert player_heard == expected

    world.run_without_service(story)


def test_after_a_restart_it_is_put_right_also_if_it_has_to_finish_something_first(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        await give_on(world)
        async with world.service():
            stream = world.exporters.status(world.exporter(), Peer())
            assert (await anext(stream)).lease == "new"
            report = world.exporters.report
            await report(world.exporter(), value=S.AFTER_LEASE_HOOK, message="")
            world.exporters.listens(world.exporter(), "old")
            end = asyncio.ensure_future(anext(stream))
            await world.settle()
            assert not end.done()
            await report(world.exporter(), value=S.AVAILABLE, message="")
            assert (await end).lease == ""
            assert (await anext(stream)).lease == "new"
            await stream.aclose()

    world.run_without_service(story)


def test_after_a_restart_an_exporter_that_holds_the_right_lease_is_left_alone(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
        for listens_first in (False, True):
            async with world.service():
                exporter = world.exporter()
                if listens_first:
                    world.exporters.listens(exporter, "one")
                stream = world.exporters.status(exporter, Peer())
                assert (await anext(stream)).lease == "one"
                world.exporters.listens(exporter, "one")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(60):
                        await anext(stream)

    world.run_without_service(story)


def test_an_exporter_that_seems_to_be_free_is_asked_for_before_it_hears_so(
    world: LabWorld,
) -> None:
    """The process before this one gave it a lease, and the view does not know yet."""

    async def story(world: LabWorld) -> None:
        async with world.service(), world.player() as player:
            await world.settle()
            free = world.exporter()
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
        async with world.service():
            world.views.exporters._drop(world.exporter())
            world.views.exporters._set(free)
            stream = world.exporters.status(free, Peer())
            assert (await anext(stream)).lease == "one"
            await stream.aclose()

    world.run_without_service(story)


@pytest.mark.parametrize("seen_first", [False, True])
def test_a_lease_that_is_listened_on_before_it_is_seen_goes_on(
    world: LabWorld, seen_first: bool
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
        async with world.service():
            lease, exporter = world.lease("one"), world.exporter()
            world.views.leases._drop(lease)
            world.exporters.listens(exporter, "one")
            if seen_first:
                world.views.leases._set(lease)
            stream = world.exporters.status(exporter, Peer())
            first = asyncio.ensure_future(anext(stream))
            await world.settle()
            world.views.leases._set(lease)
            assert (await first).lease == "one"
            await stream.aclose()

    world.run_without_service(story)


def test_who_is_free_holds_nothing_of_what_it_listened_on(world: LabWorld) -> None:
    """It heard of leases from another process, and listened here."""

    async def story(world: LabWorld) -> None:
        async with world.service(), world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
        async with world.service():
            world.exporters.listens(world.exporter(), "one")
            await world.edit_lease("one", release=True)
            await world.settle()
            await player.report(S.AVAILABLE)
            world.connections.opened((SPACE, "e1"))
            await world.make_lease("two")
            await world.assigned("two")
            stream = world.exporters.status(world.exporter(), Peer())
            assert (await anext(stream)).lease == "two"
            await stream.aclose()

    world.run_without_service(story)


def test_registering_takes_jumpstarters_labels_and_leaves_the_administrators(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        made = await world.make_exporter("e1", board="x", **{"jumpstarter.dev/old": "1"})
        await world.until(lambda: world.views.exporters.get(SPACE, "e1"))
        labels = {"jumpstarter.dev/client": "c", "board": "mine"}
        uid = await world.exporters.register(world.exporter(), labels=labels, devices=())
        assert uid == made.metadata.uid
        assert dict(world.exporter().metadata.labels) == {
            "board": "x",
            "jumpstarter.dev/client": "c",
        }

    world.run(story)


def test_a_report_that_had_to_wait_does_not_undo_a_newer_one(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It met a write that was not on disk yet; meanwhile the exporter is free again."""

    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.settle()
            update_status = world.objects.update_status
            refused = False
            stored: list[ExporterStatusValue | None] = []

            async def refused_once(value: Exporter) -> Exporter:
                nonlocal refused
                if not refused:
                    refused = True
                    raise Conflict("somebody else is writing")
                stored.append(value.status.exporter_status)
                return await update_status(value)

            monkeypatch.setattr(world.objects, "update_status", refused_once)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(player.report(S.LEASE_READY))
                await asyncio.sleep(0)
                assert refused
                await player.report(S.AVAILABLE)
            found = await world.objects.get(Exporter, SPACE, player.name)
            assert found.status.exporter_status is S.AVAILABLE
            assert S.LEASE_READY not in stored, "not even for a moment"

    world.run(story)


def test_a_report_does_not_rely_on_a_newer_one_whose_caller_leaves(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits longest writes the newest: an exporter says once that it is free again."""

    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await player.report(S.LEASE_READY)
            update_status, met = world.objects.update_status, 0

            async def refused_at_first(value: Exporter) -> Exporter:
                nonlocal met
                met += 1
                if met <= 2:
                    raise Conflict("somebody else is writing")
                return await update_status(value)

            monkeypatch.setattr(world.objects, "update_status", refused_at_first)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(player.report(S.AVAILABLE))
                await asyncio.sleep(0)
                again = tasks.create_task(player.report(S.AVAILABLE))
                await asyncio.sleep(0)
                assert met == 2
                again.cancel()
            found = await world.objects.get(Exporter, SPACE, player.name)
            assert found.status.exporter_status is S.AVAILABLE

    world.run(story)


def test_a_refused_report_is_written_later_and_the_exporter_is_leased_again(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``jmp run`` does not repeat a report that was refused: the board would be stuck for ever."""

    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            player.obeys = False
            await world.make_lease("one")
            await world.assigned("one")
            await player.report(S.LEASE_READY)
            await world.edit_lease("one", release=True)
            await world.ended("one")
            update_status, refuses = world.objects.update_status, True

            async def refusing(value: Exporter) -> Exporter:
                if refuses and isinstance(value, Exporter):
                    raise Forbidden("the service may not update exporters/status")
                return await update_status(value)

            monkeypatch.setattr(world.objects, "update_status", refusing)
            with pytest.raises(Forbidden):
                await player.report(S.AVAILABLE)
            await asyncio.sleep(60)
            assert world.exporter().status.exporter_status is S.LEASE_READY
            refuses = False
            await world.make_lease("two")
            assert await world.assigned("two") == player.name
            assert world.exporter().status.exporter_status is S.AVAILABLE

    world.run(story)


def test_a_refused_report_is_void_when_the_exporter_starts_again(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            update_status, refuses = world.objects.update_status, True

            async def refusing(value: Exporter) -> Exporter:
                if refuses:
                    raise Forbidden("the service may not update exporters/status")
                return await update_status(value)

            monkeypatch.setattr(world.objects, "update_status", refusing)
            with pytest.raises(Forbidden):
                await player.report(S.AFTER_LEASE_HOOK_FAILED)
            refuses = False
            await world.exporters.register(world.exporter(), labels={}, devices=())
            await player.report(S.AVAILABLE)
            await asyncio.sleep(60)
            assert world.exporter().status.exporter_status is S.AVAILABLE

    world.run(story)
