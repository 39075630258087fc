"""Names of resources in calls, such as ``namespaces/NS/leases/NAME``, and pages of lists.

Every name must be of the caller's own namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bullpen.api.kinds.client import Client
from bullpen.errors import BadRequest, Forbidden

PAGE_MAX = 1_000

T = TypeVar("T")


def within(parent: str, client: Client) -> str:
    """The namespace in ``namespaces/NS``, which must be the caller's own."""
    parts = parent.split("/")
    if len(parts) != 2 or parts[0] != "namespaces" or not parts[1]:
        raise BadRequest(f"{parent!r} is not of the form namespaces/NAMESPACE")
    return _own(parts[1], client)


def named(path: str, collection: str, client: Client) -> str:
    """The name in ``namespaces/NS/COLLECTION/NAME`` of the caller's own namespace."""
    parts = path.split("/")
    if len(parts) != 4 or parts[0] != "namespaces" or parts[2] != collection or not parts[3]:
        raise BadRequest(f"{path!r} is not of the form namespaces/NAMESPACE/{collection}/NAME")
    _own(parts[1], client)
    return parts[3]


def _own(namespace: str, client: Client) -> str:
    if namespace != client.metadata.namespace:
        raise Forbidden(f"client {client.metadata.name} does not belong to namespace {namespace}")
    return namespace


def page_of(found: Sequence[T], request: Any, names: list[str]) -> tuple[Sequence[T], str]:
    """The page after the token, which is the last name of the previous page."""
    size = min(request.page_size, PAGE_MAX) if request.page_size > 0 else PAGE_MAX
    start = 0
    if request.page_token:
        start = sum(name <= request.page_token for name in names)
    end = start + size
    return found[start:end], names[end - 1] if end < len(names) else ""
