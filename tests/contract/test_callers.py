"""Who is calling: which tokens open which objects, and what a refusal gives away."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.client import Client, ClientSpec
from bullpen.api.meta import ObjectMeta
from bullpen.controllers.exporters.credentials import CredentialReconciler, token_of
from bullpen.controllers.views import Views
from bullpen.errors import Forbidden, LabError, NotFound, Unauthorized
from bullpen.identity.oidc import OutsideUser
from bullpen.identity.subjects import Role, secret_name
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.events import Events
from bullpen.services.callers import Callers, Claim
from bullpen.sim.keys import CheapSigner
from bullpen.store.journaled import MemoryStore

SPACE, OTHER = "default", "other"
OUTSIDE = "outside:"
"""What a token of the played issuer starts with; the user's name follows."""


class PlayedIssuer:
    """Outside tokens that say whom they name, and where its users may appear."""

    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces

    def knows(self, token: str) -> bool:
        return token.startswith(OUTSIDE)

    async def identity(self, token: str) -> OutsideUser:
        return OutsideUser(f"oidc:{token.removeprefix(OUTSIDE)}", self._namespaces)

    async def username(self, token: str) -> str:
        return (await self.identity(token)).username


class World:
    """Clients with their tokens. The views see what they are shown and no watch tells them more."""

    def __init__(self, objects: RegistryObjects) -> None:
        self.objects = objects
        self.views = Views(objects, retry=lambda failures: timedelta(0))
        clock, ids = VirtualClock(), RandomIds(random.Random(8))
        self.signer = CheapSigner()
        self.credentials = CredentialReconciler(
            objects,
            self.views,
            signer=self.signer,
            endpoint="lab:8082",
            clock=clock,
            ids=ids,
            events=Events(objects, clock=clock, ids=ids, component="bullpen"),
        )
        outside: Any = PlayedIssuer(frozenset({SPACE}))
        self.callers = Callers(
            objects,
            self.views,
            signer=self.signer,
            outside=outside,
            provisioning=True,
            clock=clock,
        )

    async def client(self, name: str, namespace: str = SPACE, *, username: str = "") -> str:
        """Make a client; returns its token."""
        made = Client(
            metadata=ObjectMeta(name=name, namespace=namespace), spec=ClientSpec(username=username)
        )
        self.views.clients.observe(await self.objects.create(made))
        await self.credentials.reconcile((Role.CLIENT, namespace, name))
        return self.token(name, namespace)

    def token(self, name: str, namespace: str = SPACE) -> str:
        return token_of(self.views.secrets.get(namespace, secret_name(Role.CLIENT, name)))

    async def call(self, token: str, name: str, namespace: str = SPACE) -> Client:
        claim = Claim(token=token, role=Role.CLIENT, namespace=namespace, name=name)
        return await self.callers.client(claim)

    async def refusal(self, token: str, name: str, namespace: str = SPACE) -> LabError:
        with pytest.raises(LabError) as refused:
            await self.call(token, name, namespace)
        return refused.value


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = MemoryStore()
    registry = Registry(store, clock=VirtualClock(), ids=RandomIds(random.Random(7)))
    await registry.ensure_namespaces((SPACE, OTHER))
    yield World(RegistryObjects(registry, manager="bullpen"))
    await store.close()


async def test_a_token_opens_its_own_client(world: World) -> None:
    token = await world.client("alice")
    assert (await world.call(token, "alice")).metadata.name == "alice"


async def test_a_refusal_does_not_tell_whether_the_client_of_another_exists(world: World) -> None:
    """Neither by its words nor by its kind, for our own tokens and for those of an issuer."""
    await world.client("bob", OTHER)
    for token in (await world.client("alice"), f"{OUTSIDE}mallory"):
        there = await world.refusal(token, "bob", OTHER)
        gone = await world.refusal(token, "eve", OTHER)
        assert type(there) is type(gone) is Forbidden
        assert there.message.replace("bob", "NAME") == gone.message.replace("eve", "NAME")


async def test_whoever_holds_the_token_of_a_removed_client_learns_that_it_is_gone(
    world: World,
) -> None:
    token = world.signer.issue(
        replace(world.signer.verify(await world.client("x"), now=EPOCH).subject, name="gone"),
        token_id="1",
        now=EPOCH,
    )
    refused = await world.refusal(token, "gone")
    assert isinstance(refused, NotFound)
    assert "there is no client gone in namespace default" in refused.message


async def test_the_token_of_an_earlier_client_of_the_name_opens_nothing(world: World) -> None:
    """Although its Secret was kept and put back: the uid in the token is of the earlier one."""
    old = await world.client("alice")
    found = world.views.clients.get(SPACE, "alice")
    assert found is not None
    again = replace(found, metadata=replace(found.metadata, uid="another", resource_version="99"))
    world.views.clients.observe(again)
    refused = await world.refusal(old, "alice")
    assert isinstance(refused, Forbidden)
    assert "the token is not for client alice" in refused.message


async def test_a_rotated_token_is_refused_at_once_and_not_when_the_watch_tells(
    world: World,
) -> None:
    old = await world.client("alice")
    fresh = await world.credentials.rotate(Role.CLIENT, await world.call(old, "alice"))
    refused = await world.refusal(old, "alice")
    assert isinstance(refused, Unauthorized)
    assert "revoked" in refused.message
    assert (await world.call(fresh, "alice")).metadata.name == "alice"


async def test_an_outside_user_gets_a_client_only_in_a_namespace_of_its_issuer(
    world: World,
) -> None:
    made = await world.call(f"{OUTSIDE}mallory", "mallory")
    assert made.spec.username == "oidc:mallory"
    await world.refusal(f"{OUTSIDE}mallory", "mallory", OTHER)
    with pytest.raises(NotFound):
        await world.objects.get(Client, OTHER, "mallory")


async def test_a_client_that_names_an_outside_user_is_open_to_it_in_any_namespace(
    world: World,
) -> None:
    await world.client("boards", OTHER, username="oidc:mallory")
    found = await world.call(f"{OUTSIDE}mallory", "boards", OTHER)
    assert found.metadata.namespace == OTHER
