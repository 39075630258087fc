"""Errors as Kubernetes ``Status`` objects."""

from __future__ import annotations

from bullpen import errors
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.apiserver.http import Response, json_response

CODES: dict[type[errors.LabError], int] = {
    errors.LabError: 500,
    errors.Rejected: 400,
    errors.BadRequest: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.NotAcceptable: 406,
    errors.AlreadyExists: 409,
    errors.Conflict: 409,
    errors.Gone: 410,
    errors.TooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.Invalid: 422,
    errors.TooManyRequests: 429,
    errors.Unavailable: 503,
    errors.TimedOut: 504,
    errors.Refused: 500,
}

RETRY_AFTER_SECONDS = 1


def code(error: errors.LabError) -> int:
    """The HTTP status of an error, by its nearest class in the table."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def failure(
    error: errors.LabError, *, resource: Resource | None = None, name: str = ""
) -> Document:
    """The Status object for ``error``; kubectl branches on its ``reason``."""
    details: Document = {}
    refused = error if isinstance(error, errors.Invalid) else None
    name = name or (refused.name if refused is not None else "")
    if name:
        details["name"] = name
    if resource is not None:
        details["group"] = resource.group
        # Kubernetes puts the plural here for lookups and the kind for validation.
        details["kind"] = resource.kind if refused is not None else resource.plural
    if error.causes:
        details["causes"] = [
            {"reason": cause.reason, "message": cause.message, "field": cause.field}
            for cause in error.causes
        ]
    if isinstance(error, errors.Unavailable):
        details["retryAfterSeconds"] = RETRY_AFTER_SECONDS
    return {
        "kind": "Status",
        "apiVersion": "v1",
        # If the snapshot of a list is gone, the token allows to continue inconsistently.
        "metadata": {"continue": error.facts["continue_token"]}
        if "continue_token" in error.facts
        else {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": details,
        "code": code(error),
    }


def failure_response(
    error: errors.LabError, *, resource: Resource | None = None, name: str = ""
) -> Response:
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, errors.Unavailable):
        headers = (("retry-after", str(RETRY_AFTER_SECONDS)),)
    if isinstance(error, errors.Unauthorized):
        headers = (("www-authenticate", "Bearer"),)
    document = failure(error, resource=resource, name=name)
    return json_response(document, status=code(error), headers=headers)


def success(resource: Resource, *, name: str, uid: str) -> Document:
    """The response to a finished deletion."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
