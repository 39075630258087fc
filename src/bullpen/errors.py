"""Every error this service raises on purpose.

LabError
├── Rejected            the request is wrong; retrying it unchanged is useless
│   ├── BadRequest          it cannot be understood at all
│   ├── Invalid             a field fails validation; ``causes`` names each one
│   ├── Unauthorized        the caller could not be authenticated
│   ├── Forbidden           the caller is known and may not do this
│   ├── NotFound            the named object does not exist
│   ├── AlreadyExists       an object of this name already exists
│   ├── Conflict            the object changed since it was read; read again first
│   ├── Gone                the asked-for revision has been compacted away
│   ├── TooLarge            the body or the object is over its limit
│   ├── MethodNotAllowed    the path exists, the verb does not apply to it
│   ├── NotAcceptable       no representation the caller accepts
│   └── UnsupportedMediaType  the body is in a form this path does not take
├── Unavailable         try again later; the caller did nothing wrong
│   ├── NoCapacity          there is no capacity for another one
│   ├── ProgramMissing      a program is not installed on the host
│   ├── Unreachable         the backend did not answer
│   ├── TooManyRequests     a bound was reached; back off
│   ├── TimedOut            the deadline passed first
│   └── StorageFailed       the disk refused; nothing was acknowledged
└── Refused             the other side understood and said no; an operator must act
    ├── Damaged             a file is corrupt; it was left unchanged
    └── LeaseRefused        no exporter can serve the lease, or its hook failed

``reason`` is CamelCase, stable and machine-readable: it becomes a Condition
reason, a metric label and part of the public API. The message is for people
and says what to do next. How an error looks on a wire is decided in the
adapters (``services.grpc``, ``apiserver``), never here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class LabError(Exception):
    """Base of the tree: a stable ``reason``, a sentence, and the underlying facts."""

    reason: ClassVar[str] = "InternalError"

    def __init__(self, message: str, *, causes: tuple[Cause, ...] = (), **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes
        self.facts = facts

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.message} ({facts})" if facts else self.message


class Rejected(LabError):
    reason = "Rejected"


class BadRequest(Rejected):
    reason = "BadRequest"


@dataclass(frozen=True, slots=True)
class Cause:
    """One error in one field, in Kubernetes' own cause vocabulary."""

    field: str
    """Path of the field, such as ``spec.policies[0].priority``."""

    message: str
    reason: str = "FieldValueInvalid"


class Invalid(Rejected):
    """One or more fields fail validation."""

    reason = "Invalid"

    def __init__(
        self, message: str, *, causes: tuple[Cause, ...] = (), name: str = "", **facts: object
    ) -> None:
        super().__init__(message, causes=causes, **facts)
        self.name = name
        """The refused object; the path of a create does not have its name."""


class Unauthorized(Rejected):
    reason = "Unauthorized"


class Forbidden(Rejected):
    reason = "Forbidden"


class NotFound(Rejected):
    reason = "NotFound"


class AlreadyExists(Rejected):
    reason = "AlreadyExists"


class Conflict(Rejected):
    """The object changed, or another field manager owns an applied field."""

    reason = "Conflict"


class Gone(Rejected):
    # Kubernetes' reason for a compacted revision; clients branch on it.
    reason = "Expired"


class TooLarge(Rejected):
    reason = "RequestEntityTooLarge"


class MethodNotAllowed(Rejected):
    reason = "MethodNotAllowed"


class NotAcceptable(Rejected):
    reason = "NotAcceptable"


class UnsupportedMediaType(Rejected):
    reason = "UnsupportedMediaType"


class Unavailable(LabError):
    reason = "ServiceUnavailable"


class NoCapacity(Unavailable):
    reason = "NoCapacity"


class ProgramMissing(Unavailable):
    reason = "ProgramMissing"


class Unreachable(Unavailable):
    reason = "Unreachable"


class TooManyRequests(Unavailable):
    reason = "TooManyRequests"


class TimedOut(Unavailable):
    reason = "Timeout"


class StorageFailed(Unavailable):
    reason = "StorageFailed"


class Refused(LabError):
    reason = "Refused"


class Damaged(Refused):
    reason = "Damaged"


class LeaseRefused(Refused):
    reason = "LeaseRefused"


def of_reason(reason: str, message: str, causes: tuple[Cause, ...] = ()) -> LabError | None:
    """The error for an API server's response, by its reason; None for an unknown reason."""
    if reason == Invalid.reason:
        return Invalid(message, causes=causes)
    if reason == Conflict.reason:
        return Conflict(message, causes=causes)
    found = _BY_REASON.get(reason)
    return found(message) if found else None


_BY_REASON: dict[str, type[LabError]] = {
    cls.reason: cls
    for cls in (
        BadRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        AlreadyExists,
        Gone,
        TooLarge,
        MethodNotAllowed,
        NotAcceptable,
        UnsupportedMediaType,
        Unavailable,
        NoCapacity,
        TooManyRequests,
        TimedOut,
        StorageFailed,
    )
}
