"""The client's side of leases: answers that wait just long enough, and edits that are allowed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.accesspolicy import (
    ExporterAccessPolicy,
    ExporterAccessPolicySpec,
    From,
    Policy,
)
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.leases.quotas import Quotas, Rate
from bullpen.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    NotFound,
    Rejected,
    TooManyRequests,
)
from bullpen.kit.selectors import EVERYTHING, parse_labels
from bullpen.services.dialing import Precondition
from bullpen.services.lease_requests import Edit, LeaseRequest
from bullpen.services.leases import FIRST_HOLD_SECONDS_MAX, HOLD_SECONDS_MAX
from support.lab_world import SPACE, LabWorld

HOUR = timedelta(hours=1)


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def asked(**fields: object) -> LeaseRequest:
    return LeaseRequest(**{"selector": "board=x", "duration": HOUR, "tags": {}, **fields})  # type: ignore[arg-type]


async def create(world: LabWorld, by: str = "alice", /, **fields: object) -> Lease:
    return await world.leases.create(world.client(by), asked(**fields))


def seconds_since(world: LabWorld, start: object) -> float:
    return float((world.clock.now() - start).total_seconds())  # type: ignore[operator]


async def limit(world: LabWorld, client: str, maximum: timedelta | None) -> None:
    """From now on only ``client`` may lease, and for so long."""
    found = await world.objects.get(Client, SPACE, client)
    meta = replace(found.metadata, labels={"name": client})
    await world.objects.update(replace(found, metadata=meta))
    entry = Policy(
        from_=(From(client_selector=LabelSelector(match_labels={"name": client})),),
        maximum_duration=maximum,
    )
    spec = ExporterAccessPolicySpec(exporter_selector=LabelSelector(), policies=(entry,))
    policy = ExporterAccessPolicy(metadata=ObjectMeta(name=client, namespace=SPACE), spec=spec)
    await world.objects.create(policy)
    await world.settle()


def test_a_free_exporter_is_already_in_the_answer(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            before = world.clock.now()
            lease = await create(world)
            assert lease.status.exporter_ref is not None
            assert lease.status.conditions[-1].type == "Ready"
            assert seconds_since(world, before) < 0.5

    world.run(story)


def test_the_first_look_at_a_waiting_lease_is_answered_soon_and_later_ones_are_held(
    world: LabWorld,
) -> None:
    """So that people learn what they wait for, and nobody waits for a poll."""

    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="first")
            await create(world, "bob", lease_id="second")
            for held in (FIRST_HOLD_SECONDS_MAX, HOLD_SECONDS_MAX):
                before = world.clock.now()
                lease = await world.leases.get(SPACE, "second")
                assert lease.status.exporter_ref is None
                assert held <= seconds_since(world, before) < held + 1
                # Another look right away, as of a client that gives up, is answered at once.
                before = world.clock.now()
                await world.leases.get(SPACE, "second")
                assert seconds_since(world, before) == 0
                await asyncio.sleep(5)
            looking = asyncio.ensure_future(world.leases.get(SPACE, "second"))
            await asyncio.sleep(10)
            before = world.clock.now()
            await world.leases.release(world.client(), "first")
            assert (await looking).status.exporter_ref is not None
            assert seconds_since(world, before) < 0.5

    world.run(story)


def test_a_look_ends_when_the_lease_does(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="first")
            await create(world, "bob", lease_id="second")
            looking = asyncio.ensure_future(world.leases.get(SPACE, "second"))
            await asyncio.sleep(1)
            await world.leases.release(world.client("bob"), "second")
            assert (await looking).status.ended
            assert not world.leases._asked, "nothing is kept of leases that are over"

    world.run(story)


def test_a_booked_lease_is_answered_at_once_and_has_nothing_to_say(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            begin = world.clock.now() + HOUR
            before = world.clock.now()
            lease = await create(world, begin=begin, lease_id="booked")
            await world.leases.get(SPACE, "booked")
            assert seconds_since(world, before) == 0
            assert lease.status.conditions == ()
            await asyncio.sleep(HOUR.total_seconds())
            assert await world.assigned("booked") == "e1"

    world.run(story)


def test_an_old_begin_time_is_no_way_to_the_front_of_the_queue(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="holder")
            await create(world, lease_id="honest")
            await asyncio.sleep(2)
            past = world.clock.now() - 30 * HOUR
            await create(world, "bob", begin=past, duration=60 * HOUR, lease_id="sly")
            await world.leases.release(world.client(), "holder")
            assert await world.assigned("honest") == "e1"

    world.run(story)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        pytest.param({"selector": ""}, BadRequest, "selector or an exporter name", id="nothing"),
        pytest.param({"lease_id": "A B"}, BadRequest, "lease id", id="a bad name"),
        pytest.param({"lease_id": "taken"}, AlreadyExists, "taken", id="a name twice"),
        pytest.param({"tags": {"a/b": "c"}}, BadRequest, "must not contain", id="a bad tag"),
        pytest.param({"duration": None}, BadRequest, "above zero", id="no duration"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_and_leaves_nothing(
    world: LabWorld, fields: dict[str, object], error: type[Exception], text: str
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="taken")
            with pytest.raises(error, match=text):
                await create(world, **fields)
            assert [lease.metadata.name for lease in world.views.leases.all()] == ["taken"]

    world.run(story)


def test_the_end_can_be_moved_by_its_owner_only(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="l")
            longer = Edit(duration=2 * HOUR)
            changed = await world.leases.update(world.client(), "l", longer)
            assert changed.spec.duration == 2 * HOUR
            with pytest.raises(Forbidden, match="permission denied"):
                await world.leases.update(world.client("bob"), "l", longer)
            with pytest.raises(NotFound):
                await world.leases.update(world.client(), "none", longer)
            with pytest.raises(Precondition, match="begin time"):
                await world.leases.update(world.client(), "l", Edit(begin=world.clock.now()))
            with pytest.raises(BadRequest, match="above zero"):
                await world.leases.update(world.client(), "l", Edit(duration=timedelta(0)))
            await asyncio.sleep(1.5 * HOUR.total_seconds())
            assert not world.lease("l").status.ended
            await asyncio.sleep(HOUR.total_seconds())
            assert await world.ended("l") == "Expired"
            with pytest.raises(Precondition, match="has ended"):
                await world.leases.update(world.client(), "l", longer)

    world.run(story)


def test_a_policy_limits_extensions_and_no_shortening(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="l")
            await limit(world, "alice", HOUR)
            with pytest.raises(Forbidden, match="the policies allow alice at most 1h0m0s"):
                await world.leases.update(world.client(), "l", Edit(duration=2 * HOUR))
            changed = await world.leases.update(world.client(), "l", Edit(duration=HOUR / 2))
            assert changed.spec.duration == HOUR / 2
            await limit(world, "bob", None)
            policy = await world.objects.get(ExporterAccessPolicy, SPACE, "alice")
            await world.objects.delete(policy)
            await world.settle()
            with pytest.raises(Forbidden, match="no policy gives alice access to exporter e1"):
                await world.leases.update(world.client(), "l", Edit(duration=HOUR))
            await world.leases.update(world.client(), "l", Edit(duration=HOUR / 4))

    world.run(story)


def test_no_end_time_of_an_active_lease_passes_the_maximum_duration_of_a_policy(
    world: LabWorld,
) -> None:
    """Whichever of end and duration are sent, and to whomever the lease goes with them."""

    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "alice", HOUR)
            await create(world, lease_id="l", duration=HOUR / 2)
            begun = world.lease("l").status.begin_time
            assert begun is not None
            far = begun + timedelta(days=300)
            for edit in (
                Edit(end=far, duration=HOUR / 2),
                Edit(end=far),
                Edit(duration=2 * HOUR),
                Edit(end=begun + 2 * HOUR, duration=2 * HOUR),
            ):
                with pytest.raises(Rejected):
                    await world.leases.update(world.client(), "l", edit)
            assert world.lease("l").spec.end_time is None
            await world.leases.update(world.client(), "l", Edit(end=begun + HOUR))
            assert world.lease("l").spec.end_time == begun + HOUR
            assert world.lease("l").spec.begin_time is None

            await limit(world, "bob", HOUR / 2)
            for edit in (Edit(client="bob"), Edit(client="bob", duration=HOUR)):
                with pytest.raises(Forbidden, match="the policies allow bob at most 30m0s"):
                    await world.leases.update(world.client(), "l", edit)
            await world.leases.update(world.client(), "l", Edit(client="bob", duration=HOUR / 4))

    world.run(story)


def test_a_waiting_lease_that_asks_for_too_much_is_refused_and_goes_on_waiting(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "alice", HOUR)
            await create(world, lease_id="first", duration=HOUR)
            await create(world, lease_id="second", duration=HOUR)
            later = world.clock.now() + timedelta(days=3)
            for edit in (Edit(duration=2 * HOUR), Edit(begin=later, end=later + 2 * HOUR)):
                with pytest.raises(Forbidden, match="the policies allow alice at most 1h0m0s"):
                    await world.leases.update(world.client(), "second", edit)
            await world.settle()
            assert not world.lease("second").status.ended
            await world.leases.release(world.client(), "first")
            assert await world.assigned("second") == "e1"

    world.run(story)


def test_a_lease_extended_as_an_object_still_ends_at_the_maximum_and_says_so(
    world: LabWorld,
) -> None:
    """``kubectl edit`` passes no check of policies; the lease is held to them all the same."""

    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "alice", HOUR)
            await create(world, lease_id="l", duration=HOUR / 2)
            far = world.clock.now() + timedelta(days=300)
            await world.edit_lease("l", end_time=far)
            await world.settle()
            conditions = {c.type: c for c in world.lease("l").status.conditions}
            assert conditions["Limited"].reason == "MaximumDuration"
            assert "at most 1h0m0s" in conditions["Limited"].message
            assert world.lease("l").status.conditions[-1].type == "Ready"
            await asyncio.sleep(0.9 * HOUR.total_seconds())
            assert not world.lease("l").status.ended
            await asyncio.sleep(0.2 * HOUR.total_seconds())
            assert world.lease("l").status.ended

    world.run(story)


def test_a_policy_that_is_raised_lets_a_running_lease_be_extended(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "alice", HOUR)
            await create(world, lease_id="l", duration=HOUR)
            policy = await world.objects.get(ExporterAccessPolicy, SPACE, "alice")
            entry = replace(policy.spec.policies[0], maximum_duration=3 * HOUR)
            await world.objects.update(
                replace(policy, spec=replace(policy.spec, policies=(entry,)))
            )
            await world.settle()
            await world.leases.update(world.client(), "l", Edit(duration=2 * HOUR))
            await asyncio.sleep(1.5 * HOUR.total_seconds())
            assert not world.lease("l").status.ended
            await asyncio.sleep(HOUR.total_seconds())
            assert world.lease("l").status.ended

    world.run(story)


def test_a_lease_is_handed_over_when_the_answer_comes(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="l")
            before = world.lease("l").status
            given = await world.leases.update(world.client(), "l", Edit(client="bob"))
            assert given.status.client_ref == given.spec.client_ref
            assert given.spec.client_ref.name == "bob"
            assert given.status.epoch == before.epoch + 1 == world.exporter().status.lease_epoch
            assert given.spec.duration == HOUR
            with pytest.raises(Forbidden):
                await world.leases.release(world.client(), "l")
            await world.leases.release(world.client("bob"), "l")

    world.run(story)


def test_a_lease_without_end_can_be_handed_over_too(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("endless", duration=None)
            await world.assigned("endless")
            given = await world.leases.update(world.client(), "endless", Edit(client="bob"))
            assert given.spec.duration is None

    world.run(story)


def test_nobody_is_handed_what_they_could_not_have_leased(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="l")
            with pytest.raises(NotFound, match="there is no client eve"):
                await world.leases.update(world.client(), "l", Edit(client="eve"))
            await limit(world, "alice", None)
            with pytest.raises(Forbidden, match="no policy gives bob access to exporter e1"):
                await world.leases.update(world.client(), "l", Edit(client="bob"))
            waiting = await create(world, lease_id="w")
            assert waiting.status.exporter_ref is None
            with pytest.raises(Precondition, match="has an exporter"):
                await world.leases.update(world.client(), "w", Edit(client="alice"))

    world.run(story)


def test_giving_back_twice_is_refused_unless_the_caller_allows_it(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="l")
            await world.leases.release(world.client(), "l")
            assert world.lease("l").status.ended, "it is over when the answer comes"
            with pytest.raises(Precondition, match="already released"):
                await world.leases.release(world.client(), "l")
            await world.leases.release(world.client(), "l", idempotent=True)

    world.run(story)


def test_leases_are_found_by_labels_tags_and_whether_they_are_over(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="a", tags={"run": "1"})
            await create(world, lease_id="b", tags={"run": "2"})
            await world.leases.release(world.client(), "a")

            async def found(labels: str = "", tags: str = "", *, active: bool = False) -> list[str]:
                listed = await world.leases.list(
                    SPACE,
                    labels=parse_labels(labels) if labels else EVERYTHING,
                    tags=parse_labels(tags) if tags else EVERYTHING,
                    active=active,
                )
                return [lease.metadata.name for lease in listed]

            assert await found() == ["a", "b"]
            assert await found(active=True) == ["b"]
            assert await found("board=x", "run=1") == ["a"]
            assert await found("metadata.jumpstarter.dev/run=2") == ["b"]
            assert await found("board=y") == []

    world.run(story)


def test_a_client_at_its_limit_of_waiting_leases_is_refused_and_others_are_not(
    world: LabWorld,
) -> None:
    world.quotas = Quotas(waiting_max=3)

    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, lease_id="active")
            at_once = (create(world, lease_id=f"w{n}") for n in range(10))
            found = await asyncio.gather(*at_once, return_exceptions=True)
            refused = [error for error in found if isinstance(error, TooManyRequests)]
            assert len(refused) == 7, "also when all come at once"
            assert "alice has 3 waiting leases, the limit is 3" in refused[0].message
            assert "leases.maxWaitingPerClient" in refused[0].message
            await create(world, "bob")
            waiting = sorted(lease.metadata.name for lease in found if isinstance(lease, Lease))
            await world.leases.release(world.client(), waiting[0])
            await create(world, lease_id="another")

    world.run(story)


def test_a_client_at_its_limit_of_active_leases_gets_no_other_and_is_handed_none(
    world: LabWorld,
) -> None:
    world.quotas = Quotas(active_max=1)

    async def story(world: LabWorld) -> None:
        async with world.player("e1"), world.player("e2"):
            await create(world, lease_id="mine")
            await create(world, "bob", lease_id="his")
            with pytest.raises(TooManyRequests, match="alice has 1 active leases, the limit is 1"):
                await create(world)
            with pytest.raises(TooManyRequests, match="bob has 1 active"):
                await world.leases.update(world.client(), "mine", Edit(client="bob"))
            await world.leases.release(world.client("bob"), "his")
            await world.leases.update(world.client(), "mine", Edit(client="bob"))

    world.run(story)


def test_a_policy_states_how_many_leases_its_clients_may_have(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player("e1"), world.player("e2"):
            await limit(world, "alice", None)
            policy = await world.objects.get(ExporterAccessPolicy, SPACE, "alice")
            entry = replace(policy.spec.policies[0], maximum_active_leases=1)
            await world.objects.update(
                replace(policy, spec=replace(policy.spec, policies=(entry,)))
            )
            await world.settle()
            await create(world)
            with pytest.raises(TooManyRequests, match="maximumActiveLeases"):
                await create(world)

    world.run(story)


def test_a_full_namespace_takes_no_more_and_leases_made_as_objects_count(world: LabWorld) -> None:
    world.quotas = Quotas(namespace_max=3)

    async def story(world: LabWorld) -> None:
        async with world.player():
            for number in range(4):
                await world.make_lease(f"by-hand-{number}", client="bob")
            await world.settle()
            with pytest.raises(TooManyRequests, match="has 4 open leases, the limit is 3"):
                await create(world)

    world.run(story)


def test_a_client_that_asks_too_quickly_is_refused_until_it_has_waited(world: LabWorld) -> None:
    world.quotas = Quotas(rate=Rate(burst=5, per_second=1.0))

    async def story(world: LabWorld) -> None:
        async with world.player():
            for number in range(5):
                await create(world, lease_id=f"l{number}", begin=world.clock.now() + HOUR)
            with pytest.raises(TooManyRequests, match=r"leases\.createRate"):
                await create(world)
            await create(world, "bob")
            await asyncio.sleep(1.1)
            await create(world, lease_id="later", begin=world.clock.now() + HOUR)

    world.run(story)


def test_no_lease_is_made_or_extended_beyond_the_longest_of_the_service(world: LabWorld) -> None:
    world.quotas = Quotas(duration_max=2 * HOUR)

    async def story(world: LabWorld) -> None:
        async with world.player():
            with pytest.raises(Forbidden, match="at most 2h0m0s here"):
                await create(world, duration=3 * HOUR)
            await create(world, lease_id="l")
            begun = world.lease("l").status.begin_time
            assert begun is not None
            for edit in (Edit(duration=3 * HOUR), Edit(end=begun + 3 * HOUR)):
                with pytest.raises(Forbidden, match=r"leases\.maxDuration"):
                    await world.leases.update(world.client(), "l", edit)
            await world.leases.update(world.client(), "l", Edit(duration=2 * HOUR))

    world.run(story)
