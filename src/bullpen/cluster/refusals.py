"""Converts the errors of an API server to our own, with advice."""

from __future__ import annotations

from typing import Any

import msgspec

from bullpen import errors
from bullpen.errors import Cause

BY_STATUS: dict[int, type[errors.LabError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    429: errors.TooManyRequests,
    504: errors.TimedOut,
}
"""For responses without a known reason: those of proxies, and of kinds not installed."""

GRANT = "grant it to the service account, as 'bullpen manifests' does"
INSTALL = "install the definitions with 'bullpen crds | kubectl apply -f -'"
MESSAGE_MAX = 2_000


def refusal(status: int, body: bytes) -> errors.LabError:
    """The error for a response with status 400 or above."""
    reason, message, causes = _read(body)
    if status == 403:
        return errors.Forbidden(f"{message}; {GRANT}")
    if status == 404 and "the server could not find the requested resource" in message:
        return errors.NotFound(f"{message}: {INSTALL}")
    found = errors.of_reason(reason, message, causes)
    if found is not None:
        return found
    cls = BY_STATUS.get(status, errors.Unavailable if status >= 500 else errors.Rejected)
    return cls(f"the API server answered {status}: {message}")


def _read(body: bytes) -> tuple[str, str, tuple[Cause, ...]]:
    """Reason, message and causes; a body that is not a Status is the message itself."""
    try:
        answer: Any = msgspec.json.decode(body)
        causes = tuple(
            Cause(str(item.get("field", "")), str(item.get("message", "")), item.get("reason", ""))
            for item in (answer.get("details") or {}).get("causes") or ()
        )
        return str(answer.get("reason", "")), str(answer.get("message", ""))[:MESSAGE_MAX], causes
    except (msgspec.DecodeError, AttributeError, TypeError):
        return "", body[:200].decode(errors="replace"), ()
