"""Where the CA certificate is put, and where it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, Namespace
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings
from bullpen.app.sources import Sources
from bullpen.controllers.authority import KEY, NAME
from bullpen.errors import NotFound
from support.objects_homes import registry_home

SECONDS_MAX = 10.0


@contextlib.asynccontextmanager
async def running(objects: Objects, home: str | None) -> AsyncIterator[None]:
    settings = LabSettings(endpoint="", ca_pem="PEM", authority_home=home)
    lab = Lab(objects, settings, Sources.real())
    async with lab.running((controllers.authority_certificates,)):
        yield


async def there(objects: Objects, namespace: str) -> bool:
    """Wait until the ConfigMap of a namespace says what it should."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with contextlib.suppress(NotFound):
                if (await objects.get(ConfigMap, namespace, NAME)).data == {KEY: "PEM"}:
                    return True
            await asyncio.sleep(0.01)


async def test_where_all_namespaces_are_ours_each_has_it() -> None:
    async with registry_home() as (home, _), running(home.objects, None):
        await home.objects.create(Namespace(metadata=ObjectMeta(name="new")))
        for name in ("default", "lab", "new"):
            assert await there(home.objects, name)


async def test_in_a_cluster_only_our_own_and_those_with_a_lab_have_it() -> None:
    async with registry_home() as (home, _), running(home.objects, "default"):
        assert await there(home.objects, "default")
        with pytest.raises(NotFound):
            await home.objects.get(ConfigMap, "lab", NAME)
        await home.objects.create(Namespace(metadata=ObjectMeta(name="empty")))
        await home.objects.create(Client(metadata=ObjectMeta(name="me", namespace="lab")))
        assert await there(home.objects, "lab")
        # Namespaces have their turn in the order in which they came.
        with pytest.raises(NotFound):
            await home.objects.get(ConfigMap, "empty", NAME)


async def test_what_somebody_changes_is_put_right() -> None:
    async with registry_home() as (home, _), running(home.objects, "lab"):
        await there(home.objects, "lab")
        found = await home.objects.get(ConfigMap, "lab", NAME)
        await home.objects.update(replace(found, data={KEY: "theirs"}))
        assert await there(home.objects, "lab")
