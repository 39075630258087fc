"""The API driven by a client nobody here wrote: kubernetes_asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client import ApiClient, ApiException

from support.real_service import Service

pytestmark = pytest.mark.real

GROUP, VERSION, NAMESPACE = "jumpstarter.dev", "v1alpha1", "default"
EXPORTERS = (GROUP, VERSION, NAMESPACE, "exporters")


@contextlib.asynccontextmanager
async def connected(service: Service) -> AsyncIterator[ApiClient]:
    settings = client.Configuration()
    await config.load_kube_config(
        config_file=str(service.data / "kubeconfig"), client_configuration=settings
    )
    async with ApiClient(settings) as api:
        yield api


def exporter(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Exporter",
        "metadata": {"name": name, "labels": labels},
        "spec": {"enabled": True},
    }


async def test_typed_core_objects_live_and_die(service: Service) -> None:
    async with connected(service) as api:
        core = client.CoreV1Api(api)
        space = client.V1Namespace(metadata=client.V1ObjectMeta(name="typed"))
        await core.create_namespace(space)
        secret = client.V1Secret(
            metadata=client.V1ObjectMeta(name="s"), string_data={"user": "alice"}
        )
        made = await core.create_namespaced_secret("typed", secret)
        assert made.data == {"user": "YWxpY2U="}
        assert made.metadata.creation_timestamp is not None
        made.metadata.labels = {"a": "b"}
        changed = await core.replace_namespaced_secret("s", "typed", made)
        assert changed.metadata.labels == {"a": "b"}
        with pytest.raises(ApiException) as stale:
            await core.replace_namespaced_secret("s", "typed", made)
        assert stale.value.status == 409
        await core.delete_namespaced_secret("s", "typed")
        with pytest.raises(ApiException) as gone:
            await core.read_namespaced_secret("s", "typed")
        assert gone.value.status == 404
        await core.delete_namespace("typed")


async def test_a_lease_for_leader_election_is_taken_by_compare_and_set(service: Service) -> None:
    async with connected(service) as api:
        coordination = client.CoordinationV1Api(api)
        body = client.V1Lease(
            metadata=client.V1ObjectMeta(name="leader"),
            spec=client.V1LeaseSpec(holder_identity="a", lease_duration_seconds=15),
        )
        lease = await coordination.create_namespaced_lease(NAMESPACE, body)

        async def take(who: str) -> bool:
            mine = client.V1Lease(
                metadata=lease.metadata, spec=client.V1LeaseSpec(holder_identity=who)
            )
            try:
                await coordination.replace_namespaced_lease("leader", NAMESPACE, mine)
            except ApiException as error:
                return error.status != 409
            return True

        taken = await asyncio.gather(*(take(f"candidate-{i}") for i in range(8)))
        assert sum(taken) == 1
        await coordination.delete_namespaced_lease("leader", NAMESPACE)


async def test_paging_is_complete_and_of_one_snapshot(service: Service) -> None:
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)
        await asyncio.gather(
            *(
                objects.create_namespaced_custom_object(*EXPORTERS, exporter(f"page-{i:03}", p="1"))
                for i in range(250)
            )
        )
        seen: list[str] = []
        token = ""
        versions = set()
        while True:
            page = await objects.list_namespaced_custom_object(
                *EXPORTERS, label_selector="p=1", limit=40, _continue=token
            )
            seen += [item["metadata"]["name"] for item in page["items"]]
            versions.add(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
            # Changes between pages belong to another snapshot.
            name = f"late-{len(seen)}"
            await objects.create_namespaced_custom_object(*EXPORTERS, exporter(name, p="1"))
        assert seen == [f"page-{i:03}" for i in range(250)]
        assert len(versions) == 1
        await objects.delete_collection_namespaced_custom_object(*EXPORTERS, label_selector="p=1")


async def test_list_then_watch_sees_every_change_once_in_order(service: Service) -> None:
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)
        listed = await objects.list_namespaced_custom_object(*EXPORTERS, label_selector="w=1")
        version = listed["metadata"]["resourceVersion"]

        async def change() -> None:
            for i in range(20):
                await objects.create_namespaced_custom_object(*EXPORTERS, exporter(f"w-{i}", w="1"))
                await objects.patch_namespaced_custom_object(
                    *EXPORTERS, f"w-{i}", {"metadata": {"annotations": {"n": "1"}}},
                    _content_type="application/merge-patch+json",
                )  # fmt: skip
                await objects.delete_namespaced_custom_object(*EXPORTERS, f"w-{i}")

        async def follow(since: str, stop: int) -> list[tuple[str, str, int]]:
            found: list[tuple[str, str, int]] = []
            async with watch.Watch().stream(
                objects.list_namespaced_custom_object,
                *EXPORTERS,
                label_selector="w=1",
                resource_version=since,
                timeout_seconds=20,
            ) as events:
                async for event in events:
                    meta = event["object"]["metadata"]
                    found.append((event["type"], meta["name"], int(meta["resourceVersion"])))
                    if len([1 for kind, _, _ in found if kind == "DELETED"]) == stop:
                        break
            return found

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change())
            following = tasks.create_task(follow(version, 20))
        seen = following.result()
        revisions = [revision for _, _, revision in seen]
        assert revisions == sorted(set(revisions))
        for i in range(20):
            kinds = [kind for kind, name, _ in seen if name == f"w-{i}"]
            assert kinds[0] == "ADDED"
            assert kinds[-1] == "DELETED"
            assert set(kinds[1:-1]) == {"MODIFIED"}
        # A watcher that resumes in the middle sees exactly the rest.
        middle = seen[len(seen) // 2]
        again = await follow(
            str(middle[2]), sum(k == "DELETED" for k, _, r in seen if r > middle[2])
        )
        assert again == [event for event in seen if event[2] > middle[2]]


async def test_a_watch_from_a_compacted_revision_is_gone(service: Service) -> None:
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)
        stream = watch.Watch().stream(
            objects.list_namespaced_custom_object, *EXPORTERS, resource_version="999999999"
        )
        with pytest.raises(ApiException) as refused:
            await anext(stream)
        assert refused.value.status == 410


async def test_server_side_apply_owns_fields(service: Service) -> None:
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)

        async def apply(manager: str, force: bool = False, **labels: str) -> Any:
            body = exporter("applied", **labels)
            del body["spec"]
            return await objects.patch_namespaced_custom_object(
                *EXPORTERS, "applied", body, field_manager=manager, force=force,
                _content_type="application/apply-patch+yaml",
            )  # fmt: skip

        await apply("one", a="1", b="1")
        await apply("two", c="2")
        with pytest.raises(ApiException) as refused:
            await apply("two", a="2")
        assert refused.value.status == 409
        assert 'conflict with "one"' in json.loads(refused.value.body or "")["message"]
        forced = await apply("two", force=True, a="2", c="2")
        assert forced["metadata"]["labels"] == {"a": "2", "b": "1", "c": "2"}
        dropped = await apply("one", b="1")
        assert dropped["metadata"]["labels"] == {"a": "2", "b": "1", "c": "2"}
        dropped = await apply("two", c="2")
        assert dropped["metadata"]["labels"] == {"b": "1", "c": "2"}
        await objects.delete_namespaced_custom_object(*EXPORTERS, "applied")


async def test_status_and_scale_are_subresources(service: Service) -> None:
    pool = ("virtualtarget.jumpstarter.dev", VERSION, NAMESPACE, "exportersets")
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)
        body = {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "ExporterSet",
            "metadata": {"name": "pool"},
            "spec": {
                "virtualTargetClassName": "none",
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"drivers": []}},
            },
        }
        made = await objects.create_namespaced_custom_object(*pool, body)
        assert made["spec"]["maxReplicas"] == 4
        scale = await objects.get_namespaced_custom_object_scale(*pool, "pool")
        assert scale["kind"] == "Scale"
        scale["spec"]["replicas"] = 7
        # As kubectl does it: the pool's own controller writes its status meanwhile.
        del scale["metadata"]["resourceVersion"]
        await objects.replace_namespaced_custom_object_scale(*pool, "pool", scale)
        found = await objects.get_namespaced_custom_object(*pool, "pool")
        assert found["spec"]["maxReplicas"] == 7
        assert found["metadata"]["generation"] == 2
        await objects.delete_namespaced_custom_object(*pool, "pool")


async def test_garbage_gets_a_clear_refusal(service: Service) -> None:
    async with connected(service) as api:
        objects: Any = client.CustomObjectsApi(api)
        big = exporter("big")
        big["metadata"]["annotations"] = {"x": "y" * 300_000}
        for body, code in (
            ({"kind": "Exporter"}, 400),
            ({**exporter("x"), "kind": "Client"}, 400),
            ({**exporter("x"), "spec": "text"}, 422),
            (exporter("no spaces please"), 422),
            (big, 422),
        ):
            with pytest.raises(ApiException) as refused:
                await objects.create_namespaced_custom_object(*EXPORTERS, body)
            assert refused.value.status in (code, 413), refused.value.body
            assert json.loads(refused.value.body or "")["kind"] == "Status"
