"""Events go when they are old, or too many; one sentence per test."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from bullpen.api.resource import Resource
from bullpen.errors import StorageFailed
from bullpen.kit import times
from bullpen.kit.clock import EPOCH
from bullpen.registry import expiry
from bullpen.registry.expiry import LIFETIME, EventSweeper, Stored, surplus
from bullpen.registry.options import DeleteOptions
from bullpen.store.base import Entry, Store
from support.registry_helpers import EVENT, SECRET, Lab, document, secret

SECOND = timedelta(seconds=1)


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default"])
    return made


@pytest.fixture
def sweeper(lab: Lab) -> EventSweeper:
    return EventSweeper(lab.registry, clock=lab.clock)


async def tell(lab: Lab, name: str, *, counted: datetime | None = None) -> None:
    about = {"kind": "Lease", "namespace": "default", "name": "a"}
    extra = {"lastTimestamp": times.text(counted)} if counted else {}
    await lab.create(EVENT, document(EVENT, name, involvedObject=about, **extra))


def left(lab: Lab) -> list[str]:
    names = "abcdefgh"
    return [name for name in names if lab.exists(EVENT, name)]


async def test_old_events_go_and_nothing_else_does(lab: Lab, sweeper: EventSweeper) -> None:
    await lab.create(SECRET, secret("old"))
    await tell(lab, "a")
    lab.clock.advance(timedelta(minutes=30))
    await tell(lab, "b")
    lab.clock.advance(timedelta(minutes=30))
    await sweeper.sweep()
    assert left(lab) == ["a", "b"]
    lab.clock.advance(SECOND)
    await sweeper.sweep()
    assert left(lab) == ["b"]
    assert lab.exists(SECRET, "old")


async def test_what_was_counted_lately_is_not_old(lab: Lab, sweeper: EventSweeper) -> None:
    await tell(lab, "a", counted=lab.clock.now() + timedelta(minutes=30))
    lab.clock.advance(LIFETIME + SECOND)
    await sweeper.sweep()
    assert left(lab) == ["a"]


async def test_of_too_many_the_oldest_go(
    lab: Lab, sweeper: EventSweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "KEPT_MAX", 3)
    monkeypatch.setattr(expiry, "READ_AT_ONCE_MAX", 2)
    monkeypatch.setattr(expiry, "DELETED_AT_ONCE_MAX", 2)
    for name in "hgfedcba":
        await tell(lab, name)
    await sweeper.sweep()
    assert left(lab) == ["a", "b", "c"]


async def test_one_that_is_counted_again_meanwhile_stays(
    lab: Lab, sweeper: EventSweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(lab, "a")
    lab.clock.advance(LIFETIME + SECOND)
    delete = lab.registry.delete

    async def after_a_change(
        resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> None:
        await lab.update(EVENT, {**lab.get(EVENT, "a"), "count": 2})
        await delete(resource, namespace, name, options)

    monkeypatch.setattr(lab.registry, "delete", after_a_change)
    await sweeper.sweep()
    assert lab.get(EVENT, "a")["count"] == 2


async def test_a_disk_that_takes_nothing_is_told(
    lab: Lab, sweeper: EventSweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(lab, "a")
    lab.clock.advance(LIFETIME + SECOND)

    async def refused(_resource: object, _namespace: str, _name: str, _: DeleteOptions) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(lab.registry, "delete", refused)
    with pytest.raises(ExceptionGroup) as failed:
        await sweeper.sweep()
    assert failed.group_contains(StorageFailed)


def test_events_of_one_moment_go_in_the_order_they_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "KEPT_MAX", 1)
    events = [Stored(EPOCH, revision, f"e{revision}") for revision in (3, 1, 2)]
    assert [event.key for event in surplus(events, now=EPOCH)] == ["e1", "e2"]


async def test_a_sweep_that_fails_is_logged_and_tried_again(
    sweeper: EventSweeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(expiry, "EVERY_SECONDS", 0)
    again = asyncio.Event()
    sweeps: list[int] = []

    async def sweep() -> None:
        sweeps.append(1)
        if len(sweeps) > 1:
            again.set()
            return
        raise ExceptionGroup("deleting", [StorageFailed("the disk is full")])

    monkeypatch.setattr(sweeper, "sweep", sweep)
    running = asyncio.create_task(sweeper.run())
    async with asyncio.timeout(30):
        await again.wait()
    running.cancel()
    assert [record.message for record in caplog.records] == ["old events could not be deleted"]


@pytest.mark.parametrize("value", [b"{", b'{"metadata":{"creationTimestamp":"yesterday"}}'])
def test_an_event_that_cannot_be_read_is_left_alone(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert expiry._stored(Entry("core/events/default/a", value, 1)) is None
    assert [record.message for record in caplog.records] == ["event cannot be read"]
