"""Writing events: one that cannot be written, or was deleted meanwhile, stops no other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Event
from bullpen.api.meta import ObjectMeta
from bullpen.errors import Conflict, NotFound, StorageFailed
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.runtime import events as module
from bullpen.runtime.events import Events

CLIENT = Client(metadata=ObjectMeta(name="a", namespace="lab", uid="1"))


class Disk:
    """Objects that fail as they are told."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.calls: list[tuple[str, int]] = []

    async def create(self, value: Event) -> Event:
        return self._done("create", value)

    async def update(self, value: Event) -> Event:
        return self._done("update", value)

    def _done(self, verb: str, value: Event) -> Event:
        self.calls.append((verb, value.count))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return value


async def written(disk: Disk, times: int) -> None:
    objects: Any = disk
    ids = RandomIds(random.Random(1))
    events = Events(objects, clock=VirtualClock(), ids=ids, component="test")
    for _ in range(times):
        events.emit(CLIENT, reason="Tried", message="it happened")
    for alike in events._taken():
        await events._write_alike(alike)


@pytest.mark.parametrize("failure", [Conflict("changed"), NotFound("deleted")])
async def test_an_event_that_changed_or_went_meanwhile_is_written_anew(failure: Exception) -> None:
    disk = Disk(None, failure)
    await written(disk, 2)
    assert disk.calls == [("create", 1), ("update", 2), ("create", 1)]


@pytest.mark.parametrize("failure", [StorageFailed("full"), OverflowError("a defect")])
async def test_an_event_that_cannot_be_written_is_logged_and_the_next_one_is(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(failure)
    await written(disk, 2)
    assert disk.calls == [("create", 1), ("create", 1)]
    assert [record.message for record in caplog.records] == ["event not written"]


async def test_only_the_events_of_lately_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 1)
    disk: Any = Disk()
    ids = RandomIds(random.Random(1))
    events = Events(disk, clock=VirtualClock(), ids=ids, component="test")
    for reason in ("One", "Other", "One"):
        events.emit(CLIENT, reason=reason, message="it happened")
        for alike in events._taken():
            await events._write_alike(alike)
    assert disk.calls == [("create", 1)] * 3
