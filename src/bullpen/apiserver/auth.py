"""Who is asking, and what they may do.

A bearer token names a ``User`` with a role; roles are few and fixed. Tokens are
kept and compared as digests only, so that nothing readable at run time can be
replayed. Deciding is pure (``permits``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bullpen.errors import Unauthorized

READ_VERBS = frozenset({"get", "list", "watch"})

PUBLIC_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
"""Answered without a token, for load balancers; they say nothing but up or down."""


class Role(Enum):
    ADMIN = "admin"
    """Everything."""

    VIEW = "view"
    """Reads everything except Secrets."""

    NONE = "none"
    """Known here, but with no business at this API: Jumpstarter clients and exporters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    role: Role
    uid: str = ""
    groups: tuple[str, ...] = ("system:authenticated",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What is being asked for, in the words of a SubjectAccessReview."""

    verb: str
    group: str = ""
    resource: str = ""
    """Plural name; empty for paths that are not resources."""

    subresource: str = ""
    path: str = ""


class Authenticator(Protocol):
    def identify(self, token: str) -> User | None:
        """The user this token belongs to, or None if the token means nothing here."""


class TokenTable:
    """A fixed set of opaque tokens."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = {digest(token): user for token, user in users.items()}

    def identify(self, token: str) -> User | None:
        # A dict lookup on a digest leaks nothing about the token by its timing.
        return self._users.get(digest(token))


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def authenticate(headers: Mapping[str, str], authenticators: tuple[Authenticator, ...]) -> User:
    """The caller; raises ``Unauthorized`` for nobody, or for a token nobody knows."""
    header = headers.get("authorization", "")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("no bearer token was sent; use the kubeconfig in the data directory")
    for authenticator in authenticators:
        user = authenticator.identify(token)
        if user is not None:
            return user
    raise Unauthorized("the bearer token is not valid here; use the kubeconfig of this server")


def permits(user: User, action: Action) -> bool:
    """Whether the user may do this."""
    if user.role is Role.ADMIN:
        return True
    if user.role is Role.NONE:
        return False
    if action.group in ("authorization.k8s.io", "authentication.k8s.io"):
        return action.verb == "create"
    if action.verb not in READ_VERBS:
        return False
    return (action.group, action.resource) != ("", "secrets")
