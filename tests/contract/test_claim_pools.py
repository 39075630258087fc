"""Pools and claims: what ExporterSets could start is supply, and claims make them start it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from bullpen.api import codec
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import (
    ProviderConfig,
    ProviderConfigSpec,
    ProviderConfigStatus,
    ProviderQuota,
)
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core import conditions
from bullpen.core.lab_index import holder_of
from bullpen.errors import NotFound
from bullpen.provisioners.fake import NAME
from support.pool_world import NAMESPACE, World


async def make_class(world: World, name: str, **labels: str) -> None:
    selector = {"labels": {"matchLabels": labels}}
    document = {"metadata": {"name": name}, "spec": {"selectors": [selector]}}
    await world.objects.create(codec.decode(DeviceClass, document))


async def make_claim(world: World, name: str, *requests: dict[str, Any], **spec: Any) -> None:
    meta = {"name": name, "namespace": NAMESPACE}
    whole = {"clientRef": {"name": "me"}, "requests": list(requests), "duration": "1h", **spec}
    await world.objects.create(codec.decode(DeviceClaim, {"metadata": meta, "spec": whole}))


def exactly(name: str, device_class: str, count: int = 1) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def claim(world: World, name: str = "c") -> DeviceClaim:
    found = world.views[DeviceClaim].get(NAMESPACE, name)
    assert found is not None
    return found


def said(world: World, name: str = "c") -> tuple[str, str]:
    found = conditions.get(claim(world, name).status.conditions, "Allocated")
    return (found.status, found.reason) if found is not None else ("", "")


async def allocated(world: World, name: str = "c") -> list[str]:
    """The pools of its members, in the order of its requests."""
    await world.until(lambda: said(world, name)[0] == "True", what=f"claim {name} is allocated")
    return [member.device.rsplit("-", 1)[0] for member in claim(world, name).status.members]


def leases_of(world: World, name: str) -> list[Lease]:
    found = world.views.leases.all(NAMESPACE)
    return [x for x in found if any(r.name == name for r in x.metadata.owner_references)]


def members(world: World, pool: str) -> list[Exporter]:
    found = world.views.exporters.all(NAMESPACE)
    return [e for e in found if e.metadata.name.startswith(f"{pool}-")]


async def pools(world: World, **spec: Any) -> None:
    """Two empty pools, of boards and of peers, at the same site."""
    await world.make_class()
    for pool in ("board", "peer"):
        labels = {"kind": pool, "site": "brno"}
        empty = {"min_replicas": 0, "min_available_replicas": 0, **spec}
        await world.make_set(pool, labels=labels, **empty)
        await make_class(world, pool, kind=pool)
    await world.sleep(5)


def test_a_claim_starts_members_of_two_empty_pools_and_gets_them_together() -> None:
    async def story(world: World) -> None:
        await pools(world)
        match = [{"matchAttribute": "site"}]
        await make_claim(
            world, "c", exactly("dut", "board"), exactly("peer", "peer", 2), constraints=match
        )
        await world.until(lambda: said(world) == ("False", "Provisioning"))
        assert not any(holder_of(e) for e in world.views.exporters.all(NAMESPACE))
        assert await allocated(world) == ["board", "peer", "peer"]
        assert len(members(world, "peer")) == 2
        assert all(lease.status.exporter_ref for lease in leases_of(world, "c"))

    World().run(story)


def test_a_free_exporter_is_taken_rather_than_started() -> None:
    async def story(world: World) -> None:
        await pools(world, min_replicas=1)
        await world.until(
            lambda: all(world.status(p).available_replicas for p in ("board", "peer"))
        )
        before = {e.metadata.name for e in members(world, "board")}
        await make_claim(world, "c", exactly("dut", "board"))
        await allocated(world)
        assert claim(world).status.members[0].device in before

    World().run(story)


def test_a_pool_grows_for_an_alternative_only_when_it_is_due() -> None:
    async def story(world: World) -> None:
        await pools(world)
        await make_class(world, "hardware", kind="hardware")
        ladder = [
            {"name": "hw", "deviceClassName": "hardware"},
            {"name": "qemu", "deviceClassName": "board", "after": "5m"},
        ]
        await make_claim(world, "c", {"name": "dut", "firstAvailable": ladder})
        await world.always(lambda: not members(world, "board"), seconds=290)
        await world.until(lambda: members(world, "board"), seconds=20)
        await allocated(world)
        (member,) = claim(world).status.members
        assert member.alternative == "qemu"

    World().run(story)


def test_a_pool_that_fails_only_while_it_is_asked_is_not_asked_all_the_time() -> None:
    """The only name of its members is used by another exporter."""

    async def story(world: World) -> None:
        foreign = ObjectMeta(name="board-0", namespace=NAMESPACE)
        await world.objects.create(Exporter(metadata=foreign))
        await pools(world, max_replicas=1)
        created: list[str] = []

        def see(old: Lease | None, new: Lease | None) -> None:
            created.extend([new.metadata.name] if old is None and new is not None else [])

        world.views.leases.listen(see)
        await make_claim(world, "c", exactly("dut", "board"))
        await world.sleep(30)
        assert 1 <= len(created) <= 8
        await world.objects.delete(await world.objects.get(Exporter, NAMESPACE, "board-0"))
        assert await allocated(world) == ["board"]

    World().run(story)


def test_a_claim_for_more_than_the_ceiling_starts_nothing() -> None:
    async def story(world: World) -> None:
        await pools(world, max_replicas=2)
        await make_claim(world, "c", exactly("dut", "board", 3))
        await world.until(lambda: said(world)[0] == "False")
        await world.always(lambda: not members(world, "board"), seconds=30)
        assert said(world) == ("False", "Unsatisfiable")

    World().run(story)


async def slots(world: World, *, total: int, used: int) -> None:
    """What a provider reports, such as hosts with slots."""
    meta = ObjectMeta(name="bench", namespace=NAMESPACE)
    try:
        found = await world.objects.get(ProviderConfig, NAMESPACE, "bench")
    except NotFound:
        spec = ProviderConfigSpec(provisioner=NAME)
        found = await world.objects.create(ProviderConfig(metadata=meta, spec=spec))
    quota = ProviderQuota(instances=total, used=used)
    status = ProviderConfigStatus(quota=quota, instances=used)
    await world.objects.update_status(replace(found, status=status))


async def pools_on_hosts(world: World) -> None:
    """The pools, on the slots of one provider."""
    await world.make_class("hosts", provider_config_ref=LocalObjectReference(name="bench"))
    await pools(world, virtual_target_class_name="hosts")


def test_a_claim_waits_for_a_free_slot_of_the_hosts_of_a_pool() -> None:
    async def story(world: World) -> None:
        await slots(world, total=2, used=2)
        await pools_on_hosts(world)
        await make_claim(world, "c", exactly("dut", "board"))
        await world.until(lambda: said(world) == ("False", "NotAvailable"))
        found = conditions.get(claim(world).status.conditions, "Allocated")
        assert found is not None
        assert "no free slots" in found.message
        await world.always(lambda: not members(world, "board"), seconds=30)
        await slots(world, total=2, used=1)
        assert await allocated(world) == ["board"]

    World().run(story)


def test_two_pools_do_not_count_on_the_same_slot() -> None:
    async def story(world: World) -> None:
        await slots(world, total=3, used=2)
        await pools_on_hosts(world)
        await make_claim(world, "both", exactly("dut", "board"), exactly("peer", "peer"))
        await world.until(lambda: said(world, "both") == ("False", "NotAvailable"))
        await world.always(lambda: not members(world, "board"), seconds=30)
        await make_claim(world, "one", exactly("peer", "peer"))
        assert await allocated(world, "one") == ["peer"]

    World().run(story)


def test_the_next_alternative_is_taken_if_the_hosts_of_the_first_are_full() -> None:
    async def story(world: World) -> None:
        await slots(world, total=2, used=2)
        await pools_on_hosts(world)
        await world.make_set("cloud", labels={"kind": "cloud"}, min_available_replicas=0)
        await make_class(world, "cloud", kind="cloud")
        ladder = [
            {"name": "hosts", "deviceClassName": "board"},
            {"name": "cloud", "deviceClassName": "cloud"},
        ]
        await make_claim(world, "c", {"name": "dut", "firstAvailable": ladder})
        assert await allocated(world) == ["cloud"]
        assert not members(world, "board")

    World().run(story)


def test_nothing_is_started_for_a_client_that_no_policy_gives_access() -> None:
    policy = {
        "exporterSelector": {"matchLabels": {"kind": "board"}},
        "policies": [{"priority": 1, "from": [{"clientSelector": {"matchLabels": {"team": "t"}}}]}],
    }

    async def story(world: World) -> None:
        await pools(world)
        meta = {"name": "p", "namespace": NAMESPACE}
        document = {"metadata": meta, "spec": policy}
        await world.objects.create(codec.decode(ExporterAccessPolicy, document))
        await make_claim(world, "c", exactly("dut", "board"))
        await world.until(lambda: said(world) == ("False", "Unsatisfiable"))
        await world.always(lambda: not members(world, "board"), seconds=30)
        client = await world.objects.get(Client, NAMESPACE, "me")
        labelled = replace(client.metadata, labels={"team": "t"})
        await world.objects.update(replace(client, metadata=labelled))
        await allocated(world)

    World().run(story)


def test_members_that_are_started_for_a_claim_that_is_released_are_not_leased() -> None:
    async def story(world: World) -> None:
        await pools(world)
        await make_claim(world, "c", exactly("dut", "board"))
        await world.until(lambda: said(world) == ("False", "Provisioning"))
        found = await world.objects.get(DeviceClaim, NAMESPACE, "c")
        await world.objects.update(replace(found, spec=replace(found.spec, release=True)))
        await world.until(lambda: claim(world).status.ended)
        await world.until(lambda: not leases_of(world, "c"))
        await asyncio.sleep(30)
        assert not any(holder_of(e) for e in world.views.exporters.all(NAMESPACE))

    World().run(story)


def test_a_restart_while_members_start_leaves_all_or_none() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await pools(world)
            await make_claim(world, "c", exactly("dut", "board"), exactly("peer", "peer", 2))
            await world.until(lambda: len(leases_of(world, "c")) == 3)
        async with world.service():
            await world.until(lambda: world.views[DeviceClaim].get(NAMESPACE, "c"))
            assert await allocated(world) == ["board", "peer", "peer"]

    World().run_without_service(story)
