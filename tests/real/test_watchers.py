"""Many watchers, many writers, and a service that is killed: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
import pytest
import yaml

from support.real_service import Service

pytestmark = [pytest.mark.real, pytest.mark.slow]

WATCHERS = 1_000
WRITERS = 16
WRITES_EACH = 25
BYTES_PER_WATCHER_MAX = 200 * 1024
"""Far above what one takes (some 60 KB with TLS), far below a leak of events."""

KILLS = 20
COLLECTION = "/api/v1/namespaces/default/configmaps"


@contextlib.asynccontextmanager
async def session(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    config = yaml.safe_load((service.data / "kubeconfig").read_text())
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    context = ssl.create_default_context(cafile=str(service.data / "pki" / "ca.crt"))
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        service.endpoints["apiserver"], headers=headers, connector=connector, timeout=timeout
    ) as found:
        yield found


def configmap(name: str, value: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"load": "yes"}},
        "data": {"value": value},
    }


async def put(http: aiohttp.ClientSession, name: str, value: str) -> int | None:
    """Write once; the revision if it was acknowledged, None if nobody answered."""
    url = f"{COLLECTION}/{name}?fieldManager=test&force=true"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    try:
        async with http.patch(url, json=configmap(name, value), headers=headers) as answer:
            body = await answer.json()
            assert answer.status in (200, 201), body
            return int(body["metadata"]["resourceVersion"])
    except aiohttp.ClientError:
        return None


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        yield json.loads(line)


def memory(service: Service) -> int:
    assert service.process is not None
    found: int = psutil.Process(service.process.pid).memory_info().rss
    return found


async def test_a_thousand_watchers_miss_nothing_and_cost_little(fresh_service: Service) -> None:
    service = fresh_service
    opened = asyncio.Semaphore(0)
    total = WRITERS * WRITES_EACH

    async def watcher(http: aiohttp.ClientSession, since: str) -> list[int]:
        url = f"{COLLECTION}?watch=true&resourceVersion={since}&labelSelector=load%3Dyes"
        seen: list[int] = []
        async with http.get(url) as answer:
            opened.release()
            async for event in lines(answer):
                seen.append(int(event["object"]["metadata"]["resourceVersion"]))
                if len(seen) == total:
                    return seen
        return seen

    async with session(service) as http:
        async with http.get(COLLECTION) as answer:
            since = (await answer.json())["metadata"]["resourceVersion"]
        before = memory(service)
        async with asyncio.TaskGroup() as tasks:
            watchers = [tasks.create_task(watcher(http, since)) for _ in range(WATCHERS)]
            for _ in range(WATCHERS):
                await opened.acquire()
            idle = memory(service)

            async def writer(number: int) -> list[int | None]:
                name = f"w{number}"
                return [await put(http, name, str(i)) for i in range(WRITES_EACH)]

            writers = [tasks.create_task(writer(i)) for i in range(WRITERS)]
        written = sorted(r for task in writers for r in task.result() if r is not None)
        assert len(written) == total
        for task in watchers:
            assert task.result() == written
        after = memory(service)
    assert (idle - before) / WATCHERS < BYTES_PER_WATCHER_MAX
    assert (after - before) / WATCHERS < BYTES_PER_WATCHER_MAX


async def test_a_killed_service_keeps_its_word_to_writers_and_watchers(
    fresh_service: Service,
) -> None:
    service = fresh_service
    chance = random.Random(2026)
    promised: dict[str, dict[int, str]] = {f"k{i}": {} for i in range(8)}
    seen: list[tuple[int, str, str]] = []
    async with session(service) as http, http.get(COLLECTION) as answer:
        position = int((await answer.json())["metadata"]["resourceVersion"])

    for number in range(KILLS):
        async with session(service) as http, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(http, position, seen))
            for name in promised:
                tasks.create_task(_write_until_dead(http, name, number, promised[name]))
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            assert service.process is not None
            service.process.send_signal(signal.SIGKILL)
            service.process.wait()
            watching.cancel()
        position = seen[-1][0] if seen else position
        await asyncio.to_thread(service.start)

    async with session(service) as http:
        async with asyncio.timeout(20):
            newest = max(max(found) for found in promised.values() if found)
            while not seen or seen[-1][0] < newest:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await _watch(http, seen[-1][0] if seen else position, seen)
        async with http.get(f"{COLLECTION}?labelSelector=load%3Dyes") as answer:
            items = (await answer.json())["items"]
    revisions = [revision for revision, _, _ in seen]
    assert revisions == sorted(set(revisions)), "an event came twice or out of order"
    by_revision = {revision: (name, value) for revision, name, value in seen}
    state = {item["metadata"]["name"]: item for item in items}
    assert any(promised.values())
    for name, found in promised.items():
        for revision, value in found.items():
            assert by_revision[revision] == (name, value), "an acknowledged write was lost"
        if found:
            assert int(state[name]["metadata"]["resourceVersion"]) >= max(found)


async def _write_until_dead(
    http: aiohttp.ClientSession, name: str, number: int, promised: dict[int, str]
) -> None:
    for count in range(100_000):
        value = f"{number}-{count}"
        revision = await put(http, name, value)
        if revision is None:
            return
        promised[revision] = value


async def _watch(http: aiohttp.ClientSession, since: int, seen: list[tuple[int, str, str]]) -> None:
    url = f"{COLLECTION}?watch=true&resourceVersion={since}&labelSelector=load%3Dyes"
    with contextlib.suppress(aiohttp.ClientError):
        async with http.get(url) as answer:
            async for event in lines(answer):
                item = event["object"]
                meta = item["metadata"]
                seen.append((int(meta["resourceVersion"]), meta["name"], item["data"]["value"]))
