"""How much work a lease is. Counted, because a count does not depend on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from bullpen.api.meta import LabelSelector
from bullpen.controllers.claims.claim_reconciler import ClaimReconciler
from bullpen.controllers.leases import lease_reconciler as lease_controller
from bullpen.core import lab_index
from bullpen.core.leases import scheduler
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Decision, Lab
from bullpen.errors import TooManyRequests
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome
from bullpen.services.lease_requests import LeaseRequest
from support.lab_world import LabWorld

REQUEST = LeaseRequest(selector="board=x", duration=timedelta(hours=1), tags={})

FLOOD = 1_000
"""More than any client may have waiting."""

WRITES = {
    "jumpstarter.dev/leases": 5,  # created, assigned, released, ended, labelled
    "jumpstarter.dev/exporters": 2,  # taken, freed
    "core/events": 2,
}


@pytest.mark.parametrize("others", [0, 100])
def test_a_lease_is_seven_writes_and_two_events_however_large_the_lab(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    world = LabWorld()
    looks = Counter[str]()

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            looks[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    async def story(world: LabWorld) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(others):
                await world.make_exporter(f"other-{number}")
            player = await stack.enter_async_context(world.player("a"))
            await world.settle()
            player.obeys = False
            counted(lab_index, "Offer")
            counted(lease_controller, "mend_exporter")
            counted(lease_controller, "mend_lease")
            watch = world.registry.store.watch("", since=world.registry.revision)
            lease = await world.leases.create(world.client(), REQUEST)
            await world.leases.release(world.client(), lease.metadata.name)
            await asyncio.sleep(1)
            keys = [change.key for change in await watch.next()]
            assert Counter("/".join(key.split("/")[:2]) for key in keys) == WRITES

    world.run(story)
    assert looks["Offer"] <= 3, "taken, freed, and gone at the end"
    assert looks["mend_exporter"] <= 4
    assert looks["mend_lease"] <= 3


@pytest.mark.parametrize("others", [0, 100])
def test_requests_for_other_exporters_are_not_decided_again(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    decided: list[int] = []
    real = scheduler.schedule

    def schedule(lab: Lab) -> tuple[Decision, ...]:
        decided.append(len(lab.requests))
        return real(lab)

    async def story(world: LabWorld) -> None:
        async with world.player("a"):
            await world.make_exporter("elsewhere", board="y")
            for number in range(others):
                elsewhere = LabelSelector(match_labels={"board": "y"})
                await world.make_lease(f"waits-{number}", selector=elsewhere)
            await world.settle()
            monkeypatch.setattr(scheduler, "schedule", schedule)
            lease = await world.leases.create(world.client(), REQUEST)
            assert lease.status.exporter_ref is not None
            await world.leases.release(world.client(), lease.metadata.name)
            await asyncio.sleep(1)

    LabWorld().run(story)
    assert sum(decided) == 1


@pytest.mark.slow
def test_a_flood_of_waiting_leases_of_one_client_makes_a_lease_of_another_no_more_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the flood asks for, as long as none of it could have what the other one gets."""
    decided: list[int] = []
    real = scheduler.schedule

    def schedule(lab: Lab) -> tuple[Decision, ...]:
        decided.append(len(lab.requests))
        return real(lab)

    async def story(world: LabWorld) -> None:
        await world.make_exporter("off", off="yes")
        async with world.player("a"):
            flooding = world.client("bob")
            for number in range(FLOOD):
                lasts = timedelta(hours=1, seconds=number)
                asked = replace(REQUEST, selector=f"off=yes,!x{number}", duration=lasts)
                with contextlib.suppress(TooManyRequests):
                    await world.leases.create(flooding, asked)
            assert len(tuple(world.views.leases.all())) == Quotas().waiting_max
            await asyncio.sleep(1)
            monkeypatch.setattr(scheduler, "schedule", schedule)
            lease = await world.leases.create(world.client(), REQUEST)
            assert lease.status.exporter_ref is not None
            await world.leases.release(world.client(), lease.metadata.name)
            await asyncio.sleep(1)

    world = LabWorld()
    world.quotas = replace(Quotas(), rate=None)
    world.run(story)
    assert sum(decided) == 1, "only the new request is decided"


def test_taking_an_exporter_and_telling_the_lease_is_one_commit() -> None:
    world = LabWorld()
    batches: list[int] = []

    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.settle()
            store = world.registry.store
            real = store.committed  # type: ignore[attr-defined]

            def committed(count: int) -> None:
                batches.append(count)
                real(count)

            store.committed = committed  # type: ignore[attr-defined]
            await world.leases.create(world.client(), REQUEST)

    world.run(story)
    assert batches[:2] == [1, 2], "the lease; then the exporter and the lease's status"


def test_a_write_of_status_reads_nothing_else_again() -> None:
    """The rest of the value is the one that was known, and the stored sections are shared."""

    async def story(world: LabWorld) -> None:
        made = await world.make_lease("a")
        status = replace(made.status, priority=7)
        written = await world.objects.update_status(replace(made, status=status))
        assert written.status.priority == 7
        assert written.spec is made.spec
        head = world.registry.store.head("jumpstarter.dev/leases/default/a")
        assert head is not None
        before, after = (
            world.registry.document(change.value)
            for change in await world.registry.store.watch(
                "jumpstarter.dev/leases/default/a", since=head.revision - 2
            ).next()
        )
        assert after["spec"] is before["spec"]

    LabWorld().run_without_service(story)


def test_a_lease_runs_no_code_of_claims_where_nobody_claims() -> None:
    """From its request to its end; ``bullpen bench lease`` measures what is left."""
    ran = Counter[str]()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("bullpen."):
            ran[module] += 1

    async def story(world: LabWorld) -> None:
        before = sys.getprofile()
        async with world.player("a"):
            await world.settle()
            sys.setprofile(trace)
            try:
                lease = await world.leases.create(world.client(), REQUEST)
                assert lease.status.exporter_ref is not None
                await world.leases.release(world.client(), lease.metadata.name)
                await asyncio.sleep(1)
            finally:
                sys.setprofile(before)
        assert world.views.leases.get(*key_of(lease)) is None, "it has ended and was labelled"

    LabWorld().run(story)
    assert ran["bullpen.core.leases.scheduler"]
    assert not [name for name in ran if ".claims" in name], ran


def test_a_lease_starts_no_pass_of_claims_where_nobody_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[str] = []

    async def reconcile(self: ClaimReconciler, namespace: str) -> Outcome:
        passes.append(namespace)
        return Outcome()

    async def story(world: LabWorld) -> None:
        async with world.player("a"):
            lease = await world.leases.create(world.client(), REQUEST)
            await world.leases.release(world.client(), lease.metadata.name)
            await asyncio.sleep(1)

    monkeypatch.setattr(ClaimReconciler, "reconcile", reconcile)
    LabWorld().run(story)
    assert not passes
