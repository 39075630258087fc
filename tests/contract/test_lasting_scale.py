"""Pools of many lasting targets: a change costs what changed, and no removal is lost or doubled.

Counted, because a count does not depend on the machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from test_lasting_pools import edit, make, names, pool, ready, targets

from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.service import ApiService
from bullpen.core.pools.lasting_members import LastingMembers
from bullpen.core.pools.lasting_pool import LastingMember
from support.api_client import Api, Recorder
from support.pool_world import World

PATH = (
    "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
    "/virtualtargetpools/p/scaledownwith"
)
MEMBERS = 1_000
CALLERS = 8
READY_SECONDS_MAX = 30.0
"""Each machine boots in two to four seconds; creation goes in growing batches."""


def api_server(world: World) -> Api:
    service = ApiService(
        world.registry, resources=RESOURCES, clock=world.clock, authenticators=(), version="v1"
    )
    return Api(service, recorder=Recorder(), clock=world.clock)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_members_become_ready_and_leave_by_name_from_eight_callers() -> None:
    async def story(world: World) -> None:
        await make(world, 0)
        await edit(world, replicas=MEMBERS)
        await world.until(lambda: ready(world) == MEMBERS, seconds=READY_SECONDS_MAX)
        server, left = api_server(world), [f"p-{number}" for number in range(MEMBERS)]
        leaving, created = Counter[str](), list[str]()

        def born(old: VirtualTarget | None, new: VirtualTarget | None) -> None:
            if old is None and new is not None:
                created.append(new.metadata.name)

        world.views[VirtualTarget].listen(born)

        async def caller(number: int) -> None:
            for name in left[number % 4 :: 4]:  # each name is asked for by two callers
                answer = await server.call("POST", PATH, {"targets": [name]})
                assert answer.status == 201, answer.body
                leaving.update(answer.document["status"]["leaving"])

        async with asyncio.TaskGroup() as tasks:
            for number in range(CALLERS):
                tasks.create_task(caller(number))
        assert leaving == Counter(left), "each member left because of exactly one request"
        assert pool(world).spec.replicas == 0
        await world.until(lambda: not names(world), seconds=300)
        await world.until(lambda: not pool(world).spec.removals, seconds=300)
        assert not created

    World().run(story)


def test_a_lease_in_a_large_pool_costs_one_look_at_one_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    real = LastingMembers._is_usual

    def counted(self: LastingMembers, member: LastingMember, expected: object) -> bool:
        looks.append(member.name)
        return real(self, member, expected)  # type: ignore[arg-type]

    costs = {}
    for size in (10, 200):

        async def story(world: World, size: int = size) -> None:
            await make(world, size)
            await world.sleep(60)
            looks.clear()
            await world.ask("job")
            await world.until(lambda: pool(world).status.leased_replicas == 1)
            await world.release("job")
            await world.until(lambda: pool(world).status.leased_replicas == 0)
            await world.sleep(60)
            costs[size] = len(looks)
            assert len(set(looks)) == 1
            assert all(found.status.lease == "" for found in targets(world).values())

        with monkeypatch.context() as patch:
            patch.setattr(LastingMembers, "_is_usual", counted)
            World().run(story)
    assert costs[200] == costs[10]
