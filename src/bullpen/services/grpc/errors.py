"""Errors as gRPC codes, chosen for how Jumpstarter's client and exporter react to them.

UNKNOWN is the only code whose text the 0.9 client prints as one clean line, so refusals
that users read use it. No text may contain the word the client takes for a stale token,
except the message that means it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from bullpen import errors
from bullpen.services.callers import Anonymous
from bullpen.services.dialing import NotReady, PermissionDenied, Precondition

CODES: dict[type[errors.LabError], grpc.StatusCode] = {
    errors.LabError: grpc.StatusCode.UNKNOWN,
    errors.BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.TooManyRequests: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    NotReady: grpc.StatusCode.FAILED_PRECONDITION,
    Precondition: grpc.StatusCode.FAILED_PRECONDITION,
    PermissionDenied: grpc.StatusCode.UNKNOWN,
}

_HUMAN = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The status of a refused call."""

    code: grpc.StatusCode
    text: str

    def give(self, context: Any) -> None:
        """Set it as the status of a call whose handler is about to return."""
        context.set_code(self.code)
        context.set_details(self.text)


def code(error: errors.LabError) -> grpc.StatusCode:
    """The code of an error, by its nearest class in the table."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def answer_to(error: errors.LabError, *, human: bool) -> Answer:
    """The answer to the caller; with ``human``, the code that the client prints well."""
    found = code(error)
    if human and found in _HUMAN and not isinstance(error, Anonymous):
        found = grpc.StatusCode.UNKNOWN
    return Answer(found, error.message)
