"""Replicas that start together end up with the same keys."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bullpen.api.kinds.core import Secret
from bullpen.datadir import certificates
from bullpen.datadir.keys import AUTHORITY, SIGNING_KEYS, STREAM_KEY, SharedKeys
from bullpen.errors import Refused
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def objects() -> AsyncIterator[RegistryObjects]:
    store = MemoryStore()
    registry = Registry(store, clock=SystemClock(), ids=RandomIds(random.Random(3)))
    await registry.ensure_namespaces(("default",))
    yield RegistryObjects(registry, manager="test")
    await store.close()


async def test_all_replicas_have_the_keys_of_who_was_first(objects: RegistryObjects) -> None:
    replicas = [SharedKeys(objects, "default") for _ in range(5)]
    streams = await asyncio.gather(*(found.stream_key() for found in replicas))
    signing = await asyncio.gather(*(found.signing_keys() for found in replicas))
    authorities = await asyncio.gather(*(found.authority(now=NOW) for found in replicas))
    assert len(set(streams)) == 1
    assert len({keys[0].thumbprint() for keys in signing}) == 1
    assert len({found.certificate for found in authorities}) == 1


async def test_a_later_start_finds_the_same(objects: RegistryObjects) -> None:
    first = await SharedKeys(objects, "default").stream_key()
    assert await SharedKeys(objects, "default").stream_key() == first


async def test_the_authority_signs_for_the_names_of_its_servers(objects: RegistryObjects) -> None:
    authority = await SharedKeys(objects, "default").authority(now=NOW)
    hosts = ("lab.example.com", "10.0.0.7")
    made = certificates.issue(authority, hosts, now=NOW)
    assert certificates.serves(made.certificate, authority.certificate, hosts, now=NOW)
    assert not certificates.serves(made.certificate, authority.certificate, ("other",), now=NOW)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(SIGNING_KEYS, "keys.json", id="signing keys"),
        pytest.param(STREAM_KEY, "stream.key", id="the stream key"),
        pytest.param(AUTHORITY, "ca.key", id="the authority"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"x"], ids=["that are empty", "that make no sense"])
async def test_what_is_damaged_is_left_alone_and_named(
    objects: RegistryObjects, name: str, key: str, content: bytes
) -> None:
    shared = SharedKeys(objects, "default")
    await asyncio.gather(shared.signing_keys(), shared.stream_key(), shared.authority(now=NOW))
    found = await objects.get(Secret, "default", name)
    spoilt = {**found.data, key: base64.b64encode(content).decode()}
    await objects.update(replace(found, data=spoilt))
    calls = {
        SIGNING_KEYS: shared.signing_keys(),
        STREAM_KEY: shared.stream_key(),
        AUTHORITY: issued(shared),
    }
    chosen = calls.pop(name)
    for call in calls.values():
        call.close()
    with pytest.raises((Refused, ValueError)):
        await chosen
    assert (await objects.get(Secret, "default", name)).data == spoilt


async def issued(shared: SharedKeys) -> object:
    return certificates.issue(await shared.authority(now=NOW), ("x",), now=NOW)
