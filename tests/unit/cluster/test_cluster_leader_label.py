"""The label that a Service selects is on the leader's Pod, and on no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bullpen.api.meta import ObjectMeta
from bullpen.api.pod import CLUSTER_RESOURCES, LEADER, Pod
from bullpen.cluster import leader_label
from bullpen.cluster.leader_label import LeaderLabel
from bullpen.errors import Forbidden
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.sqlite import SqliteStore


class Home(RegistryObjects):
    """Objects that can refuse a number of labels."""

    refusals = 0

    async def apply(self, value):  # type: ignore[no-untyped-def]
        if self.refusals:
            self.refusals -= 1
            raise Forbidden("no right to patch pods")
        return await super().apply(value)


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[Home]:
    store = await SqliteStore.open(tmp_path / "state.db")
    registry = Registry(store, clock=SystemClock(), ids=RandomIds(), resources=CLUSTER_RESOURCES)
    await registry.ensure_namespaces(("lab",))
    home = Home(registry, manager="bullpen-controller")
    for name in ("a", "b", "c"):
        await home.create(Pod(metadata=ObjectMeta(name=name, namespace="lab", labels={"x": "y"})))
    yield home
    await store.close()


def label(objects: Home, pod: str) -> LeaderLabel:
    return LeaderLabel(objects, namespace="lab", pod=pod, leadership="bullpen-controller")


async def labelled(objects: Home) -> list[str]:
    found = [await objects.get(Pod, "lab", name) for name in ("a", "b", "c")]
    assert all(pod.metadata.labels["x"] == "y" for pod in found), "other labels stay"
    return [pod.metadata.name for pod in found if LEADER in pod.metadata.labels]


async def test_the_label_moves_with_the_leadership(objects: Home) -> None:
    for leader in ("a", "b", "b", "c"):
        await label(objects, leader).move_here()
        assert await labelled(objects) == [leader]


async def test_a_restarted_process_removes_what_it_left_and_nothing_else(objects: Home) -> None:
    await label(objects, "a").move_here()
    await label(objects, "b").remove()
    assert await labelled(objects) == ["a"]
    await label(objects, "a").remove()
    assert await labelled(objects) == []


async def test_outside_a_pod_nothing_is_labelled(objects: Home) -> None:
    async with asyncio.timeout(10):
        await label(objects, "").move_here()
        await label(objects, "").remove()
    assert await labelled(objects) == []


async def test_a_refusal_is_logged_once_and_the_label_set_later(
    objects: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_label, "RETRY_SECONDS", 0.0)
    objects.refusals = 3
    await label(objects, "a").move_here()
    assert await labelled(objects) == ["a"]
    refused = [r for r in caplog.records if "has no label" in r.message]
    assert len(refused) == 1


async def test_a_pod_that_is_gone_keeps_nobody_from_starting(objects: Home) -> None:
    await label(objects, "gone").remove()
