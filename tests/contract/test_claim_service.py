"""The client's side of claims: created, followed, changed and released by their owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.meta import ObjectMeta
from bullpen.core.leases.quotas import Quotas, Rate
from bullpen.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    Rejected,
    TooManyRequests,
)
from bullpen.protocol import claims_pb2
from bullpen.protocol.claim_documents import spec_message
from bullpen.services.dialing import Precondition
from support.lab_world import SPACE, LabWorld

PARENT = f"namespaces/{SPACE}"


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


@contextlib.asynccontextmanager
async def boards(world: LabWorld, *names: str) -> AsyncIterator[None]:
    """Connected exporters, and the class ``any`` of all of them."""
    everything = {"labels": {"matchExpressions": [{"key": "no-such", "operator": "DoesNotExist"}]}}
    document = {"metadata": {"name": "any"}, "spec": {"selectors": [everything]}}
    await world.objects.create(codec.decode(DeviceClass, document))
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(world.player(name))
        await world.settle()
        yield


def spec(count: int = 2, **more: Any) -> Any:
    requests = [{"name": "boards", "exactly": {"deviceClassName": "any", "count": count}}]
    return spec_message({"duration": "1h", "requests": requests, **more})


async def create(world: LabWorld, name: str = "c", by: str = "alice", **fields: Any) -> Any:
    request = claims_pb2.CreateClaimRequest(parent=PARENT, claim_id=name, spec=spec(**fields))
    return await world.claims.CreateClaim(world.client(by), request)


async def get(world: LabWorld, name: str = "c", by: str = "bob") -> Any:
    request = claims_pb2.GetClaimRequest(name=f"{PARENT}/claims/{name}")
    return await world.claims.GetClaim(world.client(by), request)


async def update(world: LabWorld, by: str = "alice", *, client: str = "", **fields: Any) -> Any:
    request = claims_pb2.UpdateClaimRequest(name=f"{PARENT}/claims/c", **fields)
    if client:
        request.client = f"{PARENT}/clients/{client}"
    return await world.claims.UpdateClaim(world.client(by), request)


async def release(world: LabWorld, by: str = "alice", name: str = "c") -> Any:
    request = claims_pb2.ReleaseClaimRequest(name=f"{PARENT}/claims/{name}")
    return await world.claims.ReleaseClaim(world.client(by), request)


def devices(claim: Any) -> list[str]:
    return [member.device for member in claim.status.members]


def test_what_is_free_is_in_the_answer(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            made = await create(world)
            await world.until(lambda: world.exporter("e2").status.lease_ref is not None)
            assert made.name == f"{PARENT}/claims/c"
            assert made.client == f"{PARENT}/clients/alice"
            assert made.spec == spec(memberLoss="End"), "with its defaults"
            found = await get(world)
            assert devices(found) == ["e1", "e2"]
            assert all(m.lease.startswith(f"{PARENT}/leases/") for m in found.status.members)

    world.run(story)


def test_a_client_reads_the_config_that_was_copied_for_its_claim(world: LabWorld) -> None:
    config = {"firmware": "2.1", "limits": {"retries": 2**60}}

    async def story(world: LabWorld) -> None:
        async with boards(world, "e1"):
            any_ = await world.objects.get(DeviceClass, "", "any")
            await world.objects.update(replace(any_, spec=replace(any_.spec, config=config)))
            await create(world, count=1)
            await world.until(lambda: world.exporter("e1").status.lease_ref is not None)
            (found,) = (await get(world)).status.allocation.classes
            assert (found.name, found.generation, found.requests) == ("any", 2, ["boards"])
            assert json.loads(found.config) == config

    world.run(story)


def test_a_client_cannot_put_its_own_claim_ahead_of_everybody(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            with pytest.raises(Forbidden, match="a priority of at most 0"):
                await create(world, priority=1)
            await create(world, priority=-1)
            with pytest.raises(Forbidden, match="maxClaimPriority"):
                await update(world, priority=5)
            changed = await update(world, priority=0)
            assert changed.spec.priority == 0

    world.run(story)


def test_a_watch_tells_every_state_until_the_claim_ends(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            await create(world, "first")
            request = claims_pb2.WatchClaimRequest(name=f"{PARENT}/claims/c")
            await create(world)
            seen: list[tuple[str, bool]] = []

            async def watch() -> None:
                async for claim in world.claims.WatchClaim(world.client("bob"), request):
                    said = {c.type: c.status for c in claim.status.conditions}
                    seen.append((said.get("Allocated", ""), claim.status.ended))

            watching = asyncio.ensure_future(watch())
            await world.settle()
            assert seen[-1] == ("False", False), "it waits"
            await release(world, name="first")
            await world.until(lambda: ("True", False) in seen)
            await release(world)
            await asyncio.wait_for(watching, 60)
            assert seen[-1][1], "the last state is its end"

    world.run(story)


def test_a_watch_of_what_is_deleted_or_missing_says_so(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        request = claims_pb2.WatchClaimRequest(name=f"{PARENT}/claims/none")
        with pytest.raises(NotFound):
            await anext(world.claims.WatchClaim(world.client(), request))

    world.run(story)


def test_only_the_owner_changes_a_claim(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            await create(world)
            with pytest.raises(Forbidden, match="belongs to another client"):
                await release(world, "bob")
            with pytest.raises(Forbidden, match="belongs to another client"):
                await update(world, "bob", duration={"seconds": 60})

    world.run(story)


def test_extending_a_claim_extends_all_its_leases(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            await create(world)
            await world.until(lambda: world.exporter("e2").status.lease_ref is not None)
            await world.settle()
            await update(world, duration={"seconds": 7200})
            await world.until(
                lambda: (
                    {x.spec.duration for x in world.views.leases.all(SPACE)} == {timedelta(hours=2)}
                )
            )

    world.run(story)


def test_a_transferred_claim_takes_its_leases_along(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            await create(world)
            await world.until(lambda: world.exporter("e2").status.lease_ref is not None)
            await world.settle()
            with pytest.raises(NotFound, match="no client nobody"):
                await update(world, client="nobody")
            moved = await update(world, client="bob")
            assert moved.client == f"{PARENT}/clients/bob"
            await world.until(
                lambda: {x.spec.client_ref.name for x in world.views.leases.all(SPACE)} == {"bob"}
            )

    world.run(story)


def test_a_claim_that_waits_cannot_be_transferred(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1"):
            await create(world)
            with pytest.raises(Precondition, match="has its targets"):
                await update(world, client="bob")

    world.run(story)


def test_no_policy_is_passed_by_extending_or_transferring(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        found = await world.objects.get(Client, SPACE, "alice")
        meta = replace(found.metadata, labels={"team": "a"})
        await world.objects.update(replace(found, metadata=meta))
        policy = {
            "metadata": {"name": "p", "namespace": SPACE},
            "spec": {
                "exporterSelector": {},
                "policies": [
                    {
                        "from": [{"clientSelector": {"matchLabels": {"team": "a"}}}],
                        "maximumDuration": "1h",
                    }
                ],
            },
        }
        await world.objects.create(codec.decode(ExporterAccessPolicy, policy))
        async with boards(world, "e1", "e2"):
            await create(world)
            await world.until(lambda: world.exporter("e2").status.lease_ref is not None)
            await world.settle()
            with pytest.raises(Forbidden, match="no policy gives alice"):
                await update(world, duration={"seconds": 7200})
            with pytest.raises(Forbidden, match="no policy gives bob"):
                await update(world, client="bob")

    world.run(story)


def test_releasing_twice_changes_nothing_and_an_ended_claim_stays_as_it_is(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):
            await create(world)
            assert (await release(world)).status.ended
            assert (await release(world)).status.ended
            with pytest.raises(Precondition, match="has ended"):
                await update(world, duration={"seconds": 60})

    world.run(story)


def test_claims_are_listed_in_pages_and_ended_ones_on_request(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world):
            for name in ("a", "b", "c"):
                await create(world, name)
            await release(world, name="b")

            async def listed(**fields: Any) -> tuple[list[str], str]:
                request = claims_pb2.ListClaimsRequest(parent=PARENT, **fields)
                page = await world.claims.ListClaims(world.client(), request)
                return [c.name.rpartition("/")[2] for c in page.claims], page.next_page_token

            assert await listed() == (["a", "c"], "")
            first, token = await listed(show_ended=True, page_size=2)
            assert first == ["a", "b"]
            assert await listed(show_ended=True, page_token=token) == (["c"], "")

    world.run(story)


def test_a_dry_run_answers_and_creates_nothing(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with boards(world, "e1", "e2"):

            async def schedule(count: int) -> Any:
                request = claims_pb2.ScheduleRequest(parent=PARENT, spec=spec(count))
                return await world.claims.Schedule(world.client(), request)

            now = await schedule(2)
            assert (now.verdict, [m.device for m in now.members]) == ("Satisfied", ["e1", "e2"])
            await create(world, count=1)
            await world.until(lambda: world.exporter("e1").status.lease_ref is not None)
            later = await schedule(2)
            assert (later.verdict, later.possible) == ("Unsatisfiable", True)
            assert later.HasField("starts"), "the lease in the way has an end"
            assert not (await schedule(3)).possible
            listed = await world.claims.ListClaims(
                world.client(), claims_pb2.ListClaimsRequest(parent=PARENT)
            )
            assert len(listed.claims) == 1

    world.run(story)


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        ({"parent": "namespaces/other"}, Forbidden, "does not belong"),
        ({"parent": "nonsense"}, BadRequest, "namespaces/NAMESPACE"),
        ({"claim_id": "Not A Name"}, BadRequest, "claim id"),
        ({"spec": claims_pb2.ClaimSpec()}, Rejected, "requests|duration"),
        ({"spec": spec(count=65)}, Invalid, "64"),
        ({"spec": spec(memberLoss="Explode")}, Invalid, "memberLoss"),
    ],
    ids=["namespace", "parent", "name", "empty", "too many", "no such choice"],
)
def test_wrong_requests_are_refused_with_the_reason(
    world: LabWorld, request_: dict[str, Any], error: type[Exception], text: str
) -> None:
    async def story(world: LabWorld) -> None:
        fields: dict[str, Any] = {"parent": PARENT, "claim_id": "c", "spec": spec(), **request_}
        with pytest.raises(error, match=text):
            await world.claims.CreateClaim(world.client(), claims_pb2.CreateClaimRequest(**fields))

    world.run(story)


def test_a_name_is_used_once(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        await create(world)
        with pytest.raises(AlreadyExists):
            await create(world)

    world.run(story)


def test_claims_count_against_the_quotas_of_leases(world: LabWorld) -> None:
    world.quotas = Quotas(waiting_max=2)

    async def story(world: LabWorld) -> None:
        await create(world, "a")
        await create(world, "b")
        with pytest.raises(TooManyRequests, match="the limit is 2"):
            await create(world, "c")
        await release(world, name="a")
        await create(world, "c")

    world.run(story)


def test_dry_runs_have_a_rate(world: LabWorld) -> None:
    world.quotas = Quotas(rate=Rate(burst=2, per_second=0.01))

    async def story(world: LabWorld) -> None:
        request = claims_pb2.ScheduleRequest(parent=PARENT, spec=spec())
        for _ in range(2):
            await world.claims.Schedule(world.client(), request)
        with pytest.raises(TooManyRequests):
            await world.claims.Schedule(world.client(), request)

    world.run(story)


def test_the_names_of_others_stay_unknown(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        stranger = Client(metadata=ObjectMeta(name="eve", namespace="elsewhere"))
        await create(world)
        with pytest.raises(Forbidden):
            await world.claims.GetClaim(
                stranger, claims_pb2.GetClaimRequest(name=f"{PARENT}/claims/c")
            )

    world.run(story)
