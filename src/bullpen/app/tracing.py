"""Traces of leases for OpenTelemetry, sent to a collector over OTLP. Off by default."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bullpen.api.kinds.lease import Lease
from bullpen.core.leases import lease_trace, lifecycle
from bullpen.core.leases.lease_figures import Assigned, Ended, figures
from bullpen.core.leases.lease_trace import Span, Step
from bullpen.core.leases.sessions import Session
from bullpen.errors import Refused
from bullpen.kit.clock import Clock
from bullpen.runtime.informer import Informer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

OPEN_MAX = 20_000
"""Leases whose span is open; further leases are not traced."""

SEND_SECONDS_MAX = 5
"""For one batch, which also bounds how long a process that stops waits for its collector."""

Report = Callable[[Span], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    endpoint: str = ""
    """The collector's address for OTLP over HTTP, without a path; empty for no traces."""

    ratio: float = 1.0
    """The share of leases that are traced."""


class LeaseTraces:
    """Turns what the services tell, and changes of leases, into spans."""

    def __init__(self, report: Report, *, clock: Clock, ratio: float = 1.0) -> None:
        self._report, self._clock, self._ratio = report, clock, ratio
        self._since = clock.now()
        """Leases that were created before are not traced."""

        self._open: dict[str, datetime] = {}
        """By uid of a lease whose client cannot connect yet, when it was requested."""

    def follow(self, leases: Informer[Lease]) -> None:
        self._since = self._clock.now()
        leases.listen(self._changed)

    def requested(self, lease: Lease, *, start: datetime) -> None:
        self._begin(lease, start)

    def created(self, lease: Lease, *, start: datetime) -> None:
        self._tell(lease, Step.CREATE, start)

    def dialled(self, lease: Lease, *, start: datetime) -> None:
        self._tell(lease, Step.DIAL, start)
        self._end(lease)

    def first_byte(self, session: Session) -> None:
        if lease_trace.sampled(session.lease, self._ratio):
            self._report(
                Span(
                    lease=session.lease,
                    step=Step.FIRST_BYTE,
                    start=session.started,
                    end=self._clock.now(),
                )
            )

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None:
            if old is not None:
                self._open.pop(old.metadata.uid, None)
            return
        created = new.metadata.creation_timestamp
        if old is None and created is not None and created >= self._since:
            # Created by other means than a call of a client, such as kubectl.
            self._begin(new, self._clock.now())
        for figure in figures(old, new, since=self._since):
            if isinstance(figure, Assigned) and new.metadata.uid in self._open:
                begin = self._open[new.metadata.uid]
                self._tell(new, Step.WAIT, begin, {"bullpen.exporter": figure.exporter})
            if isinstance(figure, Ended):
                self._end(new, {"bullpen.reason": figure.reason})

    def _begin(self, lease: Lease, start: datetime) -> None:
        uid = lease.metadata.uid
        if uid in self._open:
            # The view may show a lease before the call that creates it knows of that.
            self._open[uid] = min(start, self._open[uid])
        elif len(self._open) < OPEN_MAX and lease_trace.sampled(uid, self._ratio):
            self._open[uid] = start

    def _end(self, lease: Lease, attributes: dict[str, str] | None = None) -> None:
        """The client may connect, or never will."""
        start = self._open.pop(lease.metadata.uid, None)
        if start is not None:
            self._tell(lease, Step.LEASE, start, attributes)

    def _tell(
        self, lease: Lease, step: Step, start: datetime, attributes: dict[str, str] | None = None
    ) -> None:
        meta = lease.metadata
        if not lease_trace.sampled(meta.uid, self._ratio):
            return
        known = {
            "bullpen.namespace": meta.namespace,
            "bullpen.lease": meta.name,
            "bullpen.client": lifecycle.holder(lease),
        }
        self._report(
            Span(
                lease=meta.uid,
                step=step,
                start=start,
                end=self._clock.now(),
                attributes={**known, **(attributes or {})},
            )
        )


@contextlib.asynccontextmanager
async def tracing(
    settings: TracingSettings, service: str, *, clock: Clock
) -> AsyncIterator[LeaseTraces | None]:
    """Report traces while the context is open, then send what is left; None without a collector."""
    if not settings.endpoint:
        yield None
        return
    sender = _sender(settings.endpoint)
    try:
        yield LeaseTraces(
            lambda span: sender.on_end(_readable(span, service)),
            clock=clock,
            ratio=settings.ratio,
        )
    finally:
        await asyncio.to_thread(sender.shutdown)


def _sender(endpoint: str) -> SpanProcessor:
    """Sends spans from a thread of its own; it holds a limited number and drops the rest."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise Refused("--tracing-endpoint needs: pip install bullpen[tracing]") from None
    address = f"{endpoint.rstrip('/')}/v1/traces"
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=SEND_SECONDS_MAX))


def _readable(span: Span, service: str) -> ReadableSpan:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

    def context(identity: int) -> SpanContext:
        return SpanContext(
            trace_id=lease_trace.trace_id(span.lease),
            span_id=identity,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    parent = lease_trace.parent_id(span)
    return ReadableSpan(
        name=span.step.value,
        context=context(lease_trace.span_id(span)),
        parent=context(parent) if parent is not None else None,
        resource=Resource({"service.name": service}),
        attributes=dict(span.attributes),
        kind=SpanKind.INTERNAL,
        start_time=_nanoseconds(span.start),
        end_time=_nanoseconds(span.end),
    )


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1_000
