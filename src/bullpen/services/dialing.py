"""Connects a client and its exporter: each gets a token, at the same time.

A dial waits for the exporter instead of failing, because the exporter needs a moment to
notice its lease. Each side's token names the lease, its epoch and the side.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.views import Views
from bullpen.core.leases import dial
from bullpen.core.leases.dial import Gate, Verdict
from bullpen.errors import LabError, NotFound
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket, Tickets
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.services.routing import Routers
from bullpen.services.signals import Signals
from bullpen.services.traces import Traces

DIAL_SECONDS_MAX = 25.0
WATCH_SECONDS = 3600.0
CALLS_MAX = 64
"""Calls of one lease that wait for the exporter; further dials wait for their turn."""


class NotReady(LabError):
    """The exporter is not ready yet; the client retries by itself."""

    reason = "NotReady"


class PermissionDenied(LabError):
    """The lease belongs to another client; worded as the client expects it."""

    reason = "PermissionDenied"


class Precondition(LabError):
    """The call cannot succeed, and waiting would not help."""

    reason = "FailedPrecondition"


@dataclass(frozen=True, slots=True)
class Call:
    """The router's address and the token to present there."""

    endpoint: str
    token: str


class Line:
    """One lease: its listener, and the calls not picked up yet.

    Calls are kept when a listener goes, so that an exporter that lost its connection, or
    restarted, still answers the waiting clients.
    """

    def __init__(self) -> None:
        self.listener: object | None = None
        self.calls: deque[Call] = deque()


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
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self._views = views
        self._tickets = tickets
        self._routers = routers
        self._signals = signals
        self._clock = clock
        self._ids = ids
        self._lines: dict[str, Line] = {}
        """By lease uid."""

        views.leases.listen(self._changed)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        """Close the line of a lease that has ended."""
        lease = new or old
        assert lease is not None
        line = self._lines.get(lease.metadata.uid)
        if line is not None and (new is None or new.status.ended):
            line.calls.clear()
            if line.listener is None:
                del self._lines[lease.metadata.uid]

    async def listen(self, exporter: Exporter, lease_name: str) -> AsyncGenerator[Call, None]:
        """Calls for this lease, until the exporter hangs up or a newer stream takes over."""
        lease = await self._assigned(exporter, lease_name)
        uid = lease.metadata.uid
        line = self._lines.setdefault(uid, Line())
        line.listener = me = object()
        self._signals.notify(("line", uid))
        try:
            while True:
                call = await self._signals.until(
                    lambda: (("line", uid),), lambda: _next(line, me), WATCH_SECONDS
                )
                if isinstance(call, Call):
                    self._signals.notify(("line", uid))
                    yield call
                elif call is not None:
                    return
        finally:
            self._hang_up(uid, line, me)

    async def _assigned(self, exporter: Exporter, lease_name: str) -> Lease:
        """The lease, which may have ended; raises ``PermissionDenied`` for one of others."""
        with contextlib.suppress(NotFound):
            lease = await self._views.find_lease(exporter.metadata.namespace, lease_name)
            held = lease.status.exporter_ref
            if held is not None and held.name == exporter.metadata.name:
                return lease
        raise PermissionDenied(
            f"permission denied: lease {lease_name} is not assigned to this exporter"
        )

    def _hang_up(self, uid: str, line: Line, listener: object) -> None:
        if line.listener is listener:
            line.listener = None
            if not line.calls:
                self._lines.pop(uid, None)

    async def dial(self, client: Client, lease_name: str) -> Call:
        """Connect the client to its exporter, waiting a bounded time until that is possible."""
        start = self._clock.now()
        key = (client.metadata.namespace, lease_name)
        await self._signals.until(
            lambda: self._keys(key), lambda: self._is_final(key, client), DIAL_SECONDS_MAX
        )
        lease = await self._views.find_lease(*key)
        gate = self._gate(lease, client)
        match gate.verdict:
            case Verdict.PROCEED:
                call = self._connect(lease)
                if self._traces is not None:
                    self._traces.dialled(lease, start=start)
                return call
            case Verdict.WAIT:
                raise NotReady(gate.message)
            case Verdict.PERMISSION_DENIED:
                raise PermissionDenied(gate.message)
            case Verdict.FAILED_PRECONDITION:
                raise Precondition(gate.message)

    def _keys(self, key: tuple[str, str]) -> tuple[tuple[str, ...], ...]:
        lease = self._views.leases.get(*key)
        assert lease is not None, "a dial waits only for an open lease"
        keys: list[tuple[str, ...]] = [("lease", *key), ("line", lease.metadata.uid)]
        if lease.status.exporter_ref:
            keys.append(("exporter", key[0], lease.status.exporter_ref.name))
        return tuple(keys)

    def _is_final(self, key: tuple[str, str], client: Client) -> bool | None:
        """True if waiting would change nothing, else None; the view holds no ended leases."""
        lease = self._views.leases.get(*key)
        if lease is None or self._gate(lease, client).verdict is not Verdict.WAIT:
            return True
        return None

    def _gate(self, lease: Lease, client: Client) -> Gate:
        held = lease.status.exporter_ref
        exporter = self._views.exporters.get(lease.metadata.namespace, held.name) if held else None
        return dial.gate(
            lease,
            exporter,
            client=client.metadata.name,
            listening=self._listening(lease),
        )

    def _listening(self, lease: Lease) -> bool:
        """Whether an exporter listens and has room for another call."""
        line = self._lines.get(lease.metadata.uid)
        return line is not None and line.listener is not None and len(line.calls) < CALLS_MAX

    def _connect(self, lease: Lease) -> Call:
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
        uid = lease.metadata.uid
        self._lines[uid].calls.append(Call(endpoint, tokens[Role.EXPORTER]))
        self._signals.notify(("line", uid))
        return Call(endpoint, tokens[Role.CLIENT])


class _Over:
    """A newer stream listens instead."""


def _next(line: Line, listener: object) -> Call | _Over | None:
    """What a listener does next: take a call, give way, or wait."""
    if line.listener is not listener:
        return _Over()
    return line.calls.popleft() if line.calls else None
