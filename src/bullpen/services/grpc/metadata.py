"""The identity a call claims: four headers, each of which must be present exactly once."""

from __future__ import annotations

from collections.abc import Iterable

from bullpen.errors import BadRequest
from bullpen.identity.subjects import Role
from bullpen.services.callers import Anonymous, Claim


def claim(metadata: Iterable[tuple[str, str | bytes]] | None) -> Claim:
    """The caller's claim about itself; raises ``BadRequest`` or ``Anonymous``."""
    headers: dict[str, list[str]] = {}
    for key, value in metadata or ():
        headers.setdefault(key, []).append(value if isinstance(value, str) else "")
    return Claim(
        token=_token(headers.get("authorization", [])),
        role=_role(_one(headers, "jumpstarter-kind")),
        namespace=_one(headers, "jumpstarter-namespace"),
        name=_one(headers, "jumpstarter-name"),
    )


def _token(found: list[str]) -> str:
    if not found:
        raise Anonymous("no token was sent; use a client or exporter config of this service")
    if len(found) > 1:
        raise BadRequest("more than one authorization header was sent")
    scheme, _, token = found[0].partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise BadRequest("the authorization header must be 'Bearer TOKEN'")
    return token


def _one(headers: dict[str, list[str]], name: str) -> str:
    found = headers.get(name, [])
    if len(found) != 1 or not found[0]:
        raise BadRequest(f"the header {name} must be sent exactly once")
    return found[0]


def _role(value: str) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise BadRequest(f"jumpstarter-kind is {value!r}; it must be Client or Exporter") from None
