"""The garbage collector over a real registry: what goes, what stays, in which order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bullpen.api.paths import Document, decode
from bullpen.errors import StorageFailed
from bullpen.registry import garbage
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.options import PatchType, Propagation, WriteOptions
from bullpen.store.base import Store, Verb, Watch
from bullpen.store.journaled import MemoryStore
from support.registry_helpers import (
    EXPORTER,
    LEASE,
    NAMESPACE,
    SECRET,
    Lab,
    document,
    lease,
    owned_by,
    secret,
)


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default", "other"])
    return made


async def family(lab: Lab, *, blocking: bool = False) -> Document:
    """An exporter that owns two secrets, one of which owns a lease."""
    owner = await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    child = await lab.create(SECRET, secret("child", metadata=owned_by(owner, blocking=blocking)))
    await lab.create(SECRET, secret("sibling", metadata=owned_by(owner)))
    await lab.create(LEASE, lease("grandchild", metadata=owned_by(child, blocking=blocking)))
    return owner


def deletions(lab: Lab) -> list[str]:
    """The names of what was deleted, in order."""
    watch = lab.store.watch("", since=lab.store.oldest)
    changes = watch._chunks[0]  # type: ignore[attr-defined]
    watch.close()
    return [
        decode(change.value)["metadata"]["name"]
        for change in changes
        if change.verb is Verb.DELETED
    ]


async def test_dependents_follow_their_owner_in_the_background(lab: Lab) -> None:
    await family(lab)
    assert (await lab.delete(EXPORTER, "owner")).finished
    await lab.collect(until=lambda: not lab.exists(LEASE, "grandchild"))
    assert not lab.exists(SECRET, "child")
    assert deletions(lab)[0] == "owner"


async def test_a_running_collector_sees_what_happens_while_it_runs(lab: Lab) -> None:
    collector = GarbageCollector(lab.registry)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(collector.run())
        await family(lab)
        await lab.delete(EXPORTER, "owner")
        await lab.happens(lambda: not lab.exists(LEASE, "grandchild"))
        running.cancel()


async def test_an_owner_deleted_in_the_foreground_goes_last(lab: Lab) -> None:
    await family(lab, blocking=True)
    deleted = await lab.delete(EXPORTER, "owner", propagation=Propagation.FOREGROUND)
    assert not deleted.finished
    assert lab.get(EXPORTER, "owner")["metadata"]["finalizers"] == ["foregroundDeletion"]
    await lab.collect(until=lambda: not lab.exists(EXPORTER, "owner"))
    order = deletions(lab)
    assert order.index("grandchild") < order.index("child") < order.index("owner")


async def test_a_foreground_deletion_waits_only_for_dependents_that_block(lab: Lab) -> None:
    owner = await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    held = {**owned_by(owner), "finalizers": ["x.io/y"]}
    await lab.create(SECRET, secret("slow", metadata=held))
    await lab.delete(EXPORTER, "owner", propagation=Propagation.FOREGROUND)
    await lab.collect(until=lambda: not lab.exists(EXPORTER, "owner"))
    assert lab.get(SECRET, "slow")["metadata"]["deletionTimestamp"]


async def test_a_foreground_deletion_waits_for_a_dependents_own_finalizer(lab: Lab) -> None:
    owner = await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    held = {**owned_by(owner, blocking=True), "finalizers": ["x.io/y"]}
    await lab.create(SECRET, secret("slow", metadata=held))
    await lab.delete(EXPORTER, "owner", propagation=Propagation.FOREGROUND)

    def is_deleting() -> bool:
        return "deletionTimestamp" in lab.get(SECRET, "slow")["metadata"]

    await lab.collect(until=is_deleting)
    assert lab.exists(EXPORTER, "owner")
    await lab.patch(SECRET, "slow", PatchType.MERGE, {"metadata": {"finalizers": None}})
    await lab.collect(until=lambda: not lab.exists(EXPORTER, "owner"))


async def test_owners_in_a_circle_do_not_wait_for_each_other_for_ever(lab: Lab) -> None:
    first = await lab.create(EXPORTER, document(EXPORTER, "first", spec={}))
    second = await lab.create(
        EXPORTER, document(EXPORTER, "second", spec={}, metadata=owned_by(first, blocking=True))
    )
    circle = {"metadata": owned_by(second, blocking=True)}
    await lab.patch(EXPORTER, "first", PatchType.MERGE, circle)
    await lab.delete(EXPORTER, "first", propagation=Propagation.FOREGROUND)
    await lab.collect(until=lambda: not lab.exists(EXPORTER, "first"))
    assert not lab.exists(EXPORTER, "second")


async def test_orphans_stay_and_forget_their_owner(lab: Lab) -> None:
    await family(lab)
    deleted = await lab.delete(EXPORTER, "owner", propagation=Propagation.ORPHAN)
    assert not deleted.finished
    await lab.collect(until=lambda: not lab.exists(EXPORTER, "owner"))
    for name in ("child", "sibling"):
        assert "ownerReferences" not in lab.get(SECRET, name)["metadata"]
    assert lab.exists(LEASE, "grandchild")


async def test_an_object_whose_owner_never_was_is_collected(lab: Lab) -> None:
    ghost: Document = document(EXPORTER, "ghost", metadata={"uid": "no-such-uid"})
    await lab.create(SECRET, secret("a", metadata=owned_by(ghost)))
    await lab.collect(until=lambda: not lab.exists(SECRET, "a"))


async def test_an_owner_of_the_same_name_is_not_the_same_owner(lab: Lab) -> None:
    await family(lab)
    await lab.delete(EXPORTER, "owner")
    await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    await lab.collect(until=lambda: not lab.exists(SECRET, "child"))
    assert lab.exists(EXPORTER, "owner")


async def test_one_owner_that_stays_is_enough(lab: Lab) -> None:
    going = await lab.create(EXPORTER, document(EXPORTER, "going", spec={}))
    staying = await lab.create(EXPORTER, document(EXPORTER, "staying", spec={}))
    await lab.create(SECRET, secret("a", metadata=owned_by(going, staying)), field_manager="me")
    await lab.delete(EXPORTER, "going")

    def owners() -> list[str]:
        references = lab.get(SECRET, "a")["metadata"]["ownerReferences"]
        return [reference["name"] for reference in references]

    await lab.collect(until=lambda: owners() == ["staying"])
    claimed = lab.get(SECRET, "a")["metadata"]["managedFields"]
    assert [entry["manager"] for entry in claimed] == ["me"]
    assert going["metadata"]["uid"] not in str(claimed)


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param({"apiVersion": "example.com/v1", "kind": "Thing"}, id="of a kind not served"),
        pytest.param({"name": "misspelt"}, id="under another name"),
    ],
)
async def test_an_owner_that_cannot_be_judged_keeps_its_dependents(
    lab: Lab, reference: dict[str, Any]
) -> None:
    owner = await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    metadata = owned_by(owner)
    metadata["ownerReferences"][0].update(reference)
    await lab.create(SECRET, secret("unclear", metadata=metadata))
    ghost = document(EXPORTER, "ghost", metadata={"uid": "no-such-uid"})
    await lab.create(SECRET, secret("clear", metadata=owned_by(ghost)))
    await lab.collect(until=lambda: not lab.exists(SECRET, "clear"))
    assert lab.exists(SECRET, "unclear")


async def test_an_owner_in_another_namespace_is_no_owner(lab: Lab) -> None:
    owner = await lab.create(
        EXPORTER, document(EXPORTER, "owner", spec={}, metadata={"namespace": "other"})
    )
    await lab.create(SECRET, secret("a", metadata=owned_by(owner)))
    await lab.collect(until=lambda: not lab.exists(SECRET, "a"))


async def test_an_owner_without_a_namespace_owns_what_is_in_one(lab: Lab) -> None:
    owner = lab.get(NAMESPACE, "other")
    await lab.create(SECRET, secret("mine", metadata=owned_by(owner)))
    ghost = document(EXPORTER, "ghost", metadata={"uid": "no-such-uid"})
    await lab.create(SECRET, secret("z", metadata=owned_by(ghost)))
    await lab.collect(until=lambda: not lab.exists(SECRET, "z"))
    assert lab.exists(SECRET, "mine")


async def test_an_object_that_finds_a_new_owner_in_the_last_moment_stays(lab: Lab) -> None:
    ghost = document(EXPORTER, "ghost", metadata={"uid": "no-such-uid"})
    owner = await lab.create(EXPORTER, document(EXPORTER, "owner", spec={}))
    await lab.create(SECRET, secret("a", metadata=owned_by(ghost)))
    collector = GarbageCollector(lab.registry)
    collector._start().close()
    adoption = {"metadata": owned_by(owner)}
    async with asyncio.TaskGroup() as tasks:
        # Accepted first, durable only after the collector has had its look.
        tasks.create_task(lab.patch(SECRET, "a", PatchType.MERGE, adoption))
        tasks.create_task(collector._look_after(SECRET.key("default", "a")))
    assert lab.exists(SECRET, "a")


class TestNamespace:
    async def test_is_emptied_and_goes(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        for name in ("a", "b"):
            await lab.create(SECRET, secret(name, metadata={"namespace": "lab"}))
        await lab.create(LEASE, lease("c", metadata={"namespace": "lab"}))
        await lab.create(SECRET, secret("a"))
        await lab.delete(NAMESPACE, "lab")
        await lab.collect(until=lambda: not lab.exists(NAMESPACE, "lab"))
        *inside, last = deletions(lab)
        assert (sorted(inside), last) == (["a", "b", "c"], "lab")
        assert lab.exists(SECRET, "a")

    async def test_waits_for_what_holds_on_inside(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        held = {"namespace": "lab", "finalizers": ["x.io/y"]}
        await lab.create(SECRET, secret("slow", metadata=held))
        await lab.delete(NAMESPACE, "lab")

        def is_deleting() -> bool:
            found = lab.get(SECRET, "slow", namespace="lab")
            return "deletionTimestamp" in found["metadata"]

        await lab.collect(until=is_deleting)
        assert lab.exists(NAMESPACE, "lab")
        patch = {"metadata": {"finalizers": None}}
        place = (SECRET, "lab", "slow", PatchType.MERGE, patch)
        await lab.registry.patch(*place, WriteOptions())
        await lab.collect(until=lambda: not lab.exists(NAMESPACE, "lab"))

    async def test_without_contents_goes_at_once(self, lab: Lab) -> None:
        await lab.delete(NAMESPACE, "other")
        await lab.collect(until=lambda: not lab.exists(NAMESPACE, "other"))

    async def test_waits_for_its_own_finalizers(self, lab: Lab) -> None:
        held = {"metadata": {"finalizers": ["x.io/y"]}}
        await lab.patch(NAMESPACE, "other", PatchType.MERGE, held)
        await lab.delete(NAMESPACE, "other")

        def is_released() -> bool:
            return not lab.get(NAMESPACE, "other")["spec"]["finalizers"]

        await lab.collect(until=is_released)
        patch = {"metadata": {"finalizers": None}}
        await lab.patch(NAMESPACE, "other", PatchType.MERGE, patch)
        assert not lab.exists(NAMESPACE, "other")


class TestSteadiness:
    async def test_what_is_not_garbage_is_never_written_to(self, lab: Lab) -> None:
        await family(lab)
        ghost = document(EXPORTER, "ghost", metadata={"uid": "no-such-uid"})
        await lab.create(SECRET, secret("z", metadata=owned_by(ghost)))
        before = lab.store.revision
        await lab.collect(until=lambda: not lab.exists(SECRET, "z"))
        assert lab.store.revision == before + 1

    async def test_keys_that_are_not_objects_are_left_alone(self, lab: Lab) -> None:
        await lab.store.put("private/thing", lambda _: b"not json", expect=0)
        await family(lab)
        await lab.delete(EXPORTER, "owner")
        await lab.collect(until=lambda: not lab.exists(LEASE, "grandchild"))
        assert lab.store.get("private/thing") is not None

    async def test_it_starts_over_when_it_fell_behind(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch, starts = lab.store.watch, []

        def watch_shortly(prefix: str, *, since: int) -> Watch:
            if prefix:
                return watch(prefix, since=since)
            starts.append(since)
            return watch(prefix, since=since, buffer_max=1 if len(starts) == 1 else 1000)

        collector = GarbageCollector(lab.registry)
        monkeypatch.setattr(
            collector,
            "_store",
            SimpleNamespace(get=lab.store.get, scan=lab.store.scan, watch=watch_shortly),
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(collector.run())
            await asyncio.sleep(0)
            await asyncio.gather(
                *(lab.create(EXPORTER, document(EXPORTER, n, spec={})) for n in "abc")
            )
            await family(lab)
            await lab.delete(EXPORTER, "owner")
            await lab.happens(lambda: not lab.exists(LEASE, "grandchild"))
            running.cancel()
        assert len(starts) == 2

    async def test_what_failed_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(garbage, "RETRY_SECONDS", 0.0)
        store = MemoryStore()
        lab = Lab(store)
        await lab.registry.ensure_namespaces(["default"])
        await family(lab)
        await lab.delete(EXPORTER, "owner")
        failures = [1, 2, 3]
        delete = lab.registry.delete

        async def failing(*args: Any) -> Any:
            if failures:
                failures.pop()
                raise StorageFailed("full")
            return await delete(*args)

        monkeypatch.setattr(lab.registry, "delete", failing)
        await lab.collect(until=lambda: not lab.exists(LEASE, "grandchild"))
        assert not failures
        await store.close()


async def test_an_object_that_cannot_be_indexed_or_settled_is_logged_and_stops_nothing(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unexpected_errors: list[str],
) -> None:
    collector = GarbageCollector(lab.registry)
    key = "core/secrets/default/a"
    assert collector._learn(key, b"{") == ()
    await collector._look_after("of an unknown kind")

    async def broken(_place: object) -> None:
        raise OverflowError("a defect")

    monkeypatch.setattr(collector, "_settle", broken)
    await collector._look_after(key)
    assert list(collector._failed) == [key], "it is tried again"
    assert [record.message for record in caplog.records] == [
        "object not indexed",
        "garbage collection of an object failed",
    ]
    unexpected_errors.clear()
