"""A rotated credential reaches the members of a pool as their class asks for it."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, Secret
from bullpen.api.kinds.virtualtargetclass import CABundleReference, CredentialRotation
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.controllers.exporters.credentials import token_of
from bullpen.identity.subjects import Role, secret_name
from support.pool_world import NAMESPACE, World

R = CredentialRotation


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def make_pool(world: World, rotation: CredentialRotation) -> None:
    await world.objects.create(
        Secret(metadata=ObjectMeta(name="cloud", namespace=NAMESPACE), data={"key": encoded("old")})
    )
    await world.objects.create(
        ConfigMap(metadata=ObjectMeta(name="ca", namespace=NAMESPACE), data={"ca.crt": "OLD"})
    )
    await world.make_class(
        credentials_secret_ref=LocalObjectReference(name="cloud"),
        ca_bundle_config_map_ref=CABundleReference(name="ca", key="ca.crt"),
        credential_rotation=rotation,
    )
    await world.make_set(min_replicas=2, max_replicas=4)
    await world.until(lambda: world.status().ready_replicas == 2)


async def rotate(world: World) -> None:
    found = await world.objects.get(Secret, NAMESPACE, "cloud")
    await world.objects.update(replace(found, data={"other": encoded("new")}))


async def trust_another_authority(world: World) -> None:
    found = await world.objects.get(ConfigMap, NAMESPACE, "ca")
    await world.objects.update(replace(found, data={"ca.crt": "NEW"}))


def credentials(world: World) -> list[dict[str, bytes]]:
    machines = world.provisioner._machines
    return [dict(machines[key].spec.credentials) for key in sorted(machines)]


def members(world: World) -> set[str]:
    return {x.metadata.uid for x in world.views.exporters.all(NAMESPACE)}


def settled(world: World) -> bool:
    return world.status().ready_replicas == 2 and world.status().updated_replicas == 2


def test_with_replace_members_without_a_lease_are_replaced() -> None:
    async def story(world: World) -> None:
        await make_pool(world, R.REPLACE)
        before = members(world)
        await world.ask("held")
        await world.until(lambda: world.status().leased_replicas == 1)
        await rotate(world)
        await world.until(lambda: world.reason("Synced") == "WaitingForLeases")
        assert credentials(world) == [{"key": b"old"}, {"other": b"new"}]
        held = world.views.leases.get(NAMESPACE, "held")
        assert held is not None
        assert held.status.exporter_ref is not None, "the lease goes on"
        exporter = world.views.exporters.get(NAMESPACE, held.status.exporter_ref.name)
        assert exporter is not None
        assert exporter.metadata.uid in before
        await world.release("held")
        await world.until(lambda: settled(world) and credentials(world) == [{"other": b"new"}] * 2)

    World().run(story)


def test_with_in_place_running_members_get_the_files() -> None:
    async def story(world: World) -> None:
        await make_pool(world, R.IN_PLACE)
        before = members(world)
        await rotate(world)
        await world.until(lambda: credentials(world) == [{"other": b"new"}] * 2)
        await world.always(lambda: members(world) == before, seconds=30)
        await trust_another_authority(world)
        await world.until(lambda: settled(world) and not members(world) & before)

    World().run(story)


def test_with_leave_nothing_happens_until_a_member_is_replaced() -> None:
    async def story(world: World) -> None:
        await make_pool(world, R.LEAVE)
        before = members(world)
        await rotate(world)
        await trust_another_authority(world)
        await world.always(lambda: members(world) == before, seconds=30)
        assert credentials(world) == [{"key": b"old"}] * 2
        await world.edit_set(min_replicas=3)
        await world.until(lambda: {"other": b"new"} in credentials(world))

    World().run(story)


@pytest.mark.parametrize("rotation", list(R))
def test_an_edit_that_leaves_the_contents_alone_replaces_nobody(
    rotation: CredentialRotation,
) -> None:
    async def story(world: World) -> None:
        await make_pool(world, rotation)
        before = members(world)
        found = await world.objects.get(Secret, NAMESPACE, "cloud")
        meta = replace(found.metadata, labels={"team": "lab"})
        await world.objects.update(replace(found, metadata=meta))
        await world.always(lambda: members(world) == before, seconds=20)

    World().run(story)


def test_a_client_whose_token_is_replaced_is_told_where_the_new_one_is() -> None:
    async def story(world: World) -> None:
        name = secret_name(Role.CLIENT, "me")

        def stored() -> str:
            return token_of(world.views.secrets.get(NAMESPACE, name))

        await world.until(stored)
        old = stored()
        client = await world.objects.get(Client, NAMESPACE, "me")
        fresh = await world.lab.credentials.rotate(Role.CLIENT, client)
        assert fresh != old
        assert stored() == fresh
        (event,) = await world.events("CredentialRotated")
        assert event.involved_object.name == "me"
        assert event.message == f"new token in {name}"

    World().run(story)
