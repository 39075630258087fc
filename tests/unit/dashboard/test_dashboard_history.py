"""The history of pools: sampled, bounded, kept across restarts, shown to who may see the pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.exporterset import SET_NAME, ExporterSet
from bullpen.core.leases import recent_waits
from bullpen.core.leases.lease_figures import Assigned
from bullpen.core.leases.recent_waits import RecentWaits, Wait
from bullpen.dashboard import history
from bullpen.dashboard.history import History
from bullpen.errors import Refused
from support.dashboard_world import VIEW_TOKEN, DashboardWorld, client_token


def pool(name: str, ceiling: int = 4) -> ExporterSet:
    document: dict[str, Any] = {
        "apiVersion": ExporterSet.api_version,
        "kind": ExporterSet.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "virtualTargetClassName": "c",
            "maxReplicas": ceiling,
            "selector": {"matchLabels": {"board": name}},
            "template": {"metadata": {"labels": {"board": name}}},
        },
    }
    return codec.decode(ExporterSet, document)


def test_samples_of_a_pool_become_its_history_and_survive_a_restart() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.objects.create(pool("a"))
        await asyncio.sleep(1)
        kept: list[bytes] = []
        first = History(
            world.lab.views, world.lab.lease_counter, clock=world.clock, save=kept.append
        )
        running = asyncio.ensure_future(first.run())
        await asyncio.sleep(120)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        again = History(
            world.lab.views, world.lab.lease_counter, clock=world.clock, save=kept.append
        )
        again.restore(kept[-1])
        for found in (first, again):
            for month in (False, True):
                shown = found.of("default", "ExporterSet/a", month=month)
                assert shown["points"][0][1:] == [0, 0, 0, 0, 4]
        span = shown["to"] - shown["from"]
        assert span == timedelta(days=31).total_seconds()

    DashboardWorld().run(story)


def test_it_says_how_long_targets_were_leased_and_idle() -> None:
    async def story(world: DashboardWorld) -> None:
        made = await world.objects.create(pool("a"))
        status = replace(made.status, ready_replicas=3, available_replicas=2, leased_replicas=1)
        await world.objects.update_status(replace(made, status=status))
        found = History(world.lab.views, world.lab.lease_counter, clock=world.clock, save=print)
        await asyncio.sleep(1)
        began = world.clock.now()
        running = asyncio.ensure_future(found.run())
        await asyncio.sleep(600)
        shown = found.of("default", "ExporterSet/a", month=False)
        assert shown["points"][0][0] <= began.timestamp()
        seconds = world.clock.now().timestamp() - shown["points"][0][0]
        assert shown["seconds"] == {"leased": seconds, "warm": 2 * seconds}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        nothing = found.of("default", "ExporterSet/none", month=True)
        assert nothing["seconds"] == {"leased": 0, "warm": 0}

    DashboardWorld().run(story)


def test_a_pool_has_its_hit_rate_and_waits_also_after_a_restart() -> None:
    async def story(world: DashboardWorld) -> None:
        views, counter = world.lab.views, world.lab.lease_counter
        first = History(views, counter, clock=world.clock, save=print)
        of_pool = await world.make_exporter("one", labels={SET_NAME: "a"})
        of_none = await world.make_exporter("two")
        for seconds, found in ((0, of_pool), (30, of_pool), (90, of_none)):
            waited = timedelta(seconds=seconds)
            counter.count(
                "default", "uid", Assigned(found.metadata.name, waited, at_once=not seconds)
            )
        again = History(views, counter, clock=world.clock, save=print)
        again.restore(first.saved())
        for kept in (first, again):
            assert kept.of("default", "ExporterSet/a", month=False)["waits"] == {
                "served": 2,
                "atOnce": 1,
                "typicalSeconds": 0,
                "slowSeconds": 30,
            }

    DashboardWorld().run(story)


def test_waits_of_more_than_a_day_ago_do_not_count_and_the_newest_are_kept() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    old = Wait(now - recent_waits.SPAN, timedelta(hours=1), at_once=False)
    new = [Wait(now, timedelta(seconds=n), at_once=n < 90) for n in range(1, 101)]
    found = RecentWaits([old, *new]).summary(now)
    assert (found.served, found.at_once) == (100, 89)
    assert (found.typical, found.slow) == (timedelta(seconds=50), timedelta(seconds=95))
    many = RecentWaits(new * (recent_waits.WAITS_MAX // 100 + 1))
    assert many.summary(now).served == recent_waits.WAITS_MAX
    assert RecentWaits().summary(now).typical is None


def test_a_full_disk_costs_history_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def full(_: bytes) -> None:
        raise Refused("history.json cannot be written: No space left on device")

    async def story(world: DashboardWorld) -> None:
        found = History(world.lab.views, world.lab.lease_counter, clock=world.clock, save=full)
        running = asyncio.ensure_future(found.run())
        await asyncio.sleep(1)
        running.cancel()
        (error,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError)

    DashboardWorld().run(story)
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == [
        "the history of pools is not saved"
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1]", b'[{"namespace":"a","name":"b","fine":[["now",[1]]],"coarse":[]}]'],
)
def test_a_file_that_cannot_be_read_loses_the_history_and_nothing_else(data: bytes) -> None:
    async def story(world: DashboardWorld) -> None:
        found = History(
            world.lab.views, world.lab.lease_counter, clock=world.clock, save=lambda saved: None
        )
        found.restore(data)
        assert found.of("a", "b", month=False)["points"] == []

    DashboardWorld().run(story)


def test_the_number_of_pools_with_a_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "POOLS_MAX", 2)

    async def story(world: DashboardWorld) -> None:
        for name in ("a", "b", "c"):
            await world.objects.create(pool(name))
        await asyncio.sleep(1)
        found = History(
            world.lab.views, world.lab.lease_counter, clock=world.clock, save=lambda saved: None
        )
        found.sample()
        kept = [
            name
            for name in ("a", "b", "c")
            if found.of("default", f"ExporterSet/{name}", month=False)["points"]
        ]
        assert len(kept) == 2

    DashboardWorld().run(story)


def test_who_may_not_see_pools_sees_no_history() -> None:
    async def story(world: DashboardWorld) -> None:
        path = "history/default/ExporterSet/a"
        assert (await (await world.browser(VIEW_TOKEN)).call("GET", path)).status == 200
        client = await world.browser(client_token("alice"))
        assert (await client.call("GET", path)).status == 404

    DashboardWorld().run(story)
