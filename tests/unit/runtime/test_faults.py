"""Faults of objects: recorded once, cleared by success, bounded, and never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.meta import ObjectMeta
from bullpen.errors import Conflict
from bullpen.kit.clock import VirtualClock
from bullpen.runtime import faults as module
from bullpen.runtime.faults import Faults, ObjectKey
from bullpen.runtime.loop import Outcome, ReconcileLoop, supervise


def client(name: str = "a") -> Client:
    return Client(metadata=ObjectMeta(name=name, namespace="lab", uid=f"uid-{name}"))


def key(name: str = "a") -> ObjectKey:
    return ObjectKey(Client, "lab", name)


def test_an_unexpected_exception_becomes_a_fault_of_its_object() -> None:
    faults = Faults()
    told: list[ObjectKey] = []
    faults.listen(told.append)
    with faults.guarding("leases", client()):
        raise OverflowError("date value out of range")
    (fault,) = faults.of(key())
    assert fault.part == "leases"
    assert fault.error == "OverflowError: date value out of range"
    assert fault.uid == "uid-a"
    assert told == [key()]
    assert faults.counts == {("Client", "leases"): 1}


def test_an_error_of_our_own_tree_is_not_a_fault() -> None:
    faults = Faults()
    with pytest.raises(Conflict), faults.guarding("leases", client()):
        raise Conflict("the object changed")
    assert not faults.all()


def test_the_same_fault_is_logged_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            faults.report("leases", client(), OverflowError("x"))
    assert [record.message for record in caplog.records] == ["object cannot be processed"]
    assert caplog.records[0].exc_info
    assert faults.counts["Client", "leases"] == 3


def test_success_clears_the_fault_of_that_part_only() -> None:
    faults = Faults()
    faults.report("leases", client(), OverflowError("x"))
    faults.report("view", client(), KeyError("y"))
    with faults.guarding("leases", client()):
        pass
    assert [fault.part for fault in faults.of(key())] == ["view"]
    faults.forget(client())
    assert not faults.all()


def test_faults_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAULTS_MAX", 2)
    faults = Faults()
    for name in ("a", "b", "c"):
        faults.report("leases", client(name), OverflowError("x"))
    assert faults.all() == (key("a"), key("b"))
    assert faults.counts["Client", "leases"] == 3


class _Failing:
    name = "failing"

    def __init__(self) -> None:
        self.fails = True

    async def reconcile(self, name: str) -> Outcome:
        if self.fails:
            self.fails = False
            raise OverflowError("x")
        return Outcome()


async def test_a_failed_pass_is_recorded_on_its_object_until_one_succeeds() -> None:
    faults = Faults()
    seen: list[int] = []
    both = asyncio.Event()

    def changed(found: ObjectKey) -> None:
        seen.append(len(faults.of(found)))
        if len(seen) == 2:
            both.set()

    faults.listen(changed)
    reconciler = _Failing()
    loop: ReconcileLoop[str] = ReconcileLoop(
        reconciler,
        clock=VirtualClock(),
        retry=lambda failures: timedelta(0),
        faults=faults,
        subject=client,
    )
    running = asyncio.create_task(loop.run())
    loop.add("a")
    async with asyncio.timeout(30):
        await both.wait()
    running.cancel()
    assert seen == [1, 0]


async def test_a_part_that_fails_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    starts: list[int] = []

    async def run() -> None:
        starts.append(1)
        if len(starts) < 3:
            raise OverflowError("x")

    await supervise("events", run, retry=lambda failures: timedelta(0))
    assert len(starts) == 3
    assert [record.message for record in caplog.records] == ["part failed and is started again"] * 2


def test_dropping_the_faults_of_an_object_that_has_none_tells_nobody() -> None:
    faults = Faults()
    told: list[ObjectKey] = []
    faults.listen(told.append)
    faults.drop(key())
    assert told == []


async def test_a_failed_pass_over_an_object_that_is_gone_leaves_no_fault() -> None:
    faults = Faults()
    looked = asyncio.Event()

    def subject(_key: str) -> None:
        looked.set()

    loop: ReconcileLoop[str] = ReconcileLoop(
        _Failing(),
        clock=VirtualClock(),
        retry=lambda failures: timedelta(hours=1),
        faults=faults,
        subject=subject,
    )
    running = asyncio.create_task(loop.run())
    loop.add("a")
    async with asyncio.timeout(30):
        await looked.wait()
    running.cancel()
    assert not faults.all()
