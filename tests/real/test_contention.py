"""Many who want the same: never doubled, never stuck, everyone served in turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from exporter_fake import running_fakes

from support.grpc_caller import Caller, calling
from support.lab_helpers import GROUP, Lab
from support.real_service import Service, eventually

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROUNDS = 25
CLIENTS, EXPORTERS, LEASES_EACH = 30, 10, 3


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


class Order:
    """In which order leases came and in which they were served, from the server's own watch."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.served: list[str] = []
        self.where: dict[str, str] = {}

    def see(self, lease: dict[str, dict[str, dict[str, str]]]) -> None:
        name = str(lease["metadata"]["name"])
        if name not in self.came:
            self.came.append(name)
        held = lease["status"].get("exporterRef")
        if held and name not in self.where:
            self.served.append(name)
            self.where[name] = held["name"]


@contextlib.contextmanager
def watching(lab: Lab, namespace: str) -> Iterator[Order]:
    order = Order()
    reader = lab.watch(f"{GROUP}/namespaces/{namespace}/leases")

    def follow() -> None:
        for line in reader:
            order.see(json.loads(line)["object"])

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield order
    finally:
        reader.close()
        thread.join()


@contextlib.asynccontextmanager
async def callers(*configs: Path) -> AsyncIterator[list[Caller]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(calling(config)) for config in configs]


async def test_04_fifty_leases_in_a_row_by_two_clients_on_one_exporter(lab: Lab) -> None:
    """With the real exporter: each lease reaches it, and it serves one at a time."""
    configs = [lab.client("fifty-a"), lab.client("fifty-b")]
    board = lab.exporter("fifty", {"board": "fifty"})
    holding: set[str] = set()
    waits: list[float] = []
    dials: list[float] = []
    released = 0.0

    async def use(caller: Caller) -> None:
        nonlocal released
        for _ in range(ROUNDS):
            name = await caller.create_lease("board=fifty")
            await caller.acquired(name)
            ready = time.monotonic()
            if released:
                waits.append(ready - released)
            assert not holding, f"{name} was given out while {holding} was"
            holding.add(name)
            async with caller.tunnel(await caller.dial(name)) as stream:
                dials.append(time.monotonic() - ready)
                assert (await stream.read()).payload, "the exporter's own server greets"
            holding.remove(name)
            released = time.monotonic()
            await caller.delete_lease(name)

    with lab.running(board):
        with watching(lab, "default") as order:
            async with callers(*configs) as two, asyncio.timeout(200):
                await asyncio.gather(*(use(caller) for caller in two))
            eventually(lambda: len(order.served) == 2 * ROUNDS, what="every lease being seen")
        log = board.with_suffix(".log").read_text()
        assert log.count("Starting new lease") == 2 * ROUNDS
        eventually(lambda: lab.status("fifty") == "Available", what="it being free")
    assert order.served == order.came, "somebody was served out of turn"
    print(
        f"released to ready: median {statistics.median(waits) * 1000:.0f} ms,"
        f" longest {max(waits) * 1000:.0f} ms; ready to dialled: median"
        f" {statistics.median(dials) * 1000:.0f} ms"
    )


async def test_thirty_clients_on_ten_exporters(lab: Lab, service: Service) -> None:
    """Each exporter is told of one lease at a time; everyone is served, and in turn."""
    service.kubectl("create", "namespace", "rush")
    clients = [lab.client(f"c{n:02d}", namespace="rush") for n in range(CLIENTS)]
    boards = [lab.exporter(f"e{n}", {"board": "x"}, namespace="rush") for n in range(EXPORTERS)]
    holders: dict[str, str] = {}

    async def use(caller: Caller) -> None:
        for _ in range(LEASES_EACH):
            name = await caller.create_lease("board=x")
            lease = await caller.acquired(name)
            exporter = str(lease.exporter).rpartition("/")[2]
            assert exporter not in holders, f"{exporter} has {holders[exporter]} and {name}"
            holders[exporter] = name
            async with caller.tunnel(await caller.dial(name)) as stream:
                assert (await stream.read()).payload == f"{exporter} {name}".encode()
            del holders[exporter]
            await caller.delete_lease(name)

    start = time.monotonic()
    with watching(lab, "rush") as order:
        async with running_fakes(*boards) as fakes, callers(*clients) as all_clients:
            async with asyncio.timeout(90):
                await asyncio.gather(*(use(caller) for caller in all_clients))
            spent = time.monotonic() - start
        total = CLIENTS * LEASES_EACH
        eventually(lambda: len(order.served) == total, what="every lease being seen")
    assert not [wrong for fake in fakes for wrong in fake.wrongs]
    served = [lease for fake in fakes for lease, _ in fake.served]
    assert len(served) == len(set(served)) == total
    assert Counter(client for fake in fakes for _, client in fake.served) == {
        f"c{n:02d}": LEASES_EACH for n in range(CLIENTS)
    }
    place = {name: number for number, name in enumerate(order.came)}
    # Those that get an exporter in the same moment are written down in any order.
    early = [name for turn, name in enumerate(order.served) if place[name] >= turn + EXPORTERS]
    assert not early, "somebody was served before those who had come before"
    print(f"{total} leases of {CLIENTS} clients on {EXPORTERS} exporters in {spent:.1f} s")
