"""What controllers and services may rely on, wherever the objects live."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import (
    ConfigMap,
    CoordinationLease,
    CoordinationLeaseSpec,
    Event,
    Namespace,
    ObjectReference,
    Secret,
)
from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.lease import ENDED_LABEL, Lease, LeaseSpec
from bullpen.api.meta import (
    LabelSelector,
    LocalObjectReference,
    ObjectMeta,
    OwnerReference,
)
from bullpen.api.objects import Feed, Seen
from bullpen.cluster import objects as cluster_objects
from bullpen.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound, Rejected
from bullpen.registry import objects as registry_objects
from support.objects_homes import HISTORY_MAX, Home, cluster_home, http_home, registry_home
from support.objects_homes import install_definitions as install

NOW = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def definitions() -> None:
    install()


@pytest.fixture(params=["registry", "http", pytest.param("cluster", marks=pytest.mark.cluster)])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    if request.param == "registry":
        async with registry_home() as (found, _):
            yield found
    elif request.param == "http":
        async with http_home() as found:
            yield found
    else:
        request.getfixturevalue("definitions")
        async with cluster_home() as found:
            yield found


def meta(home: Home, name: str, **more: object) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=home.namespace, **more)  # type: ignore[arg-type]


def exporter(home: Home, name: str = "e1", **more: object) -> Exporter:
    return Exporter(metadata=meta(home, name, **more))


def config_map(home: Home, **data: str) -> ConfigMap:
    return ConfigMap(metadata=meta(home, "ours"), data=data)


def lease(home: Home, name: str = "l1") -> Lease:
    spec = LeaseSpec(
        client_ref=LocalObjectReference(name="me"),
        selector=LabelSelector(match_labels={"board": "rpi4"}),
    )
    return Lease(metadata=meta(home, name), spec=spec)


def taken(found: Exporter, by: str) -> Exporter:
    reference = LocalObjectReference(name=by)
    return replace(found, status=replace(found.status, lease_ref=reference))


@contextlib.asynccontextmanager
async def watching(home: Home, since: int = 0) -> AsyncIterator[Feed[Exporter]]:
    since = since or (await home.objects.list(Exporter)).revision
    feed = home.objects.watch(Exporter, since=since)
    try:
        yield feed
    finally:
        feed.close()


async def take(feed: Feed[Exporter], count: int) -> list[Seen[Exporter]]:
    found: list[Seen[Exporter]] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(found) < count:
            found += await feed.next()
    return found


async def vanished(home: Home, kind: type[Secret] | type[Exporter], name: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        with contextlib.suppress(NotFound):
            while True:
                await home.objects.get(kind, home.namespace, name)
                await asyncio.sleep(0.05)


class TestCreating:
    async def test_gives_identity_dates_and_a_revision(self, home: Home) -> None:
        made = await home.objects.create(exporter(home, labels={"board": "rpi4"}))
        assert made.metadata.uid
        assert int(made.metadata.resource_version) > 0
        assert made.metadata.creation_timestamp is not None
        assert made.metadata.generation == 1
        assert await home.objects.get(Exporter, home.namespace, "e1") == made

    async def test_a_name_that_is_taken_is_refused(self, home: Home) -> None:
        await home.objects.create(exporter(home))
        with pytest.raises(AlreadyExists):
            await home.objects.create(exporter(home))

    async def test_a_name_can_be_left_to_the_home(self, home: Home) -> None:
        made = await home.objects.create(exporter(home, "", generate_name="pool-"))
        assert made.metadata.name.startswith("pool-")

    async def test_what_breaks_a_rule_is_refused_naming_the_field(self, home: Home) -> None:
        wrong = replace(lease(home), spec=replace(lease(home).spec, selector=LabelSelector()))
        with pytest.raises(Invalid) as refusal:
            await home.objects.create(wrong)
        assert "selector" in str(refusal.value)

    async def test_in_a_namespace_that_is_not_there_is_refused(self, home: Home) -> None:
        lost = Client(metadata=ObjectMeta(name="c", namespace="nowhere-at-all"))
        with pytest.raises(NotFound):
            await home.objects.create(lost)


async def test_what_is_not_there_is_not_found(home: Home) -> None:
    with pytest.raises(NotFound):
        await home.objects.get(Exporter, home.namespace, "nobody")


class TestSelectedKinds:
    async def test_an_object_that_is_no_longer_selected_is_neither_listed_nor_watched(
        self, home: Home
    ) -> None:
        made = [await home.objects.create(lease(home, name)) for name in ("l1", "l2")]
        listing = await home.objects.list(Lease)
        feed = home.objects.watch(Lease, since=listing.revision)
        labelled = replace(made[0].metadata, labels={ENDED_LABEL: "true"})
        await home.objects.update(replace(made[0], metadata=labelled))
        try:
            async with asyncio.timeout(SECONDS_MAX):
                (seen,) = [seen for seen in await feed.next() if seen.value.metadata.name == "l1"]
        finally:
            feed.close()
        assert seen.gone
        left = {item.metadata.name for item in (await home.objects.list(Lease)).items}
        assert "l2" in left
        assert "l1" not in left
        assert (await home.objects.get(Lease, home.namespace, "l1")).metadata.labels

    async def test_pages_have_every_object_once_selected_or_not(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_objects, "PAGE", 2)
        monkeypatch.setattr(registry_objects, "PAGE", 2)
        for number in range(5):
            made = lease(home, f"l{number}")
            labels = {ENDED_LABEL: "true"} if number else {}
            await home.objects.create(replace(made, metadata=replace(made.metadata, labels=labels)))
        pages = [
            [item.metadata.name for item in page]
            async for page in home.objects.pages(
                Lease, namespace=home.namespace, labels=ENDED_LABEL
            )
        ]
        assert pages == [["l1", "l2"], ["l3", "l4"]]


class TestUpdating:
    async def test_gives_a_later_revision_and_counts_the_generation(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        changed = await home.objects.update(replace(made, spec=ExporterSpec(enabled=False)))
        assert int(changed.metadata.resource_version) > int(made.metadata.resource_version)
        assert changed.metadata.generation == 2
        assert not changed.spec.enabled

    async def test_what_moved_on_is_refused(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        first = await home.objects.update(replace(made, spec=ExporterSpec(enabled=False)))
        with pytest.raises(Conflict):
            await home.objects.update(replace(made, spec=ExporterSpec(username="x")))
        assert await home.objects.get(Exporter, home.namespace, "e1") == first

    async def test_what_is_gone_is_refused(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        await home.objects.delete(made)
        with pytest.raises((NotFound, Conflict)):
            await home.objects.update(replace(made, spec=ExporterSpec(enabled=False)))
        with pytest.raises((NotFound, Conflict)):
            await home.objects.update_status(taken(made, "l1"))

    async def test_leaves_the_status_alone(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        held = await home.objects.update_status(taken(made, "l1"))
        asked = replace(taken(held, "other"), spec=ExporterSpec(enabled=False))
        changed = await home.objects.update(asked)
        assert changed.status == held.status

    async def test_that_changes_nothing_makes_no_revision(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        same = await home.objects.update(made)
        assert same.metadata.resource_version == made.metadata.resource_version


class TestUpdatingTheStatus:
    async def test_leaves_everything_else_alone(self, home: Home) -> None:
        made = await home.objects.create(exporter(home, labels={"board": "x"}))
        labelled = replace(made, metadata=replace(made.metadata, labels={}))
        asked = taken(replace(labelled, spec=ExporterSpec(enabled=False)), "l1")
        changed = await home.objects.update_status(asked)
        assert changed.status.lease_ref == LocalObjectReference(name="l1")
        assert changed.spec.enabled
        assert changed.metadata.labels == {"board": "x"}
        assert changed.metadata.generation == 1

    async def test_has_one_winner(self, home: Home) -> None:
        """The commit point of an assignment: two leases, one exporter."""
        made = await home.objects.create(exporter(home))
        names = [f"l{index}" for index in range(8)]
        outcomes = await asyncio.gather(
            *(home.objects.update_status(taken(made, name)) for name in names),
            return_exceptions=True,
        )
        assert sum(isinstance(found, Conflict) for found in outcomes) == len(names) - 1
        found = await home.objects.get(Exporter, home.namespace, "e1")
        winner = next(item for item in outcomes if isinstance(item, Exporter))
        assert found.status.lease_ref == winner.status.lease_ref

    async def test_of_two_objects_writes_both(self, home: Home) -> None:
        one, two = await self.pair(home)
        first, second = await home.objects.update_statuses(taken(one, "l1"), ended(two))
        assert first.status.lease_ref is not None
        assert second.status.ended
        assert await home.objects.get(Lease, home.namespace, "l1") == second

    async def test_of_two_objects_stops_when_the_first_moved_on(self, home: Home) -> None:
        one, two = await self.pair(home)
        await home.objects.update_status(taken(one, "other"))
        with pytest.raises(Conflict):
            await home.objects.update_statuses(taken(one, "l1"), ended(two))
        assert not (await home.objects.get(Lease, home.namespace, "l1")).status.ended

    async def test_of_two_objects_keeps_the_first_when_the_second_moved_on(
        self, home: Home
    ) -> None:
        one, two = await self.pair(home)
        await home.objects.update_status(ended(two))
        with pytest.raises(Conflict):
            await home.objects.update_statuses(taken(one, "l1"), ended(two))
        found = await home.objects.get(Exporter, home.namespace, "e1")
        assert found.status.lease_ref == LocalObjectReference(name="l1")

    async def pair(self, home: Home) -> tuple[Exporter, Lease]:
        return await home.objects.create(exporter(home)), await home.objects.create(lease(home))


def ended(found: Lease) -> Lease:
    return replace(found, status=replace(found.status, ended=True))


class TestApplying:
    async def test_makes_what_is_not_there(self, home: Home) -> None:
        made = await home.objects.apply(config_map(home, a="1"))
        assert made.data == {"a": "1"}
        assert made.metadata.uid

    async def test_mends_what_somebody_else_changed_and_leaves_the_rest_to_them(
        self, home: Home
    ) -> None:
        made = await home.objects.apply(config_map(home, a="1"))
        await home.objects.update(replace(made, data={"a": "other", "b": "theirs"}))
        mended = await home.objects.apply(config_map(home, a="1"))
        assert mended.data == {"a": "1", "b": "theirs"}
        assert mended.metadata.uid == made.metadata.uid

    async def test_takes_back_what_is_no_longer_said(self, home: Home) -> None:
        await home.objects.apply(config_map(home, a="1", b="2"))
        assert (await home.objects.apply(config_map(home, a="1"))).data == {"a": "1"}

    async def test_the_same_again_changes_nothing(self, home: Home) -> None:
        made = await home.objects.apply(config_map(home, a="1"))
        again = await home.objects.apply(config_map(home, a="1"))
        assert again.metadata.resource_version == made.metadata.resource_version


class TestDeleting:
    async def test_removes_it(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        await home.objects.delete(made)
        with pytest.raises(NotFound):
            await home.objects.get(Exporter, home.namespace, "e1")

    async def test_what_is_gone_is_a_success(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        await home.objects.delete(made)
        await home.objects.delete(made)

    async def test_what_moved_on_is_refused(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        await home.objects.update_status(taken(made, "l1"))
        with pytest.raises(Conflict):
            await home.objects.delete(made)

    async def test_another_object_of_the_same_name_is_refused(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        await home.objects.delete(made)
        await home.objects.create(exporter(home))
        with pytest.raises(Conflict):
            await home.objects.delete(made)

    async def test_waits_for_finalizers(self, home: Home) -> None:
        made = await home.objects.create(exporter(home, finalizers=("bullpen.dev/test",)))
        await home.objects.delete(made)
        going = await home.objects.get(Exporter, home.namespace, "e1")
        assert going.metadata.deletion_timestamp is not None
        await home.objects.update(replace(going, metadata=replace(going.metadata, finalizers=())))
        await vanished(home, Exporter, "e1")

    async def test_takes_along_what_it_owns(self, home: Home) -> None:
        if not home.collects:
            pytest.skip("nobody collects garbage here")
        made = await home.objects.create(exporter(home))
        owner = OwnerReference(
            api_version=Exporter.api_version,
            kind=Exporter.kind,
            name="e1",
            uid=made.metadata.uid,
            controller=True,
            block_owner_deletion=True,
        )
        await home.objects.create(Secret(metadata=meta(home, "s1", owner_references=(owner,))))
        await home.objects.delete(made)
        await vanished(home, Secret, "s1")


class TestListing:
    async def test_shows_everything_page_by_page(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_objects, "PAGE", 2)
        made = [await home.objects.create(exporter(home, f"e{index}")) for index in range(5)]
        listing = await home.objects.list(Exporter)
        assert list(listing.items) == made
        assert listing.revision >= max(int(e.metadata.resource_version) for e in made)

    async def test_nothing_has_a_revision_too(self, home: Home) -> None:
        listing = await home.objects.list(Exporter)
        assert listing.items == ()
        assert listing.revision > 0


class TestWatching:
    async def test_tells_every_change_once_and_in_order(self, home: Home) -> None:
        async with watching(home) as feed:
            made = await home.objects.create(exporter(home))
            held = await home.objects.update_status(taken(made, "l1"))
            await home.objects.delete(held)
            seen = await take(feed, 3)
        assert [found.gone for found in seen] == [False, False, True]
        assert seen[0].value == made
        assert seen[1].value == held
        assert seen[2].value.metadata.uid == made.metadata.uid
        revisions = [int(found.value.metadata.resource_version) for found in seen]
        assert revisions == sorted(set(revisions))

    async def test_a_list_misses_nothing_in_between(self, home: Home) -> None:
        await home.objects.create(exporter(home, "before"))
        listing = await home.objects.list(Exporter)
        after = await home.objects.create(exporter(home, "after"))
        async with watching(home, listing.revision) as feed:
            assert [found.value for found in await take(feed, 1)] == [after]

    async def test_can_begin_again_where_it_ended(self, home: Home) -> None:
        async with watching(home) as feed:
            await home.objects.create(exporter(home, "e1"))
            (first,) = await take(feed, 1)
        await home.objects.create(exporter(home, "e2"))
        async with watching(home, int(first.value.metadata.resource_version)) as feed:
            (second,) = await take(feed, 1)
        assert second.value.metadata.name == "e2"

    async def test_a_past_that_is_gone_says_so(self, home: Home) -> None:
        made = await home.objects.create(exporter(home))
        for index in range(HISTORY_MAX + 1):
            made = await home.objects.update_status(taken(made, f"l{index}"))
        with pytest.raises(Gone):
            async with watching(home, 1) as feed:
                await take(feed, 1)

    async def test_another_kind_tells_nothing(self, home: Home) -> None:
        async with watching(home) as feed:
            await home.objects.create(Client(metadata=meta(home, "c1")))
            made = await home.objects.create(exporter(home))
            assert [found.value for found in await take(feed, 1)] == [made]


class TestKubernetesOwnKinds:
    async def test_a_secret_keeps_its_data(self, home: Home) -> None:
        data = {"token": base64.b64encode(b"\x00\xff token").decode()}
        made = await home.objects.create(Secret(metadata=meta(home, "s1"), data=data))
        assert made.read("token") == b"\x00\xff token"
        fresh = {"token": base64.b64encode(b"new").decode()}
        assert (await home.objects.update(replace(made, data=fresh))).data == fresh

    async def test_a_config_map_keeps_its_data(self, home: Home) -> None:
        made = await home.objects.create(ConfigMap(metadata=meta(home, "m1"), data={"a": "b"}))
        changed = await home.objects.update(replace(made, data={"ca.crt": "pem"}))
        assert changed.data == {"ca.crt": "pem"}

    async def test_an_event_is_counted_up(self, home: Home) -> None:
        about = await home.objects.create(exporter(home))
        event = Event(
            metadata=meta(home, "e1.17"),
            involved_object=ObjectReference(
                kind=about.kind,
                api_version=about.api_version,
                namespace=home.namespace,
                name="e1",
                uid=about.metadata.uid,
                resource_version=about.metadata.resource_version,
            ),
            reason="Tested",
            message="it was",
            type="Normal",
            count=1,
            first_timestamp=NOW.replace(microsecond=0),
            last_timestamp=NOW.replace(microsecond=0),
            reporting_component="contract",
        )
        made = await home.objects.create(event)
        again = await home.objects.update(replace(made, count=2))
        assert again.count == 2
        assert again.first_timestamp == NOW.replace(microsecond=0)

    async def test_a_coordination_lease_has_one_winner_and_keeps_microseconds(
        self, home: Home
    ) -> None:
        spec = CoordinationLeaseSpec(
            holder_identity="a", lease_duration_seconds=15, acquire_time=NOW, renew_time=NOW
        )
        made = await home.objects.create(
            CoordinationLease(metadata=meta(home, "leader"), spec=spec)
        )
        assert made.spec == spec
        freed = replace(made, spec=replace(spec, holder_identity=""))
        await home.objects.update(freed)
        with pytest.raises(Conflict):
            await home.objects.update(replace(made, spec=replace(spec, holder_identity="b")))
        found = await home.objects.get(CoordinationLease, home.namespace, "leader")
        assert not found.spec.holder_identity

    async def test_the_namespace_itself_can_be_read(self, home: Home) -> None:
        found = await home.objects.get(Namespace, "", home.namespace)
        assert found.metadata.uid
        names = [item.metadata.name for item in (await home.objects.list(Namespace)).items]
        assert home.namespace in names

    async def test_an_unreadable_name_is_refused(self, home: Home) -> None:
        with pytest.raises(Rejected):
            await home.objects.create(Secret(metadata=meta(home, "Not A Name")))
