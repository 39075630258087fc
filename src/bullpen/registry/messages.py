"""The registry's error messages, as Kubernetes words them.

Clients match on these sentences and people search for them, so they are kept in one place.
Nothing here decides whether to reject.
"""

from __future__ import annotations

from bullpen.api.resource import Resource
from bullpen.errors import AlreadyExists, Cause, Conflict, Forbidden, Invalid, NotFound

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def qualified(resource: Resource) -> str:
    """``leases.jumpstarter.dev``, or just ``secrets`` in the core group."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(f'{qualified(resource)} "{name}" not found')


def already_exists(resource: Resource, name: str, *, deleting: bool = False) -> AlreadyExists:
    prefix = "object is being deleted: " if deleting else ""
    return AlreadyExists(f'{prefix}{qualified(resource)} "{name}" already exists')


def name_not_generated(resource: Resource, name: str) -> AlreadyExists:
    return AlreadyExists(
        f'{qualified(resource)} "{name}" already exists,'
        " the server was not able to generate a unique name for the object"
    )


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {why}')


def forbidden(resource: Resource, name: str, why: str, *causes: Cause) -> Forbidden:
    return Forbidden(f'{qualified(resource)} "{name}" is forbidden: {why}', causes=causes)


def version_missing(resource: Resource, name: str) -> Invalid:
    # As in Kubernetes, a number, and the plural instead of the kind.
    message = "Invalid value: 0x0: must be specified for an update"
    return invalid_kind(qualified(resource), name, (Cause("metadata.resourceVersion", message),))


def invalid(resource: Resource, name: str, causes: tuple[Cause, ...]) -> Invalid:
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return invalid_kind(kind, name, causes)


def invalid_kind(kind: str, name: str, causes: tuple[Cause, ...]) -> Invalid:
    lines = [
        f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes
    ]
    # Kubernetes reports each distinct error once, in brackets if there are several.
    distinct = list(dict.fromkeys(lines))
    listed = distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
    return Invalid(f'{kind} "{name}" is invalid: {listed}', causes=causes, name=name)
