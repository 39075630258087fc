"""What is accepted is foreseen before it can be read, and taken back when it is lost."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.errors import NotFound, StorageFailed
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.base import ABSENT
from bullpen.store.history import DEFAULT_LIMITS
from bullpen.store.journaled import Batch, JournaledStore, Listener
from bullpen.store.ledger import Ledger


class SlowDisk:
    """A journal that finishes when it is told to."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.pending = 0
        self.slow = False

    def submit(self, batch: Batch) -> None:
        self.pending += len(batch.writes)
        if not self.slow:
            self.finish()

    def finish(self) -> None:
        count, self.pending = self.pending, 0
        self.listener.committed(count)

    def fail(self) -> None:
        self.pending = 0
        self.listener.failed("disk full")

    def close(self) -> None:
        self.listener.closed()


class SlowStore(JournaledStore):
    disk: SlowDisk

    def __init__(self) -> None:
        super().__init__(Ledger(DEFAULT_LIMITS), self._connect, DEFAULT_LIMITS)

    def _connect(self, listener: Listener) -> SlowDisk:
        self.disk = SlowDisk(listener)
        return self.disk


Foreseen = list[tuple[str, str, LeaseSpec | None]]


@pytest.fixture
async def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
async def objects(store: SlowStore) -> RegistryObjects:
    registry = Registry(store, clock=VirtualClock(), ids=RandomIds(random.Random(1)))
    await registry.ensure_namespaces(("default",))
    store.disk.slow = True
    return RegistryObjects(registry, manager="test")


@pytest.fixture
def heard(objects: RegistryObjects) -> Foreseen:
    found: Foreseen = []
    objects.foresee(
        Lease, lambda space, name, new: found.append((space, name, new.spec if new else None))
    )
    return found


def lease() -> Lease:
    return Lease(
        metadata=ObjectMeta(name="a", namespace="default"),
        spec=LeaseSpec(
            client_ref=LocalObjectReference(name="me"),
            selector=LabelSelector(match_labels={"a": "b"}),
            duration=timedelta(hours=1),
        ),
    )


async def test_a_write_is_foreseen_before_anybody_can_read_it(
    store: SlowStore, objects: RegistryObjects, heard: Foreseen
) -> None:
    async with asyncio.TaskGroup() as tasks:
        creating = tasks.create_task(objects.create(lease()))
        await asyncio.sleep(0)
        assert heard == [("default", "a", lease().spec)]
        with pytest.raises(NotFound):
            await objects.get(Lease, "default", "a")
        await asyncio.sleep(0)
        store.disk.finish()
    assert await objects.get(Lease, "default", "a") == creating.result()
    assert len(heard) == 1


async def test_a_write_that_is_lost_is_taken_back(
    store: SlowStore, objects: RegistryObjects, heard: Foreseen
) -> None:
    async with asyncio.TaskGroup() as tasks:
        creating = tasks.create_task(_refused(objects))
        for _ in range(3):
            await asyncio.sleep(0)
        store.disk.fail()
    assert creating.result()
    assert [new for _, _, new in heard] == [lease().spec, None]


async def _refused(objects: RegistryObjects) -> bool:
    try:
        await objects.create(lease())
    except StorageFailed:
        return True
    return False


async def test_a_listener_that_fails_does_not_fail_the_write(
    store: SlowStore,
    objects: RegistryObjects,
    caplog: pytest.LogCaptureFixture,
    unexpected_errors: list[str],
) -> None:
    def broken(_namespace: str, _name: str, _new: Lease | None) -> None:
        raise OverflowError("a defect")

    objects.foresee(Lease, broken)
    store.disk.slow = False
    assert (await objects.create(lease())).metadata.uid
    assert {record.message for record in caplog.records} == {"foreseen change not processed"}
    unexpected_errors.clear()


async def test_a_watch_leaves_out_an_object_that_cannot_be_read(
    store: SlowStore, objects: RegistryObjects, caplog: pytest.LogCaptureFixture
) -> None:
    store.disk.slow = False
    changes = objects.watch(Lease, since=store.revision)
    odd = b'{"metadata":{"name":"odd","namespace":"default"},"spec":{"duration":[]}}'
    key = "jumpstarter.dev/leases/default/odd"
    await store.put(key, lambda _: odd, expect=ABSENT)
    await objects.create(lease())
    assert [change.value.metadata.name for change in await changes.next()] == ["a"]
    assert {record.message for record in caplog.records} == {
        "object cannot be read and is left out"
    }


async def test_an_update_of_what_was_read_long_ago_needs_no_cache(
    store: SlowStore, objects: RegistryObjects
) -> None:
    store.disk.slow = False
    made = await objects.create(lease())
    objects._recent.clear()
    spec = replace(made.spec, release=True)
    assert (await objects.update(replace(made, spec=spec))).spec.release
