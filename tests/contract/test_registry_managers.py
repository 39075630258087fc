"""Server-side apply, field managers and scale through the registry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.paths import Document, decode, encode
from bullpen.errors import BadRequest, Conflict, Invalid, NotFound
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.store.base import Store
from support.registry_helpers import (
    CONFIG_MAP,
    LEASE,
    SECRET,
    SET,
    Lab,
    document,
    exporter_set,
    lease,
)


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default"])
    return made


def config(name: str = "a", /, **data: str) -> Document:
    return document(CONFIG_MAP, name, data=data)


def managers(found: Document) -> dict[tuple[str, str, str], Any]:
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): entry["fieldsV1"]
        for entry in found["metadata"]["managedFields"]
    }


class TestManagers:
    async def test_own_what_they_create(self, lab: Lab) -> None:
        made = await lab.create(CONFIG_MAP, config(x="1"), field_manager="me")
        (entry,) = made["metadata"]["managedFields"]
        assert entry == {
            "manager": "me",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:x": {}}},
        }

    async def test_take_over_what_they_change_and_only_that(self, lab: Lab) -> None:
        await lab.create(CONFIG_MAP, config(x="1", y="1"), field_manager="me")
        after = await lab.update(CONFIG_MAP, config(x="2", y="1"), field_manager="you")
        assert managers(after) == {
            ("me", "Update", ""): {"f:data": {".": {}, "f:y": {}}},
            ("you", "Update", ""): {"f:data": {"f:x": {}}},
        }

    async def test_of_status_are_kept_apart(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"), field_manager="me")
        status = {"status": {"ended": True}}
        after = await lab.patch(
            LEASE, "a", PatchType.MERGE, status, field_manager="me", subresource="status"
        )
        assert managers(after)["me", "Update", "status"] == {"f:status": {"f:ended": {}}}
        assert "f:status" not in managers(after)["me", "Update", ""]

    async def test_are_unknown_when_they_do_not_say_who_they_are(self, lab: Lab) -> None:
        made = await lab.create(CONFIG_MAP, config(x="1"))
        assert list(managers(made)) == [("unknown", "Update", "")]

    async def test_survive_a_client_that_drops_them(self, lab: Lab) -> None:
        made = await lab.create(CONFIG_MAP, config(x="1"), field_manager="me")
        after = await lab.update(CONFIG_MAP, config(x="1", y="1"), field_manager="you")
        assert ("me", "Update", "") in managers(after)
        broken = {**made["metadata"], "resourceVersion": "", "managedFields": [{"manager": "x"}]}
        after = await lab.update(CONFIG_MAP, {**made, "metadata": broken}, field_manager="you")
        assert ("me", "Update", "") in managers(after)

    async def test_can_be_handed_in_by_a_client(self, lab: Lab) -> None:
        """kubectl renames its own claims this way when it moves to server-side apply."""
        made = await lab.create(CONFIG_MAP, config(x="1"), field_manager="old")
        entry = {**made["metadata"]["managedFields"][0], "manager": "new", "operation": "Apply"}
        patch: list[Document] = [
            {"op": "replace", "path": "/metadata/managedFields", "value": [entry]},
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": made["metadata"]["resourceVersion"],
            },
        ]
        after = await lab.patch(CONFIG_MAP, "a", PatchType.JSON, patch, field_manager="old")
        assert list(managers(after)) == [("new", "Apply", "")]

    async def test_cannot_be_handed_in_with_a_status(self, lab: Lab) -> None:
        made = await lab.create(LEASE, lease("a"), field_manager="me")
        forged = {**made["metadata"], "managedFields": [{}]}
        asked = {**made, "metadata": forged, "status": {"ended": True}}
        after = await lab.update(LEASE, asked, field_manager="you", subresource="status")
        assert set(managers(after)) == {("me", "Update", ""), ("you", "Update", "status")}

    async def test_can_be_forgotten(self, lab: Lab) -> None:
        await lab.create(CONFIG_MAP, config(x="1"), field_manager="me")
        patch: Document = {"metadata": {"managedFields": [{}]}}
        after = await lab.patch(CONFIG_MAP, "a", PatchType.MERGE, patch)
        assert after["metadata"]["managedFields"] == []


class TestApply:
    async def test_creates_what_is_not_there(self, lab: Lab) -> None:
        made = await lab.apply(CONFIG_MAP, config(x="1"))
        assert made["data"] == {"x": "1"}
        assert managers(made) == {("applier", "Apply", ""): {"f:data": {"f:x": {}}}}

    async def test_says_whether_it_created(self, lab: Lab) -> None:
        options = WriteOptions(field_manager="m")
        place = (CONFIG_MAP, "default", "a", PatchType.APPLY, config(x="1"), options)
        assert (await lab.registry.patch(*place)).created
        assert not (await lab.registry.patch(*place)).created

    async def test_twice_is_once(self, lab: Lab) -> None:
        made = await lab.apply(LEASE, lease("a"))
        lab.clock.advance(timedelta(minutes=5))
        before = lab.store.revision
        assert await lab.apply(LEASE, lease("a")) == made
        assert lab.store.revision == before

    async def test_removes_what_it_no_longer_states(self, lab: Lab) -> None:
        await lab.apply(CONFIG_MAP, config(x="1", y="1"))
        assert (await lab.apply(CONFIG_MAP, config(x="1")))["data"] == {"x": "1"}

    async def test_removes_the_last_label(self, lab: Lab) -> None:
        await lab.apply(LEASE, lease("a", metadata={"labels": {"x": "y"}}))
        after = await lab.apply(LEASE, lease("a"))
        assert after["metadata"]["name"] == "a"
        assert "labels" not in after["metadata"]

    async def test_leaves_what_others_own(self, lab: Lab) -> None:
        await lab.apply(CONFIG_MAP, config(x="1", y="1"))
        await lab.apply(CONFIG_MAP, config(y="1", z="1"), field_manager="other")
        after = await lab.apply(CONFIG_MAP, config(x="1"))
        assert after["data"] == {"x": "1", "y": "1", "z": "1"}

    async def test_conflicts_with_another_manager(self, lab: Lab) -> None:
        spec = {**lease("a")["spec"], "release": False}
        await lab.create(LEASE, lease("a", spec=spec), field_manager="kubectl-client-side-apply")
        with pytest.raises(Conflict) as refused:
            await lab.apply(LEASE, lease("a", duration="2h"))
        assert refused.value.message == (
            'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply"'
            " using jumpstarter.dev/v1alpha1: .spec.duration"
        )
        (cause,) = refused.value.causes
        assert (cause.reason, cause.field) == ("FieldManagerConflict", ".spec.duration")
        asked = {**spec, "duration": "2h", "release": True}
        with pytest.raises(Conflict) as refused:
            await lab.apply(LEASE, lease("a", spec=asked))
        assert refused.value.message == (
            "Apply failed with 2 conflicts: conflicts with"
            ' "kubectl-client-side-apply" using jumpstarter.dev/v1alpha1:\n'
            "- .spec.duration\n- .spec.release"
        )

    async def test_by_force_takes_the_field(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"), field_manager="other")
        after = await lab.apply(LEASE, lease("a", duration="2h"), force=True)
        assert after["spec"]["duration"] == "2h"
        assert "f:duration" not in managers(after)["other", "Update", ""]["f:spec"]
        assert "f:duration" in managers(after)["applier", "Apply", ""]["f:spec"]

    async def test_of_the_same_value_is_shared(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"), field_manager="other")
        after = await lab.apply(LEASE, lease("a"))
        for who in (("other", "Update", ""), ("applier", "Apply", "")):
            assert "f:duration" in managers(after)[who]["f:spec"]

    async def test_of_kubectl_takes_over_what_it_applied_on_the_client(self, lab: Lab) -> None:
        stated = lease("a")
        annotation = {"kubectl.kubernetes.io/last-applied-configuration": encode(stated).decode()}
        made = lease("a", metadata={"annotations": annotation})
        await lab.create(LEASE, made, field_manager="kubectl-client-side-apply")
        changed = lease("a", duration="2h")
        after = await lab.apply(LEASE, changed, field_manager="kubectl")
        assert after["spec"]["duration"] == "2h"
        kept = after["metadata"]["annotations"].popitem()[1]
        assert decode(kept.encode())["spec"]["duration"] == "2h"
        await lab.patch(
            LEASE, "a", PatchType.MERGE, {"spec": {"duration": "3h"}}, field_manager="x"
        )
        with pytest.raises(Conflict):
            await lab.apply(LEASE, changed, field_manager="kubectl")

    async def test_needs_a_manager(self, lab: Lab) -> None:
        with pytest.raises(Invalid, match="fieldManager: Required value"):
            await lab.apply(LEASE, lease("a"), field_manager="")

    async def test_must_not_say_who_manages_what(self, lab: Lab) -> None:
        with pytest.raises(BadRequest, match=r"metadata\.managedFields must be nil"):
            await lab.apply(LEASE, lease("a", metadata={"managedFields": []}))

    async def test_of_another_name_or_kind_is_refused(self, lab: Lab) -> None:
        for wrong in (lease("b"), document(SECRET, "a"), 5):
            with pytest.raises(BadRequest):
                await lab.patch(LEASE, "a", PatchType.APPLY, wrong, field_manager="m")

    async def test_keeps_to_a_stated_version_and_uid(self, lab: Lab) -> None:
        with pytest.raises(Conflict, match="uid mismatch"):
            await lab.apply(LEASE, lease("a", metadata={"uid": "x"}))
        await lab.create(LEASE, lease("a"))
        for wrong in ({"uid": "x"}, {"resourceVersion": "1"}):
            with pytest.raises(Conflict):
                await lab.apply(LEASE, lease("a", metadata=wrong))

    async def test_of_status_touches_only_status(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"), field_manager="me")
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        asked = lease("a", duration="9h", status={"ended": False, "conditions": [condition]})
        after = await lab.apply(LEASE, asked, subresource="status")
        assert after["spec"]["duration"] == "1h"
        assert after["status"]["conditions"] == [condition]
        fields = managers(after)["applier", "Apply", "status"]
        assert set(fields) == {"f:status"}
        assert 'k:{"type":"Ready"}' in fields["f:status"]["f:conditions"]
        gone = await lab.apply(LEASE, lease("a", status={"ended": False}), subresource="status")
        assert gone["status"]["conditions"] == []

    async def test_of_the_object_ignores_a_stated_status(self, lab: Lab) -> None:
        made = await lab.apply(LEASE, lease("a", status={"ended": True}))
        assert made["status"]["ended"] is False
        assert "f:status" not in managers(made)["applier", "Apply", ""]

    async def test_of_a_status_needs_an_object(self, lab: Lab) -> None:
        with pytest.raises(NotFound):
            await lab.apply(LEASE, lease("a"), subresource="status")


class TestScale:
    async def test_shows_the_object_as_a_scale(self, lab: Lab) -> None:
        made = await lab.create(SET, exporter_set("a", maxReplicas=3))
        found = decode(lab.registry.get(SET, "default", "a", subresource="scale"))
        assert (found["kind"], found["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert found["spec"] == {"replicas": 3}
        assert found["status"]["replicas"] == 0
        for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp"):
            assert found["metadata"][key] == made["metadata"][key]

    @pytest.mark.parametrize("kind", [PatchType.MERGE, PatchType.APPLY, None])
    async def test_scales(self, lab: Lab, kind: PatchType | None) -> None:
        made = await lab.create(SET, exporter_set("a", maxReplicas=3))
        asked = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": "a"},
            "spec": {"replicas": 5},
        }
        options = {
            "field_manager": "scaler",
            "subresource": "scale",
            "force": kind is PatchType.APPLY,
        }
        if kind is None:
            shown = await lab.update(SET, asked, name="a", **options)
        else:
            shown = await lab.patch(SET, "a", kind, asked, **options)
        after = lab.get(SET, "a")
        assert shown["spec"] == {"replicas": 5}
        assert after["spec"] == {**made["spec"], "maxReplicas": 5}
        assert after.get("status") == made.get("status")
        assert after["metadata"]["generation"] == 2
        operation = "Apply" if kind is PatchType.APPLY else "Update"
        claimed = managers(after)["scaler", operation, "scale"]
        assert claimed == {"f:spec": {"f:maxReplicas": {}}}

    async def test_keeps_to_a_stated_version(self, lab: Lab) -> None:
        await lab.create(SET, exporter_set("a"))
        stale = decode(lab.registry.get(SET, "default", "a", subresource="scale"))
        await lab.update(SET, exporter_set("a", maxReplicas=9))
        with pytest.raises(Conflict):
            await lab.update(SET, stale, subresource="scale")

    @pytest.mark.parametrize(
        ("patch", "error"),
        [
            pytest.param({"spec": {"replicas": -1}}, Invalid, id="a negative size"),
            pytest.param({"spec": {"replicas": "many"}}, BadRequest, id="a size that is no number"),
            pytest.param({"spec": []}, BadRequest, id="a spec that is none"),
            pytest.param({"kind": "ExporterSet"}, BadRequest, id="something else than a scale"),
        ],
    )
    async def test_refuses(self, lab: Lab, patch: Document, error: type[Exception]) -> None:
        await lab.create(SET, exporter_set("a"))
        with pytest.raises(error):
            await lab.patch(SET, "a", PatchType.MERGE, patch, subresource="scale")

    @pytest.mark.parametrize("kind", [None, PatchType.MERGE, PatchType.APPLY])
    @pytest.mark.parametrize("ceiling", [4, 0])
    async def test_refuses_zero_and_names_both_things_it_could_mean(
        self, lab: Lab, kind: PatchType | None, ceiling: int
    ) -> None:
        given = exporter_set("a")
        await lab.create(SET, {**given, "spec": {**given["spec"], "maxReplicas": ceiling}})
        scale = decode(lab.registry.get(SET, "default", "a", subresource="scale"))
        scale["spec"]["replicas"] = 0
        patch = {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": 0}}
        options = {"subresource": "scale", "field_manager": "scaler"}
        said = r"set spec\.paused to true .* set spec\.maxReplicas to 0"
        with pytest.raises(Invalid, match=said):
            await (
                lab.patch(SET, "a", kind, patch, **options)
                if kind is not None
                else lab.update(SET, scale, **options)
            )
        assert lab.get(SET, "a")["spec"]["maxReplicas"] == ceiling

    async def test_is_not_found_where_nothing_scales(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        with pytest.raises(NotFound):
            lab.registry.get(LEASE, "default", "a", subresource="scale")
