"""Calls as audit events: which are recorded, and what they contain.

Every call that changes something and every refusal is recorded. Reads, and the periodic
reports of exporters, are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc

from bullpen import errors
from bullpen.api.kinds.client import GROUP_VERSION as JUMPSTARTER
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclass import GROUP_VERSION as DEVICES
from bullpen.api.kinds.exporter import Exporter
from bullpen.audit.events import ANONYMOUS, AuditEvent, AuditSink, Target, public_message
from bullpen.controllers.exporters.credentials import subject_of
from bullpen.core.rbac.authorization import User
from bullpen.errors import LabError
from bullpen.identity import subjects
from bullpen.identity.subjects import Role
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.services.dialing import PermissionDenied
from bullpen.services.grpc.errors import code
from bullpen.services.grpc.sockets import parse_peer

CANCELLED = 499
"""The caller left before the answer; its request may have been carried out."""

REFUSALS = frozenset({401, 403, 429})

CLAIMED = "bullpen.jumpstarter.dev/claimed"
"""The identity a refused caller claimed; it was not verified."""

USERNAME = "bullpen.jumpstarter.dev/username"
"""The outside user that may act as the Client or Exporter of the call."""

_HTTP_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}

Named = Callable[[Client | Exporter, Any, Any], str]
"""The name of the object, from the caller, the request and the response (None if refused)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a method does to which object, in the terms of the Kubernetes API."""

    verb: str
    resource: str
    api: str = JUMPSTARTER
    """Group and version of the resource."""

    subresource: str = ""
    name: Named
    when: Callable[[Any], bool] = lambda request: True
    """Whether a request makes this change at all."""


def _caller(caller: Client | Exporter, request: Any, response: Any) -> str:
    return caller.metadata.name


def _requested(caller: Client | Exporter, request: Any, response: Any) -> str:
    return str(request.name).rpartition("/")[2]


def _created(caller: Client | Exporter, request: Any, response: Any) -> str:
    named = (
        response.name
        if response is not None
        else getattr(request, "lease_id", "") or getattr(request, "claim_id", "")
    )
    return str(named).rpartition("/")[2]


def _held(caller: Client | Exporter, request: Any, response: Any) -> str:
    held = caller.status.lease_ref if isinstance(caller, Exporter) else None
    return held.name if held else ""


CHANGES = {
    "CreateLease": Change(verb="create", resource="leases", name=_created),
    "RequestLease": Change(verb="create", resource="leases", name=_created),
    "UpdateLease": Change(
        verb="update",
        resource="leases",
        name=lambda caller, request, response: _requested(caller, request.lease, response),
    ),
    "DeleteLease": Change(verb="delete", resource="leases", name=_requested),
    "ReleaseLease": Change(verb="delete", resource="leases", name=_requested),
    "CreateClaim": Change(verb="create", resource="deviceclaims", api=DEVICES, name=_created),
    "UpdateClaim": Change(verb="update", resource="deviceclaims", api=DEVICES, name=_requested),
    "ReleaseClaim": Change(verb="update", resource="deviceclaims", api=DEVICES, name=_requested),
    "Dial": Change(
        verb="connect",
        resource="leases",
        subresource="dial",
        name=lambda caller, request, response: str(request.lease_name),
    ),
    "RotateToken": Change(verb="create", resource="clients", subresource="token", name=_caller),
    "Register": Change(verb="update", resource="exporters", subresource="status", name=_caller),
    "Unregister": Change(verb="update", resource="exporters", subresource="status", name=_caller),
    # Other reports are the heartbeat of an exporter.
    "ReportStatus": Change(
        verb="delete",
        resource="leases",
        name=_held,
        when=lambda request: bool(request.release_lease),
    ),
}

UNCHANGING = frozenset(
    {
        "GetExporter",
        "ListExporters",
        "GetLease",
        "ListLeases",
        "GetClaim",
        "WatchClaim",
        "ListClaims",
        "Schedule",
        "Status",
        "Listen",
        "AuditStream",
    }
)
"""Methods of which only refusals are recorded; the leases that exporters listen on are recorded."""


class CallRecorder:
    """Records calls in an audit sink."""

    def __init__(self, sink: AuditSink, *, clock: Clock, ids: Ids) -> None:
        self._sink = sink
        self._clock = clock
        self._ids = ids

    def call(self, method: str, metadata: Any, context: Any) -> Call:
        """A call that has just been received."""
        return Call(
            method=method,
            received=self._clock.now(),
            peer=context.peer() or "",
            metadata=metadata or (),
        )

    def answered(self, call: Call, caller: Client | Exporter, request: Any, response: Any) -> None:
        change = CHANGES.get(call.name)
        if change is not None and change.when(request):
            self._record(call, caller, _target(change, caller, request, response), code=200)

    def failed(
        self, call: Call, caller: Client | Exporter, request: Any, error: BaseException
    ) -> None:
        """``request`` is None if it could not be read."""
        outcome = http_code(error)
        change = CHANGES.get(call.name)
        if request is None or (change is not None and not change.when(request)):
            change = None
        if change is None and outcome not in REFUSALS:
            return
        target = _target(change, caller, request, None) if change else None
        self._record(call, caller, target, code=outcome, error=error)

    def turned_away(self, call: Call, error: LabError) -> None:
        """The caller could not be authenticated, or the method does not admit it."""
        self._record(call, None, None, code=http_code(error), error=error)

    def _record(
        self,
        call: Call,
        caller: Client | Exporter | None,
        target: Target | None,
        *,
        code: int,
        error: BaseException | None = None,
    ) -> None:
        change = CHANGES.get(call.name)
        refusal = error if isinstance(error, LabError) else None
        self._sink.record(
            AuditEvent(
                audit_id=self._ids.uid(),
                received=call.received,
                completed=self._clock.now(),
                verb=change.verb if change else "get",
                uri=call.method,
                user=ANONYMOUS if caller is None else user_of(caller),
                source=call.source,
                user_agent=call.header("user-agent"),
                target=target,
                code=code,
                reason=refusal.reason if refusal else "",
                message=public_message(refusal) if refusal else "",
                annotations=_annotations(call, caller),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is known about a call before its message is received."""

    method: str
    """Full name, such as ``/jumpstarter.v1.ControllerService/Dial``."""

    received: datetime
    peer: str
    """As gRPC writes it, such as ``ipv4:192.0.2.1:5000``."""

    metadata: Iterable[tuple[str, str | bytes]]

    @property
    def name(self) -> str:
        return self.method.rpartition("/")[2]

    @property
    def source(self) -> str:
        """The address alone."""
        return parse_peer(self.peer)[0]

    def header(self, name: str) -> str:
        for key, value in self.metadata or ():
            if key == name and isinstance(value, str):
                return value
        return ""


def user_of(caller: Client | Exporter) -> User:
    """A Client or an Exporter as a user, named as the API server names it."""
    role = Role.CLIENT if isinstance(caller, Client) else Role.EXPORTER
    subject = subject_of(role, caller)
    return User(
        name=f"{subjects.PREFIX}{subject}", uid=subject.uid, groups=subjects.groups(subject)
    )


def http_code(error: BaseException) -> int:
    """The outcome as an HTTP status code, which audit events use."""
    if isinstance(error, errors.Forbidden | PermissionDenied):
        return 403
    if isinstance(error, LabError):
        return _HTTP_CODES.get(code(error), 500)
    return 500 if isinstance(error, Exception) else CANCELLED


def _target(change: Change, caller: Client | Exporter, request: Any, response: Any) -> Target:
    group, _, version = change.api.partition("/")
    return Target(
        resource=change.resource,
        group=group,
        version=version,
        namespace=caller.metadata.namespace,
        name=change.name(caller, request, response),
        subresource=change.subresource,
    )


def _annotations(call: Call, caller: Client | Exporter | None) -> dict[str, str]:
    if caller is None:
        claimed = (call.header(f"jumpstarter-{part}") for part in ("kind", "namespace", "name"))
        text = " ".join(part for part in claimed if part)
        return {CLAIMED: text} if text else {}
    return {USERNAME: caller.spec.username} if caller.spec.username else {}
