"""Brings a client and its exporter together: a token each, handed over at the same time.

A dial waits for the exporter instead of failing, because the exporter needs a moment
to notice its lease. Each side's token names the lease, its epoch and the side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease
from bullpen.controllers.views import Views
from bullpen.core import dialing
from bullpen.core.dialing import Gate, Verdict
from bullpen.errors import LabError, NotFound
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket, Tickets
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.services.routing import Routers
from bullpen.services.signals import Signals

DIAL_SECONDS_MAX = 25.0
QUEUE_MAX = 64


class NotReady(LabError):
    """The exporter is not there yet; the client tries again by itself."""

    reason = "NotReady"


class PermissionDenied(LabError):
    """The lease is somebody else's; worded as the client expects it."""

    reason = "PermissionDenied"


class Precondition(LabError):
    """It cannot work, and waiting would not help."""

    reason = "FailedPrecondition"


@dataclass(frozen=True, slots=True)
class Call:
    """Where to go and what to show there."""

    endpoint: str
    token: str


class Line:
    """One exporter listening on one lease."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call | None] = asyncio.Queue(QUEUE_MAX)


class Switchboard:
    def __init__(
        self,
        views: Views,
        *,
        tickets: Tickets,
        routers: Routers,
        signals: Signals,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._views = views
        self._tickets = tickets
        self._routers = routers
        self._signals = signals
        self._clock = clock
        self._ids = ids
        self._lines: dict[str, Line] = {}
        """By lease uid, the newest Listen stream."""

    async def listen(self, exporter: Exporter, lease_name: str) -> AsyncIterator[Call]:
        """Calls for this lease, until the exporter hangs up or a newer stream takes over."""
        namespace = exporter.metadata.namespace
        lease = self._views.leases.get(namespace, lease_name)
        held = lease.status.exporter_ref if lease else None
        if lease is None or held is None or held.name != exporter.metadata.name:
            raise PermissionDenied(
                f"permission denied: lease {lease_name} is not assigned to this exporter"
            )
        uid = lease.metadata.uid
        line = Line()
        older = self._lines.get(uid)
        self._lines[uid] = line
        if older is not None:
            await older.calls.put(None)
        self._signals.notify(("line", uid))
        try:
            while (call := await line.calls.get()) is not None:
                yield call
        finally:
            if self._lines.get(uid) is line:
                del self._lines[uid]

    async def dial(self, client: Client, lease_name: str) -> Call:
        """Connect the client to its exporter, waiting a bounded time until that is possible."""
        key = (client.metadata.namespace, lease_name)
        gate = await self._signals.until(
            lambda: self._keys(key),
            lambda: self._final(key, client),
            DIAL_SECONDS_MAX,
        )
        lease = self._lease(key)
        gate = gate or self._gate(lease, client)
        match gate.verdict:
            case Verdict.PROCEED:
                return await self._connect(lease)
            case Verdict.WAIT:
                raise NotReady(gate.message)
            case Verdict.PERMISSION_DENIED:
                raise PermissionDenied(gate.message)
            case Verdict.FAILED_PRECONDITION:
                raise Precondition(gate.message)

    def _keys(self, key: tuple[str, str]) -> tuple[tuple[str, ...], ...]:
        lease = self._lease(key)
        keys: list[tuple[str, ...]] = [("lease", *key), ("line", lease.metadata.uid)]
        if lease.status.exporter_ref:
            keys.append(("exporter", key[0], lease.status.exporter_ref.name))
        return tuple(keys)

    def _final(self, key: tuple[str, str], client: Client) -> Gate | None:
        gate = self._gate(self._lease(key), client)
        return None if gate.verdict is Verdict.WAIT else gate

    def _lease(self, key: tuple[str, str]) -> Lease:
        lease = self._views.leases.get(*key)
        if lease is None:
            raise NotFound(f"there is no lease {key[1]}")
        return lease

    def _gate(self, lease: Lease, client: Client) -> Gate:
        held = lease.status.exporter_ref
        exporter = self._views.exporters.get(lease.metadata.namespace, held.name) if held else None
        return dialing.gate(
            lease,
            exporter,
            client=client.metadata.name,
            listening=lease.metadata.uid in self._lines,
        )

    async def _connect(self, lease: Lease) -> Call:
        now = self._clock.now()
        endpoint = self._routers.choose()
        stream = self._ids.uid()
        tokens = {
            role: self._tickets.mint(
                Ticket(
                    stream=stream,
                    lease=lease.metadata.uid,
                    epoch=lease.status.epoch,
                    role=role,
                    expires=now + STREAM_LIFETIME,
                ),
                now=now,
            )
            for role in Role
        }
        line = self._lines[lease.metadata.uid]
        await line.calls.put(Call(endpoint, tokens[Role.EXPORTER]))
        return Call(endpoint, tokens[Role.CLIENT])
