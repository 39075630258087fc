"""Requests as audit events: which are recorded, and what they contain.

Every change and every refusal is recorded; successful reads and reviews are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from bullpen.apiserver.http import Request, Response
from bullpen.apiserver.routes import ObjectRoute, PlainRoute, ReviewRoute, Route
from bullpen.audit.events import (
    ANONYMOUS,
    DECISION,
    REASON,
    AuditEvent,
    Target,
    kept_query,
    public_message,
)
from bullpen.core.rbac.authorization import Decision, User
from bullpen.errors import LabError

REFUSALS = frozenset({401, 403, 429})
"""Status codes that are always recorded."""

READ_VERBS = frozenset({"get", "list", "watch", "head", "options"})

NOISE = frozenset({("", "events"), ("coordination.k8s.io", "leases")})
"""Resources whose successful writes are not recorded: heartbeats and the service's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, and the user whose rights apply."""

    user: User
    """Whose rights are checked."""

    impersonator: User | None = None
    """The authenticated user, if it impersonates another one."""


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_identity = msgspec.json.Decoder(_Object)


@dataclass(slots=True, kw_only=True)
class Record:
    """What is known about a request, collected while it is processed."""

    request: Request
    received: datetime
    caller: Caller | None = None
    target: Route = field(default_factory=lambda: PlainRoute(""))
    verb: str = ""
    decision: Decision | None = None
    error: LabError | None = None

    def wanted(self, response: Response) -> bool:
        if response.status in REFUSALS:
            return True
        if self.verb in READ_VERBS or not isinstance(self.target, ObjectRoute):
            return False
        resource = self.target.resource
        return (resource.group, resource.plural) not in NOISE or response.status >= 400

    def event(self, response: Response, *, audit_id: str, now: datetime) -> AuditEvent:
        user, impersonated = ANONYMOUS, None
        if self.caller is not None:
            user = self.caller.impersonator or self.caller.user
            impersonated = self.caller.user if self.caller.impersonator else None
        return AuditEvent(
            audit_id=audit_id,
            received=self.received,
            completed=now,
            verb=self.verb,
            uri=f"{self.request.path}{kept_query(self.request.query)}",
            user=user,
            impersonated=impersonated,
            source=self.request.source,
            user_agent=self.request.headers.get("user-agent", ""),
            target=self._target(response),
            code=response.status,
            reason=self.error.reason if self.error else "",
            message=public_message(self.error) if self.error else "",
            annotations=self._annotations(),
        )

    def _target(self, response: Response) -> Target | None:
        route = self.target
        if isinstance(route, ReviewRoute):
            return Target(
                resource=route.plural, group=route.group, version="v1", namespace=route.namespace
            )
        if not isinstance(route, ObjectRoute):
            return None
        found = _written(response) if not route.subresource else _Metadata()
        return Target(
            resource=route.resource.plural,
            group=route.resource.group,
            version=route.resource.version,
            namespace=route.namespace or "",
            name=route.name or found.name,
            subresource=route.subresource,
            uid=found.uid,
        )

    def _annotations(self) -> dict[str, str]:
        if self.decision is None:
            return {}
        outcome = "allow" if self.decision.allowed else "forbid"
        return {DECISION: outcome, REASON: self.decision.reason}


def _written(response: Response) -> _Metadata:
    """The name and uid of the object in the response, if there is one."""
    if response.status >= 300 or not isinstance(response.body, bytes):
        return _Metadata()
    try:
        return _identity.decode(response.body).metadata
    except msgspec.DecodeError:
        return _Metadata()
