"""An exporter without drivers, spoken as a gRPC client of the controller.

Ten real ones would need twenty processes and more than a gigabyte, and a minute of two
cores to start, for a test that is about who gets what and not about targets. This one
says and hears exactly what ``jmp run`` does around a lease, and checks what it hears:
it is told of one lease at a time, and of its end before the next. The real exporter takes
part in the test of fifty leases in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from jumpstarter_protocol import jumpstarter_pb2

from support.grpc_caller import Caller, calling, frame

AVAILABLE, LEASE_READY = 2, 4


class FakeExporter:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.name = caller.name
        self.served: list[tuple[str, str]] = []
        """Lease and client, in the order it was told."""

        self.holding = ""
        self.wrongs: list[str] = []

    async def run(self) -> None:
        """Register and serve until cancelled."""
        report = jumpstarter_pb2.DriverInstanceReport(
            uuid="0", labels={"jumpstarter.dev/client": "x"}
        )
        await self._caller.controller("Register", reports=[report])
        await self._report(AVAILABLE)
        async with asyncio.TaskGroup() as tasks:
            listening: asyncio.Task[None] | None = None
            async for status in self._caller.stream("Status"):
                if status.leased:
                    self._take(status.lease_name, status.client_name)
                    listening = tasks.create_task(self._listen(status.lease_name))
                    await self._report(LEASE_READY)
                elif self.holding:
                    self.holding = ""
                    assert listening is not None
                    listening.cancel()
                    await self._report(AVAILABLE)

    def _take(self, lease: str, client: str) -> None:
        if self.holding:
            self.wrongs.append(f"{self.name} was given {lease} while it held {self.holding}")
        self.holding = lease
        self.served.append((lease, client))

    async def _report(self, status: int) -> None:
        await self._caller.controller("ReportStatus", status=status)

    async def _listen(self, lease: str) -> None:
        """Answer every call with one frame that names this exporter and the lease."""
        async with asyncio.TaskGroup() as tasks:
            async for call in self._caller.stream("Listen", lease_name=lease):
                tasks.create_task(self._answer(call, lease))

    async def _answer(self, call: Any, lease: str) -> None:
        try:
            async with self._caller.tunnel(call) as stream:
                await stream.write(frame(f"{self.name} {lease}".encode()))
                await stream.done_writing()
                await stream.read()
        except grpc.aio.AioRpcError as error:
            # The lease may end between the call and the answer to it.
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise


@contextlib.asynccontextmanager
async def running_fakes(*configs: Path) -> AsyncIterator[list[FakeExporter]]:
    """One exporter per config, until the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(calling(c, "Exporter")) for c in configs]
        fakes = [FakeExporter(caller) for caller in callers]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(fake.run()) for fake in fakes]
            try:
                yield fakes
            finally:
                for task in running:
                    task.cancel()
