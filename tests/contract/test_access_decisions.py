"""Roles and bindings as objects: what they allow, as soon as they are written or deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bullpen.api.kinds.rbac import (
    GROUP,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
)
from bullpen.api.meta import ObjectMeta
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings
from bullpen.app.sources import Sources
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User
from support.objects_homes import Home, registry_home

ALICE = User(name="alice", groups=("team",))
BOT = User(name="system:serviceaccount:lab:bot")
READ = PolicyRule(verbs=("get",), api_groups=("",), resources=("configmaps",))
SECONDS_MAX = 10.0


def asked(namespace: str = "", verb: str = "get") -> Attributes:
    return Attributes(verb=verb, resource="configmaps", namespace=namespace)


class Access:
    """Decisions, and how often somebody was told that one may be another now."""

    def __init__(self, index: AccessIndex) -> None:
        self.index = index
        self.told = 0
        self._news = asyncio.Event()
        index.listen(self._tell)

    def _tell(self) -> None:
        self.told += 1
        self._news.set()

    def allows(self, user: User, namespace: str = "", verb: str = "get") -> bool:
        return self.index.decide(user, asked(namespace, verb)).allowed

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not holds():
                self._news.clear()
                await self._news.wait()


def role_binding(kind: str, name: str, *subjects: Subject) -> RoleBinding:
    return RoleBinding(
        metadata=ObjectMeta(name="b", namespace="lab"),
        subjects=subjects,
        role_ref=RoleRef(api_group=GROUP, kind=kind, name=name),
    )


def person(name: str, kind: str = "User") -> Subject:
    return Subject(kind=kind, api_group=GROUP, name=name)


async def with_access(home: Home, story: Callable[[Access], Awaitable[None]]) -> None:
    lab = Lab(home.objects, LabSettings(endpoint="", ca_pem=""), Sources.real())
    access = Access(lab.access_index)
    async with lab.running((controllers.faults,)):
        await story(access)


async def test_a_role_of_a_namespace_allows_what_it_says_there_and_nowhere_else() -> None:
    async with registry_home() as (home, _):

        async def story(access: Access) -> None:
            role = Role(metadata=ObjectMeta(name="r", namespace="lab"), policy_rules=(READ,))
            bot = Subject(kind="ServiceAccount", name="bot", namespace="lab")
            written = await home.objects.create(role)
            binding = role_binding("Role", "r", person("alice"), bot)
            bound = await home.objects.create(binding)
            await access.until(lambda: access.allows(ALICE, "lab"))
            assert access.allows(BOT, "lab")
            assert not access.allows(ALICE, "default")
            assert not access.allows(ALICE), "in all namespaces at once"
            assert not access.allows(ALICE, "lab", "delete")
            assert access.index.rules_of(ALICE, "lab") == (READ,)
            assert access.index.rules_of(ALICE, "") == ()
            told = access.told
            await home.objects.delete(bound)
            await access.until(lambda: not access.allows(ALICE, "lab"))
            assert access.told > told, "open watches are looked at again"
            await home.objects.create(binding)
            await access.until(lambda: access.allows(ALICE, "lab"))
            await home.objects.delete(written)
            await access.until(lambda: not access.allows(ALICE, "lab"))

        await with_access(home, story)


async def test_a_cluster_role_allows_in_all_namespaces_or_in_that_of_its_binding() -> None:
    async with registry_home() as (home, _):

        async def story(access: Access) -> None:
            meta = ObjectMeta(name="reads")
            await home.objects.create(ClusterRole(metadata=meta, policy_rules=(READ,)))
            await home.objects.create(role_binding("ClusterRole", "reads", person("bob")))
            bob = User(name="bob")
            await access.until(lambda: access.allows(bob, "lab"))
            assert not access.allows(bob, "default")
            everywhere = ClusterRoleBinding(
                metadata=ObjectMeta(name="all"),
                subjects=(person("team", "Group"),),
                role_ref=RoleRef(api_group=GROUP, kind="ClusterRole", name="reads"),
            )
            await home.objects.create(everywhere)
            await access.until(lambda: access.allows(ALICE))
            assert access.allows(ALICE, "lab")
            assert access.allows(ALICE, "default")
            assert not access.allows(bob)

        await with_access(home, story)
