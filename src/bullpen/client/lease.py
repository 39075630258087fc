"""Leases an exporter: asks, waits with progress, and gives it back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jumpstarter_protocol import client_pb2

from bullpen.client.connection import Connection, our_errors
from bullpen.errors import LabError, LeaseRefused, NotFound, TimedOut

ASK_AGAIN_SECONDS = 1.0
"""Between two questions, if the service does not hold the first one open."""

LOOK_SECONDS = 5.0
"""How often a held lease is looked at."""

RELEASE_SECONDS_MAX = 10.0

IDLE_TAG, IDLE_TIMEOUT = "idle-timeout", "1m"
"""A client that is killed holds no connection, and its lease ends after this time."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to lease."""

    selector: str = ""
    exporter: str = ""
    duration: timedelta = timedelta(minutes=30)
    timeout: timedelta = timedelta(hours=2)
    """How long to wait for the exporter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    name: str
    exporter: str
    labels: tuple[tuple[str, str], ...] = ()


class Leases:
    """The leases of one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._config = connection.config
        self.namespace = connection.config.namespace
        self._caller = connection.caller

    @contextlib.asynccontextmanager
    async def held(self, wanted: Wanted, progress: Progress) -> AsyncIterator[HeldLease]:
        """A lease that is released in the end, whatever happens."""
        lease = await self.create(wanted, tags={IDLE_TAG: IDLE_TIMEOUT})
        try:
            yield await self.wait(lease, timeout=wanted.timeout, progress=progress)
        finally:
            # The command may end by cancellation; the lease is given back all the same.
            await asyncio.shield(asyncio.ensure_future(self._give_back(lease.name)))

    @contextlib.asynccontextmanager
    async def joined(
        self, name: str, *, timeout: timedelta, progress: Progress
    ) -> AsyncIterator[HeldLease]:
        """A lease that exists, once it has its exporter; it goes on afterwards."""
        lease = await self._get(f"namespaces/{self.namespace}/leases/{name}")
        yield await self.wait(lease, timeout=timeout, progress=progress)

    @contextlib.asynccontextmanager
    async def withdrawn_on_error(self, wanted: Wanted) -> AsyncIterator[Any]:
        """A lease that is released only if waiting for it does not succeed."""
        lease = await self.create(wanted)
        try:
            yield lease
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._give_back(lease.name)))
            raise

    async def create(self, wanted: Wanted, *, tags: dict[str, str] | None = None) -> Any:
        """Ask for an exporter; the lease as the service answers."""
        lease = client_pb2.Lease(
            selector=wanted.selector, exporter_name=wanted.exporter or None, tags=tags or {}
        )
        lease.duration.FromTimedelta(wanted.duration)
        request = client_pb2.CreateLeaseRequest(
            parent=f"namespaces/{self._config.namespace}", lease=lease
        )
        with our_errors(self._config.endpoint):
            return await self._connection.client.CreateLease(request, metadata=self._caller)

    async def wait(self, lease: Any, *, timeout: timedelta, progress: Progress) -> HeldLease:
        """Wait until the lease has its exporter. Raises ``LeaseRefused`` and ``TimedOut``."""
        reason = "no answer yet"
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while True:
                    reason, ready = judged(lease)
                    if ready:
                        return await self._held(lease)
                    progress(reason)
                    lease = await self._next(lease.name)
        except TimeoutError:
            seconds = timeout.total_seconds()
            raise TimedOut(f"no exporter was free within {seconds:g} s: {reason}") from None

    async def ended(self, name: str) -> str:
        """Return why the lease has ended, once it has."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(LabError):
                try:
                    lease = await self._get(name)
                except NotFound:
                    return "it was deleted"
                last = lease.conditions[-1] if lease.conditions else None
                if last is not None and last.type == "Ready" and last.status == "False":
                    return str(last.message or last.reason)

    async def _next(self, name: str) -> Any:
        """The lease after its next change; a service that does not wait is not asked too often."""
        began = asyncio.get_running_loop().time()
        lease = await self._get(name)
        if not judged(lease)[1] and asyncio.get_running_loop().time() - began < ASK_AGAIN_SECONDS:
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        return lease

    async def _get(self, name: str) -> Any:
        with our_errors(self._config.endpoint):
            request = client_pb2.GetLeaseRequest(name=name)
            return await self._connection.client.GetLease(request, metadata=self._caller)

    async def _held(self, lease: Any) -> HeldLease:
        request = client_pb2.GetExporterRequest(name=lease.exporter)
        with our_errors(self._config.endpoint):
            exporter = await self._connection.client.GetExporter(request, metadata=self._caller)
        return HeldLease(
            name=lease.name.rpartition("/")[2],
            exporter=lease.exporter.rpartition("/")[2],
            labels=tuple(sorted(exporter.labels.items())),
        )

    async def _give_back(self, name: str) -> None:
        # The lease may have ended, and the service may be away: its idle time-out ends it then.
        with contextlib.suppress(LabError, TimeoutError), our_errors(self._config.endpoint):
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                request = client_pb2.DeleteLeaseRequest(name=name)
                await self._connection.client.DeleteLease(request, metadata=self._caller)


def judged(lease: Any) -> tuple[str, bool]:
    """What is said about a lease, and whether it is ready. Raises ``LeaseRefused``."""
    found = {condition.type: condition for condition in lease.conditions}
    for kind in ("Unsatisfiable", "Invalid"):
        if kind in found and found[kind].status == "True":
            raise LeaseRefused(found[kind].message or found[kind].reason)
    ready, pending = found.get("Ready"), found.get("Pending")
    if ready is not None and ready.status == "True":
        return "", True
    if ready is not None:
        raise LeaseRefused(f"the lease has ended: {ready.message or ready.reason}")
    if pending is not None:
        return str(pending.message or pending.reason), False
    return "it begins later" if lease.begin_time.seconds else "no answer yet", False
