"""Objects: what a write does, one sentence per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from bullpen.api.paths import Document, decode, encode
from bullpen.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    StorageFailed,
    TooLarge,
    UnsupportedMediaType,
)
from bullpen.registry.options import (
    ATTEMPTS_MAX,
    OBJECT_BYTES_MAX,
    DeleteOptions,
    FieldValidation,
    PatchType,
    Propagation,
    WriteOptions,
)
from bullpen.store.base import Encode, Entry, Store
from bullpen.store.journaled import MemoryStore
from support.registry_helpers import (
    CONFIG_MAP,
    EXPORTER,
    LEASE,
    NAMESPACE,
    SECRET,
    Lab,
    document,
    lease,
    secret,
)


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default", "other"])
    return made


async def test_a_created_object_gets_identity_dates_and_defaults(lab: Lab) -> None:
    made = await lab.create(LEASE, lease("a", status={"ended": True}))
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["generation"] == 1
    assert metadata["namespace"] == "default"
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert metadata["resourceVersion"] == str(lab.store.revision)
    assert made["status"] == {"ended": False, "conditions": []}
    assert lab.get(LEASE, "a") == made


async def test_a_caller_cannot_choose_what_the_server_owns(lab: Lab) -> None:
    mine = {"uid": "mine", "generation": 9, "creationTimestamp": None, "deletionTimestamp": "x"}
    made = await lab.create(SECRET, secret("a", metadata={**mine, "selfLink": "/x"}))
    assert made["metadata"]["uid"] != "mine"
    assert "generation" not in made["metadata"]
    assert "deletionTimestamp" not in made["metadata"]
    assert "selfLink" not in made["metadata"]


async def test_a_name_can_be_generated(lab: Lab) -> None:
    made = await lab.create(LEASE, lease(metadata={"generateName": "run-"}))
    name = made["metadata"]["name"]
    assert name.startswith("run-")
    assert len(name) == len("run-") + 5


async def test_a_generated_name_that_is_taken_is_generated_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffixes = iter(["aaaaa", "aaaaa", "aaaaa", "bbbbb"])
    monkeypatch.setattr(lab.registry._ids, "suffix", lambda: next(suffixes))
    first = await lab.create(SECRET, secret("", metadata={"generateName": "s-"}))
    second = await lab.create(SECRET, secret("", metadata={"generateName": "s-"}))
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["s-aaaaa", "s-bbbbb"]


async def test_generating_a_name_gives_up_after_a_while(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffixes = iter(["aaaaa"] * ATTEMPTS_MAX)
    monkeypatch.setattr(lab.registry._ids, "suffix", lambda: next(suffixes))
    await lab.create(SECRET, secret("s-aaaaa"))
    with pytest.raises(AlreadyExists, match="not able to generate a unique name"):
        await lab.create(SECRET, secret("", metadata={"generateName": "s-"}))
    assert next(suffixes, None) is None


async def test_an_object_without_any_name_is_refused(lab: Lab) -> None:
    with pytest.raises(Invalid, match="name or generateName is required"):
        await lab.create(SECRET, secret(""))


async def test_a_name_is_taken_only_once(lab: Lab) -> None:
    await lab.create(LEASE, lease("a"))
    with pytest.raises(AlreadyExists) as refused:
        await lab.create(LEASE, lease("a"))
    assert refused.value.message == 'leases.jumpstarter.dev "a" already exists'


async def test_the_name_of_an_object_being_deleted_is_still_taken(lab: Lab) -> None:
    await lab.create(SECRET, secret("a", metadata={"finalizers": ["x.io/y"]}))
    await lab.delete(SECRET, "a")
    with pytest.raises(AlreadyExists, match=r"^object is being deleted: secrets \"a\" already"):
        await lab.create(SECRET, secret("a"))


async def test_a_missing_object_is_not_found(lab: Lab) -> None:
    with pytest.raises(NotFound) as refused:
        lab.get(LEASE, "nope")
    assert refused.value.message == 'leases.jumpstarter.dev "nope" not found'
    with pytest.raises(NotFound):
        await lab.update(LEASE, lease("nope"))
    with pytest.raises(NotFound):
        await lab.patch(LEASE, "nope", PatchType.MERGE, {})
    with pytest.raises(NotFound):
        await lab.delete(LEASE, "nope")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {**lease("a"), "apiVersion": "v1"},
            "the API version in the data (v1) does not match the expected API version"
            " (jumpstarter.dev/v1alpha1)",
            id="of another version",
        ),
        pytest.param(
            {**lease("a"), "kind": "Exporter"},
            "the kind in the data (Exporter) is not Lease",
            id="of another kind",
        ),
        pytest.param(
            {**lease("a"), "metadata": {"name": "a", "namespace": "other"}},
            "the namespace of the provided object does not match the namespace sent on the request",
            id="in another namespace",
        ),
        pytest.param(
            {**lease("a"), "metadata": {"name": "a", "resourceVersion": "5"}},
            "resourceVersion should not be set on objects to be created",
            id="with a version before it exists",
        ),
    ],
)
async def test_a_document_is_refused(lab: Lab, given: Document, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await lab.registry.create(LEASE, "default", given, WriteOptions())
    assert refused.value.message == message


async def test_metadata_of_the_wrong_type_is_refused(lab: Lab) -> None:
    with pytest.raises(BadRequest, match="metadata: Expected `str`, got `int`"):
        await lab.create(LEASE, lease("a", metadata={"labels": {"x": 1}}))
    given = {**lease("a"), "metadata": ["a"]}
    with pytest.raises(BadRequest, match="metadata: Expected `object`, got `array`"):
        await lab.registry.create(LEASE, "default", given, WriteOptions())


async def test_built_in_kinds_may_leave_out_what_they_are(lab: Lab) -> None:
    made = await lab.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"x": "y"}})
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")


async def test_an_invalid_object_is_refused_naming_the_fields(lab: Lab) -> None:
    with pytest.raises(Invalid) as refused:
        await lab.create(LEASE, lease("a", metadata={"labels": {"-": "ok", "ok": "-"}}))
    assert refused.value.message.startswith(
        'Lease.jumpstarter.dev "a" is invalid: [metadata.labels: Invalid value: "-": '
    )
    assert len(refused.value.causes) == 2


async def test_the_name_in_the_path_and_in_the_body_must_agree(lab: Lab) -> None:
    await lab.create(LEASE, lease("a"))
    with pytest.raises(BadRequest) as refused:
        await lab.update(LEASE, lease("b"), name="a")
    message = "the name of the object (b) does not match the name on the URL (a)"
    assert refused.value.message == message


class TestUnknownFields:
    GIVEN = lease("a", spec={**lease("a")["spec"], "asked": 1})

    async def test_are_kept_and_survive_an_update(self, lab: Lab) -> None:
        made = await lab.create(LEASE, self.GIVEN)
        made["spec"]["duration"] = "2h"
        assert (await lab.update(LEASE, made))["spec"]["asked"] == 1

    async def test_are_warned_of(self, lab: Lab) -> None:
        written = await lab.registry.create(LEASE, "default", self.GIVEN, WriteOptions())
        assert written.warnings == ('unknown field "spec.asked"',)

    async def test_are_refused_when_strict(self, lab: Lab) -> None:
        with pytest.raises(BadRequest) as refused:
            await lab.create(LEASE, self.GIVEN, field_validation=FieldValidation.STRICT)
        assert 'strict decoding error: unknown field "spec.asked"' in refused.value.message

    @pytest.mark.parametrize("kind", [PatchType.APPLY, PatchType.MERGE])
    async def test_are_refused_in_a_strict_patch_before_anything_is_written(
        self, lab: Lab, kind: PatchType
    ) -> None:
        await lab.create(LEASE, lease("a"))
        before = lab.store.revision
        options = {"field_validation": FieldValidation.STRICT, "field_manager": "m"}
        with pytest.raises(BadRequest, match="strict decoding error"):
            await lab.patch(LEASE, "a", kind, self.GIVEN, **options)
        assert lab.store.revision == before

    async def test_outside_the_status_are_not_looked_at_by_a_write_to_it(self, lab: Lab) -> None:
        await lab.create(LEASE, self.GIVEN)
        given = {**self.GIVEN, "status": {"ended": True, "mood": "good"}}
        options = WriteOptions(subresource="status")
        version = lab.get(LEASE, "a")["metadata"]["resourceVersion"]
        given["metadata"] = {**given["metadata"], "resourceVersion": version}
        written = await lab.registry.update(LEASE, "default", "a", given, options)
        assert written.warnings == ('unknown field "status.mood"',)

    async def test_are_nobodys_business_when_ignored(self, lab: Lab) -> None:
        options = WriteOptions(field_validation=FieldValidation.IGNORE)
        assert (await lab.registry.create(LEASE, "default", self.GIVEN, options)).warnings == ()


class TestUpdate:
    async def test_of_a_built_in_kind_without_a_version_is_unconditional(self, lab: Lab) -> None:
        await lab.create(CONFIG_MAP, document(CONFIG_MAP, "a"))
        await lab.update(CONFIG_MAP, document(CONFIG_MAP, "a", data={"x": "y"}))
        assert lab.get(CONFIG_MAP, "a")["data"] == {"x": "y"}

    async def test_of_a_custom_kind_without_a_version_is_refused(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(Invalid, match="must be specified for an update"):
            await lab.registry.update(
                LEASE, "default", "a", lease("a", duration="2h"), WriteOptions()
            )
        assert lab.get(LEASE, "a")["spec"]["duration"] != "2h"

    async def test_of_an_old_version_is_refused(self, lab: Lab) -> None:
        stale = await lab.create(LEASE, lease("x"))
        await lab.update(LEASE, lease("x", duration="2h"))
        with pytest.raises(Conflict) as refused:
            await lab.update(LEASE, stale)
        assert refused.value.message == (
            'Operation cannot be fulfilled on leases.jumpstarter.dev "x": the object has been'
            " modified; please apply your changes to the latest version and try again"
        )

    async def test_of_an_object_of_the_same_name_but_another_uid_is_refused(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(Conflict, match="UID in precondition: old, UID in object meta: "):
            await lab.update(LEASE, lease("a", metadata={"uid": "old"}))

    async def test_keeps_what_the_server_owns(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        lab.clock.advance(timedelta(hours=1))
        mine = {"generation": 99, "creationTimestamp": "2020-01-01T00:00:00Z"}
        after = await lab.update(LEASE, lease("a", metadata=mine, duration="2h"))
        for key in ("uid", "creationTimestamp", "namespace"):
            assert after["metadata"][key] == made["metadata"][key]
        assert after["metadata"]["generation"] == 2

    async def test_that_changes_nothing_makes_no_revision(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a", metadata={"labels": {"x": "y"}}))
        before = lab.store.revision
        lab.clock.advance(timedelta(hours=1))
        assert await lab.update(LEASE, made, field_manager="someone") == made
        assert await lab.update(LEASE, lease("a", metadata={"labels": {"x": "y"}})) == made
        assert await lab.patch(LEASE, "a", PatchType.MERGE, {"spec": {"duration": "1h"}}) == made
        assert lab.store.revision == before

    async def test_from_one_to_true_is_a_change(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", spec={**lease("a")["spec"], "asked": 1}))
        after = await lab.patch(LEASE, "a", PatchType.MERGE, {"spec": {"asked": True}})
        assert after["spec"]["asked"] is True

    async def test_that_changes_nothing_waits_until_what_it_found_is_durable(
        self, lab: Lab
    ) -> None:
        await lab.create(LEASE, lease("a"))
        before = lab.store.revision

        async def change() -> Document:
            after = await lab.update(LEASE, lease("a", duration="2h"))
            assert lab.get(LEASE, "a") == after
            return after

        first, second = await asyncio.gather(change(), change())
        assert first == second == lab.get(LEASE, "a")
        assert lab.store.revision == before + 1

    async def test_that_changes_nothing_waits_even_for_a_write_whose_caller_left(
        self, lab: Lab
    ) -> None:
        await lab.create(LEASE, lease("a"))
        longer = lease("a", duration="2h")
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(lab.update(LEASE, longer))
            second = tasks.create_task(lab.update(LEASE, longer))
            second.add_done_callback(lambda done: seen.append(lab.get(LEASE, "a")))
            seen: list[Document] = []
            await asyncio.sleep(0)
            first.cancel()
        assert seen == [second.result()]

    async def test_counts_generations_for_changes_of_the_desired_state_only(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        labelled = await lab.patch(
            LEASE, "a", PatchType.MERGE, {"metadata": {"labels": {"x": "y"}}}
        )
        status = {"status": {"ended": True}}
        ended = await lab.patch(LEASE, "a", PatchType.MERGE, status, subresource="status")
        longer = await lab.patch(LEASE, "a", PatchType.MERGE, {"spec": {"duration": "2h"}})
        found = [d["metadata"]["generation"] for d in (made, labelled, ended, longer)]
        assert found == [1, 1, 1, 2]

    async def test_of_built_in_kinds_counts_none(self, lab: Lab) -> None:
        await lab.create(CONFIG_MAP, document(CONFIG_MAP, "a"))
        after = await lab.update(CONFIG_MAP, document(CONFIG_MAP, "a", data={"x": "y"}))
        assert "generation" not in after["metadata"]

    async def test_too_large_is_refused(self, lab: Lab) -> None:
        await lab.create(EXPORTER, document(EXPORTER, "a", spec={}))
        fill = "x" * OBJECT_BYTES_MAX
        with pytest.raises(TooLarge):
            await lab.update(EXPORTER, document(EXPORTER, "a", spec={"unknown": fill}))


class TestStatus:
    async def test_is_not_touched_by_a_write_to_the_object(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        after = await lab.update(LEASE, lease("a", duration="2h", status={"ended": True}))
        assert after["status"]["ended"] is False
        assert after["spec"]["duration"] == "2h"

    async def test_is_all_that_a_write_to_it_touches(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        asked = lease("a", duration="2h", metadata={"labels": {"x": "y"}}, status={"ended": True})
        after = await lab.update(LEASE, asked, subresource="status")
        assert after["status"]["ended"] is True
        assert after["spec"] == made["spec"]
        apart = ("managedFields", "resourceVersion")
        left, right = (
            {k: v for k, v in d["metadata"].items() if k not in apart} for d in (made, after)
        )
        assert left == right

    async def test_is_versioned_with_the_object(self, lab: Lab) -> None:
        stale = await lab.create(LEASE, lease("a"))
        await lab.update(LEASE, lease("a", duration="2h"))
        with pytest.raises(Conflict):
            await lab.update(LEASE, {**stale, "status": {"ended": True}}, subresource="status")

    async def test_that_a_kind_does_not_have_is_not_found(self, lab: Lab) -> None:
        await lab.create(SECRET, secret("a"))
        with pytest.raises(NotFound):
            await lab.update(SECRET, secret("a"), subresource="status")

    async def test_cannot_be_created(self, lab: Lab) -> None:
        with pytest.raises(MethodNotAllowed):
            await lab.create(LEASE, lease("a"), subresource="status")


class TestPatch:
    async def test_json(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        operations = [
            {"op": "test", "path": "/spec/duration", "value": "1h"},
            {"op": "replace", "path": "/spec/duration", "value": "2h"},
            {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
        ]
        after = await lab.patch(LEASE, "a", PatchType.JSON, operations)
        assert after["spec"]["duration"] == "2h"
        assert after["metadata"]["labels"] == {"x": "y"}

    async def test_merge_removes_with_null(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        after = await lab.patch(LEASE, "a", PatchType.MERGE, {"spec": {"duration": None}})
        assert "duration" not in after["spec"]

    async def test_strategic_is_for_built_in_kinds(self, lab: Lab) -> None:
        await lab.create(CONFIG_MAP, document(CONFIG_MAP, "a", data={"x": "1", "y": "2"}))
        patch = {"data": {"x": None, "z": "3"}, "$setElementOrder/finalizers": []}
        after = await lab.patch(CONFIG_MAP, "a", PatchType.STRATEGIC, patch)
        assert after["data"] == {"y": "2", "z": "3"}

    async def test_strategic_is_refused_for_our_own(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(UnsupportedMediaType):
            await lab.patch(LEASE, "a", PatchType.STRATEGIC, {})

    async def test_with_the_wrong_version_is_refused(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(Conflict):
            await lab.patch(LEASE, "a", PatchType.MERGE, {"metadata": {"resourceVersion": "1"}})

    @pytest.mark.parametrize(
        "patch",
        [
            pytest.param({"kind": "Exporter"}, id="its kind"),
            pytest.param({"metadata": {"name": "b"}}, id="its name"),
            pytest.param({"metadata": {"namespace": "other"}}, id="its namespace"),
        ],
    )
    async def test_cannot_change_what_an_object_is(self, lab: Lab, patch: Document) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(BadRequest):
            await lab.patch(LEASE, "a", PatchType.MERGE, patch)

    async def test_cannot_be_forced_unless_it_is_an_apply(self, lab: Lab) -> None:
        with pytest.raises(Invalid, match="force: Forbidden"):
            await lab.patch(LEASE, "a", PatchType.MERGE, {}, force=True)

    async def test_cannot_leave_something_else_than_an_object(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(BadRequest):
            await lab.patch(LEASE, "a", PatchType.JSON, [{"op": "replace", "path": "", "value": 1}])

    async def test_too_deep_to_walk_is_refused(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        deep: object = 1
        for _ in range(900):
            deep = {"x": deep}
        with pytest.raises(BadRequest, match="nested"):
            await lab.patch(LEASE, "a", PatchType.MERGE, {"spec": deep})
        with pytest.raises(BadRequest, match="nested"):
            await lab.apply(LEASE, {**lease("a"), "spec": deep})
        with pytest.raises(Invalid, match="nested"):
            await lab.create(LEASE, lease("b", spec=deep))


class TestDryRun:
    OPTIONS = WriteOptions(dry_run=True)

    async def test_of_a_create_changes_nothing(self, lab: Lab) -> None:
        before = lab.store.revision
        written = await lab.registry.create(LEASE, "default", lease("a"), self.OPTIONS)
        assert decode(written.value)["metadata"]["uid"]
        assert not lab.exists(LEASE, "a")
        assert lab.store.revision == before

    async def test_of_a_create_notices_a_taken_name(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(AlreadyExists):
            await lab.registry.create(LEASE, "default", lease("a"), self.OPTIONS)

    async def test_of_an_update_shows_the_outcome_and_changes_nothing(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        shown = await lab.update(LEASE, lease("a", duration="2h"), dry_run=True)
        assert shown["spec"]["duration"] == "2h"
        assert shown["metadata"]["generation"] == 2
        assert lab.get(LEASE, "a") == made

    async def test_of_a_delete_changes_nothing(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        assert (await lab.delete(LEASE, "a", dry_run=True)).finished
        held = await lab.delete(LEASE, "a", dry_run=True, propagation=Propagation.FOREGROUND)
        assert not held.finished
        assert lab.get(LEASE, "a") == made

    async def test_of_an_apply_notices_conflicts(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"), field_manager="other")
        with pytest.raises(Conflict):
            await lab.apply(LEASE, lease("a", duration="2h"), dry_run=True)


class TestDelete:
    async def test_removes_the_object_and_says_which(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"))
        deleted = await lab.delete(LEASE, "a")
        assert deleted.finished
        assert deleted.uid == made["metadata"]["uid"]
        assert decode(deleted.value)["metadata"]["resourceVersion"] == str(lab.store.revision)
        assert not lab.exists(LEASE, "a")

    async def test_waits_for_finalizers(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", metadata={"finalizers": ["x.io/y"]}))
        deleted = await lab.delete(LEASE, "a")
        held = lab.get(LEASE, "a")
        assert not deleted.finished
        assert held["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
        assert held["metadata"]["deletionGracePeriodSeconds"] == 0
        assert held["metadata"]["generation"] == 1

    async def test_again_changes_nothing_while_it_waits(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", metadata={"finalizers": ["x.io/y"]}))
        first = await lab.delete(LEASE, "a")
        lab.clock.advance(timedelta(hours=1))
        before = lab.store.revision
        assert await lab.delete(LEASE, "a") == first
        assert lab.store.revision == before

    async def test_is_done_when_the_last_finalizer_goes(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", metadata={"finalizers": ["x.io/y", "x.io/z"]}))
        await lab.delete(LEASE, "a")
        await lab.patch(LEASE, "a", PatchType.MERGE, {"metadata": {"finalizers": ["x.io/z"]}})
        assert lab.exists(LEASE, "a")
        last = await lab.patch(LEASE, "a", PatchType.MERGE, {"metadata": {"finalizers": None}})
        assert last["metadata"]["name"] == "a"
        assert not lab.exists(LEASE, "a")

    async def test_cannot_both_orphan_and_wait(self, lab: Lab) -> None:
        both = {"finalizers": ["orphan", "foregroundDeletion"]}
        with pytest.raises(Invalid, match="cannot be both set"):
            await lab.create(LEASE, lease("a", metadata=both))

    async def test_follows_the_objects_own_finalizer_unless_told_otherwise(self, lab: Lab) -> None:
        for name in "ab":
            asked = {"finalizers": ["foregroundDeletion"]}
            await lab.create(LEASE, lease(name, metadata=asked))
        assert not (await lab.delete(LEASE, "a")).finished
        assert (await lab.delete(LEASE, "b", propagation=Propagation.BACKGROUND)).finished
        orphaning = await lab.delete(LEASE, "a", propagation=Propagation.ORPHAN)
        assert decode(orphaning.value)["metadata"]["finalizers"] == ["orphan"]

    async def test_cannot_be_taken_back(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", metadata={"finalizers": ["x.io/y"]}))
        await lab.delete(LEASE, "a")
        held = {"metadata": {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}}
        after = await lab.patch(LEASE, "a", PatchType.MERGE, held)
        assert after["metadata"]["deletionTimestamp"]

    async def test_cannot_be_held_up_by_new_finalizers(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a", metadata={"finalizers": ["x.io/y"]}))
        await lab.delete(LEASE, "a")
        more = {"metadata": {"finalizers": ["x.io/y", "x.io/z"]}}
        with pytest.raises(Invalid, match="no new finalizers can be added if the object is being"):
            await lab.patch(LEASE, "a", PatchType.MERGE, more)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            pytest.param({"uid": "x"}, "the UID in the precondition (x) does not match", id="uid"),
            pytest.param(
                {"resource_version": "1"},
                "the ResourceVersion in the precondition (1) does not match",
                id="version",
            ),
        ],
    )
    async def test_keeps_to_its_preconditions(
        self, lab: Lab, options: dict[str, str], message: str
    ) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(Conflict) as refused:
            await lab.delete(LEASE, "a", **options)
        assert message in refused.value.message
        assert lab.exists(LEASE, "a")

    async def test_of_a_collection_takes_what_matches(self, lab: Lab) -> None:
        for name in ("a", "b", "c"):
            await lab.create(
                SECRET, secret(name, metadata={"finalizers": ["x.io/y"]} if name == "b" else {})
            )
        await lab.create(SECRET, secret("d", metadata={"namespace": "other"}))
        values = await lab.registry.delete_collection(SECRET, "default", options=DeleteOptions())
        assert [decode(value)["metadata"]["name"] for value in values] == ["a", "b", "c"]
        names = [
            decode(e.value)["metadata"]["name"] for e in lab.registry.list(SECRET, None).entries
        ]
        assert names == ["b", "d"]

    async def test_of_a_collection_is_not_stopped_by_one_that_may_not_go(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "zoo"))
        with pytest.raises(Forbidden, match="this namespace may not be deleted"):
            await lab.registry.delete_collection(NAMESPACE, "", options=DeleteOptions())
        assert lab.get(NAMESPACE, "zoo")["status"]["phase"] == "Terminating"

    async def test_of_a_collection_does_not_mind_who_deletes(self, lab: Lab) -> None:
        for name in "ab":
            await lab.create(SECRET, secret(name))
        both = await asyncio.gather(
            lab.registry.delete_collection(SECRET, "default", options=DeleteOptions()),
            lab.delete(SECRET, "a"),
            return_exceptions=True,
        )
        assert not lab.registry.list(SECRET, "default").entries
        assert not isinstance(both[0], BaseException)


class TestNamespace:
    async def test_must_be_there_to_create_in(self, lab: Lab) -> None:
        with pytest.raises(NotFound) as refused:
            await lab.create(LEASE, lease("a", metadata={"namespace": "nowhere"}))
        assert refused.value.message == 'namespaces "nowhere" not found'
        with pytest.raises(NotFound):
            await lab.registry.patch(
                LEASE, "nowhere", "a", PatchType.APPLY, lease("a"), WriteOptions(field_manager="m")
            )

    async def test_is_active_and_held_by_its_finalizer(self, lab: Lab) -> None:
        made = await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        assert made["spec"] == {"finalizers": ["kubernetes"]}
        assert made["status"] == {"phase": "Active"}
        assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "lab"}

    async def test_terminates_instead_of_going_at_once(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        assert not (await lab.delete(NAMESPACE, "lab")).finished
        held = lab.get(NAMESPACE, "lab")
        assert held["status"] == {"phase": "Terminating"}
        assert "finalizers" not in held["metadata"]

    async def test_lets_nobody_in_while_it_terminates(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        await lab.delete(NAMESPACE, "lab")
        with pytest.raises(Forbidden) as refused:
            await lab.create(LEASE, lease("a", metadata={"namespace": "lab"}))
        assert refused.value.message == (
            'leases.jumpstarter.dev "a" is forbidden: unable to create new content in'
            " namespace lab because it is being terminated"
        )

    async def test_cannot_be_freed_of_its_finalizer_by_an_update(self, lab: Lab) -> None:
        await lab.create(NAMESPACE, document(NAMESPACE, "lab"))
        after = await lab.update(NAMESPACE, document(NAMESPACE, "lab", spec={"finalizers": []}))
        assert after["spec"] == {"finalizers": ["kubernetes"]}

    @pytest.mark.parametrize("name", ["default", "kube-system"])
    async def test_that_always_is_cannot_be_deleted(self, lab: Lab, name: str) -> None:
        await lab.registry.ensure_namespaces(["kube-system"])
        with pytest.raises(Forbidden, match="this namespace may not be deleted"):
            await lab.delete(NAMESPACE, name)

    async def test_is_ensured_only_once(self, lab: Lab) -> None:
        before = lab.store.revision
        await lab.registry.ensure_namespaces(["default", "other"])
        assert lab.store.revision == before


async def test_stored_bytes_are_what_is_read(lab: Lab) -> None:
    written = await lab.registry.create(LEASE, "default", lease("a"), WriteOptions())
    entry = lab.store.get(LEASE.key("default", "a"))
    assert entry is not None
    assert entry.value == written.value == lab.registry.get(LEASE, "default", "a")
    assert encode(decode(entry.value)) == entry.value


class _Unlucky(MemoryStore):
    """A store that somebody else writes to, a few times, just before we do."""

    bad_luck = 0

    def put(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        self._have_bad_luck(expect)
        return super().put(key, encode, expect=expect)

    def delete(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        self._have_bad_luck(expect)
        return super().delete(key, encode, expect=expect)

    def _have_bad_luck(self, expect: int) -> None:
        if self.bad_luck:
            self.bad_luck -= 1
            raise Conflict("somebody was faster") if expect else AlreadyExists("taken")


class TestCollisionsInTheStore:
    @pytest.fixture
    async def unlucky(self) -> AsyncIterator[Lab]:
        store = _Unlucky()
        lab = Lab(store)
        await lab.registry.ensure_namespaces(["default"])
        await lab.create(LEASE, lease("a"))
        yield lab
        await store.close()

    async def update(self, lab: Lab) -> None:
        await lab.update(LEASE, lease("a", duration="2h"))

    async def edit(self, lab: Lab) -> None:
        labels = {"labels": {"x": "y"}}
        await lab.registry.edit(
            LEASE, "default", "a", lambda old: {**old, "metadata": {**old["metadata"], **labels}}
        )

    async def apply(self, lab: Lab) -> None:
        await lab.apply(LEASE, lease("a", duration="2h"), force=True)

    async def delete(self, lab: Lab) -> None:
        await lab.delete(LEASE, "a")

    @pytest.mark.parametrize("act", [update, edit, apply, delete])
    async def test_are_tried_again_a_bounded_number_of_times(
        self, unlucky: Lab, act: Callable[[object, Lab], Awaitable[None]]
    ) -> None:
        store = unlucky.store
        assert isinstance(store, _Unlucky)
        store.bad_luck = ATTEMPTS_MAX
        with pytest.raises(Conflict, match="the object has been modified"):
            await act(self, unlucky)
        assert store.bad_luck == 0
        store.bad_luck = ATTEMPTS_MAX - 1
        await act(self, unlucky)
        assert store.bad_luck == 0

    async def test_on_a_new_name_mean_that_it_is_taken(self, unlucky: Lab) -> None:
        store = unlucky.store
        assert isinstance(store, _Unlucky)
        store.bad_luck = 1
        with pytest.raises(AlreadyExists):
            await unlucky.create(LEASE, lease("b"))

    async def test_on_a_name_to_apply_to_are_tried_again(self, unlucky: Lab) -> None:
        store = unlucky.store
        assert isinstance(store, _Unlucky)
        store.bad_luck = 1
        assert (await unlucky.apply(LEASE, lease("b")))["metadata"]["name"] == "b"


async def test_a_write_whose_caller_left_still_happens() -> None:
    store = MemoryStore()
    lab = Lab(store)
    await lab.registry.ensure_namespaces(["default"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lab.create(LEASE, lease("a"))
    await asyncio.sleep(0)
    assert lab.exists(LEASE, "a")
    await store.close()


async def test_a_write_the_disk_refused_did_not_happen() -> None:
    store = MemoryStore()
    lab = Lab(store)
    await lab.registry.ensure_namespaces(["default"])
    await lab.create(CONFIG_MAP, document(CONFIG_MAP, "a"))
    new = document(CONFIG_MAP, "a", data={"x": "y"})
    change = asyncio.ensure_future(lab.update(CONFIG_MAP, new))
    again = asyncio.ensure_future(lab.update(CONFIG_MAP, new))
    asyncio.get_running_loop().call_soon(store.failed, "full")
    with pytest.raises(StorageFailed):
        await change
    assert (await again)["data"] == {"x": "y"}
    await store.close()
