"""Routers that announce themselves through the API, and which one a dial names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

from jumpstarter_protocol import jumpstarter_pb2

from bullpen.api.kinds.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.services.routing import (
    ENDPOINT_ANNOTATION,
    LOAD_ANNOTATION,
    NAMESPACE,
    ROUTER_LABEL,
)
from support.lab_world import LabWorld

LASTS = timedelta(seconds=10)
OURS = "router:1"


def announcement(name: str, renewed: datetime, load: int = 0) -> CoordinationLease:
    meta = ObjectMeta(
        name=name,
        namespace=NAMESPACE,
        labels={ROUTER_LABEL: "true"},
        annotations={ENDPOINT_ANNOTATION: f"{name}:1", LOAD_ANNOTATION: str(load)},
    )
    seconds = int(LASTS.total_seconds())
    spec = CoordinationLeaseSpec(lease_duration_seconds=seconds, renew_time=renewed)
    return CoordinationLease(metadata=meta, spec=spec)


async def renew(world: LabWorld, name: str, renewed: datetime) -> None:
    found = await world.objects.get(CoordinationLease, NAMESPACE, name)
    await world.objects.update(replace(found, spec=replace(found.spec, renew_time=renewed)))
    await world.settle()


async def listen(world: LabWorld, exporter: Exporter, lease: str) -> None:
    calls = world.controller_calls.Listen(exporter, jumpstarter_pb2.ListenRequest(lease_name=lease))
    async for _ in calls:
        pass


async def dialled(world: LabWorld, lease: str) -> str:
    request = jumpstarter_pb2.DialRequest(lease_name=lease)
    answer = await world.controller_calls.Dial(world.client(), request)
    endpoint: str = answer.router_endpoint
    return endpoint


def test_a_dial_names_the_router_with_the_fewest_streams_that_still_renews() -> None:
    async def story(world: LabWorld) -> None:
        await world.registry.ensure_namespaces((NAMESPACE,))
        async with world.player(), asyncio.TaskGroup() as tasks:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            listening = tasks.create_task(listen(world, world.exporter(), "one"))
            await world.settle()
            assert await dialled(world, "one") == OURS
            now = world.clock.now()
            await world.objects.create(announcement("busy", now, load=10))
            await world.objects.create(announcement("idle", now))
            await world.settle()
            assert await dialled(world, "one") == "idle:1"
            # A renewal that was seen counts from then on, whatever the router's clock says.
            await asyncio.sleep(LASTS.total_seconds() / 2)
            await renew(world, "busy", world.clock.now() - timedelta(hours=1))
            await asyncio.sleep(LASTS.total_seconds() / 2)
            assert await dialled(world, "one") == "busy:1"
            await asyncio.sleep(LASTS.total_seconds() / 2)
            assert await dialled(world, "one") == OURS
            listening.cancel()

    LabWorld().run(story)


def test_a_router_that_announced_itself_before_the_start_counts_by_its_age() -> None:
    async def story(world: LabWorld) -> None:
        await world.registry.ensure_namespaces((NAMESPACE,))
        now = world.clock.now()
        await world.objects.create(announcement("old", now - 2 * LASTS))
        await world.objects.create(announcement("young", now - LASTS / 2))
        async with world.service(), world.player(), asyncio.TaskGroup() as tasks:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            listening = tasks.create_task(listen(world, world.exporter(), "one"))
            await world.settle()
            assert await dialled(world, "one") == "young:1"
            await asyncio.sleep(LASTS.total_seconds() / 2)
            assert await dialled(world, "one") == OURS
            listening.cancel()

    LabWorld().run_without_service(story)
