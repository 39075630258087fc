"""Claims several targets: asks, waits with progress, connects to each, and gives all back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from bullpen.client.connection import Connection, our_errors
from bullpen.client.exporter import Exporter
from bullpen.client.lease import RELEASE_SECONDS_MAX, Progress
from bullpen.client.tunnel import Tunnel, dialling
from bullpen.errors import LabError, LeaseRefused, TimedOut, Unreachable
from bullpen.protocol import claims_pb2

REFUSALS = frozenset({"Unsatisfiable", "ClientNotFound", "QuotaExceeded", "ConfigTooLarge"})
"""Reasons for which waiting is of no use as things are."""

WATCH_AGAIN_SECONDS = 1.0
"""Before a claim is watched again whose watch was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target of a claim that has all of them."""

    request: str
    exporter: str
    lease: str


class Claims:
    """The claims of one client."""

    def __init__(self, connection: Connection) -> None:
        self._config = connection.config
        self._stub = connection.claims()
        self._caller = connection.caller
        self._parent = f"namespaces/{connection.config.namespace}"

    def path(self, name: str) -> str:
        return f"{self._parent}/claims/{name}"

    async def create(self, spec: Any, *, name: str = "") -> Any:
        request = claims_pb2.CreateClaimRequest(parent=self._parent, claim_id=name, spec=spec)
        return await self._call(self._stub.CreateClaim, request)

    async def get(self, name: str) -> Any:
        return await self._call(
            self._stub.GetClaim, claims_pb2.GetClaimRequest(name=self.path(name))
        )

    async def list(self, *, ended: bool) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            request = claims_pb2.ListClaimsRequest(
                parent=self._parent, show_ended=ended, page_token=token
            )
            page = await self._call(self._stub.ListClaims, request)
            found += page.claims
            token = page.next_page_token
            if not token:
                return found

    async def update(
        self, name: str, *, duration: timedelta | None = None, client: str = ""
    ) -> Any:
        request = claims_pb2.UpdateClaimRequest(name=self.path(name))
        if duration is not None:
            request.duration.FromTimedelta(duration)
        if client:
            request.client = f"{self._parent}/clients/{client}"
        return await self._call(self._stub.UpdateClaim, request)

    async def release(self, name: str) -> Any:
        request = claims_pb2.ReleaseClaimRequest(name=self.path(name))
        return await self._call(self._stub.ReleaseClaim, request)

    async def schedule(self, spec: Any) -> Any:
        request = claims_pb2.ScheduleRequest(parent=self._parent, spec=spec)
        return await self._call(self._stub.Schedule, request)

    async def _call(self, method: Any, request: Any) -> Any:
        with our_errors(self._config.endpoint):
            return await method(request, metadata=self._caller)

    async def watch(self, name: str) -> AsyncIterator[Any]:
        """The claim now and after each change, also after the connection was lost."""
        request = claims_pb2.WatchClaimRequest(name=self.path(name))
        while True:
            try:
                with our_errors(self._config.endpoint):
                    async for claim in self._stub.WatchClaim(request, metadata=self._caller):
                        yield claim
                        if claim.status.ended:
                            return
            except Unreachable:
                await asyncio.sleep(WATCH_AGAIN_SECONDS)

    async def wait(self, name: str, *, timeout: timedelta, progress: Progress) -> Any:
        """Wait until the claim has all its targets. Raises ``LeaseRefused`` and ``TimedOut``."""
        reason = "no answer yet"
        try:
            async with (
                asyncio.timeout(timeout.total_seconds()),
                contextlib.aclosing(self.watch(name)) as states,  # type: ignore[type-var]
            ):
                async for claim in states:
                    said, ready = judged(claim)
                    if ready:
                        return claim
                    if said != reason:
                        progress(f"{said}{await self._estimate(claim)}")
                    reason = said
        except TimeoutError:
            seconds = timeout.total_seconds()
            raise TimedOut(f"claim {name} still waits after {seconds:g} s: {reason}") from None
        raise LeaseRefused(f"claim {name} has ended")

    async def _estimate(self, claim: Any) -> str:
        """When the claim can be served, as far as the ends of leases are known."""
        try:
            found = await self.schedule(claim.spec)
        except LabError:
            return ""  # the wait itself goes on
        if not found.HasField("starts"):
            return ""
        return f" (earliest start {found.starts.ToDatetime():%H:%M:%S} UTC)"

    @contextlib.asynccontextmanager
    async def held(
        self, spec: Any, *, name: str = "", timeout: timedelta, progress: Progress
    ) -> AsyncIterator[Any]:
        """A claim with all its targets, which is released in the end, whatever happens."""
        created = await self.create(spec, name=name)
        chosen = created.name.rpartition("/")[2]
        try:
            yield await self.wait(chosen, timeout=timeout, progress=progress)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._give_back(chosen)))

    async def _give_back(self, name: str) -> None:
        # The claim may have ended, and the service may be away: its duration ends it then.
        with contextlib.suppress(LabError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                await self.release(name)


def judged(claim: Any) -> tuple[str, bool]:
    """What is said about a claim, and whether it has its targets. Raises ``LeaseRefused``."""
    name = claim.name.rpartition("/")[2]
    said = next((c for c in claim.status.conditions if c.type == "Allocated"), None)
    text = f"{said.reason}: {said.message}" if said is not None else "no answer yet"
    if claim.status.ended or (said is not None and said.reason in REFUSALS):
        raise LeaseRefused(f"claim {name} is not served: {text}")
    return text, said is not None and said.status == "True"


def targets_of(claim: Any) -> tuple[Target, ...]:
    """The targets of a claim; devices of DevicePools are none, because nothing connects to them."""
    return tuple(
        Target(
            request=member.request,
            exporter=member.device,
            lease=member.lease.rpartition("/")[2],
        )
        for member in claim.status.members
        if member.lease
    )


def devices_of(claim: Any) -> tuple[tuple[str, str], ...]:
    """The devices of a claim that have no exporter, such as licences, with their requests."""
    return tuple((m.request, m.device) for m in claim.status.members if not m.lease)


@contextlib.asynccontextmanager
async def connected(
    connection: Connection, targets: tuple[Target, ...], directory: Path
) -> AsyncIterator[tuple[tuple[Path, Exporter], ...]]:
    """A socket in ``directory`` and a connection for each target, once all of them are ready."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number, target in enumerate(targets):
            socket = directory / str(number)
            tunnel = Tunnel(connection.config, dialling(connection, target.lease))
            await stack.enter_async_context(tunnel.listening(socket))
            found.append((socket, await stack.enter_async_context(Exporter(socket))))
        async with asyncio.TaskGroup() as tasks:
            for _, exporter in found:
                tasks.create_task(exporter.ready())
        present = [asyncio.ensure_future(exporter.present()) for _, exporter in found]
        try:
            yield tuple(found)
        finally:
            for task in present:
                task.cancel()
            await asyncio.gather(*present, return_exceptions=True)
