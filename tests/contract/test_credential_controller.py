"""The controller of credentials when its views are behind."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.controllers.exporters.credentials import CredentialReconciler
from bullpen.controllers.views import Views
from bullpen.errors import NotFound
from bullpen.identity.subjects import Role
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.events import Events
from bullpen.sim.keys import CheapSigner
from bullpen.store.journaled import MemoryStore

SPACE = "default"


@pytest.fixture
async def objects() -> AsyncIterator[RegistryObjects]:
    store = MemoryStore()
    registry = Registry(store, clock=VirtualClock(), ids=RandomIds(random.Random(7)))
    await registry.ensure_namespaces((SPACE,))
    yield RegistryObjects(registry, manager="bullpen")
    await store.close()


def views_of(objects: RegistryObjects) -> Views:
    """What a controller sees: only what a test shows it."""
    return Views(objects, retry=lambda failures: timedelta(0))


async def reconcile(objects: RegistryObjects, views: Views) -> None:
    clock, ids = VirtualClock(), RandomIds(random.Random(8))
    reconciler = CredentialReconciler(
        objects,
        views,
        signer=CheapSigner(),
        endpoint="lab:8082",
        clock=clock,
        ids=ids,
        events=Events(objects, clock=clock, ids=ids, component="bullpen"),
    )
    await reconciler.reconcile((Role.EXPORTER, SPACE, "board"))


async def made(objects: RegistryObjects) -> Exporter:
    return await objects.create(Exporter(metadata=ObjectMeta(name="board", namespace=SPACE)))


async def secret(objects: RegistryObjects) -> Secret:
    return await objects.get(Secret, SPACE, "board-exporter")


async def test_an_exporter_gets_a_secret_that_is_its_own(objects: RegistryObjects) -> None:
    exporter, views = await made(objects), views_of(objects)
    views.exporters.observe(exporter)
    await reconcile(objects, views)
    owners = (await secret(objects)).metadata.owner_references
    assert [owner.uid for owner in owners] == [exporter.metadata.uid]


async def test_an_exporter_that_is_gone_gets_no_secret(objects: RegistryObjects) -> None:
    """It would be removed with its owner, made again, and so on until the view is right."""
    exporter, views = await made(objects), views_of(objects)
    views.exporters.observe(exporter)
    await objects.delete(exporter)
    await reconcile(objects, views)
    with pytest.raises(NotFound):
        await secret(objects)


async def test_an_exporter_whose_name_is_anothers_by_now_does_not_take_its_secret(
    objects: RegistryObjects,
) -> None:
    first = await made(objects)
    await objects.delete(first)
    second, views = await made(objects), views_of(objects)
    views.exporters.observe(second)
    await reconcile(objects, views)
    valid, behind = await secret(objects), views_of(objects)
    behind.exporters.observe(first)
    behind.secrets.observe(valid)
    await reconcile(objects, behind)
    assert await secret(objects) == valid
