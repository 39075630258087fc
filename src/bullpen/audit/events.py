"""One entry of the audit log, as a value and as an audit.k8s.io/v1 Event.

Level Metadata throughout: no bodies, no tokens, and of query strings only parameters that
are known to be harmless. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

from bullpen import errors
from bullpen.api.paths import Document
from bullpen.core.rbac.authorization import User
from bullpen.errors import LabError
from bullpen.kit import times

TEXT_LENGTH_MAX = 1_024
"""Characters kept of any text that a caller chose."""

GROUPS_MAX = 100

DECISION = "authorization.k8s.io/decision"
REASON = "authorization.k8s.io/reason"
SUPPRESSED = "bullpen.jumpstarter.dev/suppressed"
"""How many refusals of unauthenticated callers were omitted before this one."""

ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))

_QUERY_KEPT = frozenset(
    {
        "allowWatchBookmarks",
        "dryRun",
        "fieldManager",
        "fieldSelector",
        "fieldValidation",
        "force",
        "labelSelector",
        "limit",
        "orphanDependents",
        "propagationPolicy",
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "timeout",
        "timeoutSeconds",
        "watch",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The object, or the collection, that a request was about."""

    resource: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One finished request."""

    audit_id: str
    received: datetime
    completed: datetime
    verb: str
    uri: str
    """Path of an HTTP request with ``kept_query``, or the full name of a gRPC method."""

    user: User
    impersonated: User | None = None
    """The impersonated user, whose rights were checked."""

    source: str = ""
    user_agent: str = ""
    target: Target | None = None
    code: int
    """HTTP status; gRPC outcomes are translated."""

    reason: str = ""
    message: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def anonymous(self) -> bool:
        return self.user == ANONYMOUS


class AuditSink(Protocol):
    def record(self, event: AuditEvent) -> None:
        """Record ``event``; never blocks and never fails."""


class NoAudit:
    """For a server whose requests need not be recorded."""

    def record(self, event: AuditEvent) -> None:
        pass


def kept_query(query: Mapping[str, str]) -> str:
    """A query string with the parameters that may be recorded; empty if there are none."""
    kept = (
        f"{name}={quote(value[:TEXT_LENGTH_MAX])}"
        for name, value in query.items()
        if name in _QUERY_KEPT
    )
    joined = "&".join(kept)
    return f"?{joined}" if joined else ""


def public_message(error: LabError) -> str:
    """An error's message, without values that came from a body: a field may hold a secret."""
    if isinstance(error, errors.Invalid):
        return ", ".join(dict.fromkeys(cause.field for cause in error.causes if cause.field))
    if isinstance(error, errors.BadRequest):
        return ""
    return error.message


def document(event: AuditEvent) -> Document:
    """``event`` as an audit.k8s.io/v1 Event."""
    found: Document = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": event.audit_id,
        "stage": "ResponseComplete",
        "requestURI": _cut(event.uri),
        "verb": event.verb,
        "user": _user(event.user),
    }
    if event.impersonated is not None:
        found["impersonatedUser"] = _user(event.impersonated)
    if event.source:
        found["sourceIPs"] = [event.source]
    if event.user_agent:
        found["userAgent"] = _cut(event.user_agent)
    if event.target is not None:
        found["objectRef"] = _reference(event.target)
    found["responseStatus"] = _status(event)
    found["requestReceivedTimestamp"] = times.micro_text(event.received)
    found["stageTimestamp"] = times.micro_text(event.completed)
    if event.annotations:
        found["annotations"] = {key: _cut(text) for key, text in event.annotations.items()}
    return found


def _status(event: AuditEvent) -> Document:
    status: Document = {"metadata": {}, "code": event.code}
    if event.code >= 400:
        status["status"] = "Failure"
    if event.reason:
        status["reason"] = event.reason
    if event.message:
        status["message"] = _cut(event.message)
    return status


def _user(user: User) -> Document:
    found: Document = {"username": _cut(user.name)}
    if user.uid:
        found["uid"] = _cut(user.uid)
    if user.groups:
        found["groups"] = [_cut(group) for group in user.groups[:GROUPS_MAX]]
    return found


def _reference(target: Target) -> Document:
    names = {
        "resource": target.resource,
        "namespace": target.namespace,
        "name": target.name,
        "uid": target.uid,
        "apiGroup": target.group,
        "apiVersion": target.version,
        "subresource": target.subresource,
    }
    return {key: _cut(text) for key, text in names.items() if text}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[:TEXT_LENGTH_MAX]}…"
