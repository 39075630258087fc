"""The identity of callers: tokens, client certificates and impersonation.

Authentication of callers: bearer tokens and client certificates. Each method is an
``Authenticator``; the first one that knows a token answers. Static tokens are kept and
compared as digests only, so that nothing readable at run time can be replayed.

Impersonation of other users: the ``Impersonate-*`` headers that ``kubectl --as`` sends.
Pure. ``requested`` parses the headers, ``required`` returns the rights the caller needs,
one for each part of the requested identity, and ``impersonated`` is the resulting user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from bullpen.api.kinds import core
from bullpen.api.kinds.core import ServiceAccount, groups, username
from bullpen.api.objects import Objects
from bullpen.apiserver.http import Request
from bullpen.core.rbac.authorization import AUTHENTICATED, Attributes, User
from bullpen.errors import BadRequest, NotFound, Unauthorized
from bullpen.identity.client_certificates import RESERVED, user_of_certificate
from bullpen.identity.oidc import OutsideTokens
from bullpen.identity.serviceaccounts import API_AUDIENCE, AccountTokens
from bullpen.kit.clock import Clock

PUBLIC_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
"""Served without a token, for load balancers; they reveal only up or down."""


class Authenticator(Protocol):
    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        """The user of this token; None if the token is unknown here.

        A token with audiences must have one of ``audiences``.
        """


class TokenTable:
    """A fixed set of opaque tokens, for this API server only."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = {digest(token): user for token, user in users.items()}

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        # The timing of a dict lookup by digest reveals nothing about the token.
        found = self._users.get(digest(token))
        return found if API_AUDIENCE in audiences else None


class ServiceAccountTokens:
    """Tokens issued by the ``token`` subresource, while their ServiceAccount exists."""

    def __init__(self, tokens: AccountTokens, objects: Objects, clock: Clock) -> None:
        self._tokens = tokens
        self._objects = objects
        self._clock = clock

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if not self._tokens.knows(token):
            return None
        try:
            claims = self._tokens.verify(token, now=self._clock.now())
            account = await self._objects.get(ServiceAccount, claims.namespace, claims.name)
        except (Unauthorized, NotFound):
            return None
        if account.metadata.uid != claims.uid or not claims.audiences & audiences:
            return None
        return User(
            name=username(claims.namespace, claims.name),
            uid=claims.uid,
            groups=(*groups(claims.namespace), AUTHENTICATED),
            extra={"authentication.kubernetes.io/credential-id": (f"JTI={claims.token_id}",)},
        )


class OidcTokens:
    """Tokens of the configured OpenID Connect issuers."""

    def __init__(self, outside: OutsideTokens) -> None:
        self._outside = outside

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if API_AUDIENCE not in audiences or not self._outside.knows(token):
            return None
        try:
            found = await self._outside.identity(token)
        except Unauthorized:
            return None
        if found.username.startswith(RESERVED):
            return None
        named = tuple(group for group in found.groups if not group.startswith(RESERVED))
        return User(name=found.username, groups=(*named, AUTHENTICATED))


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def authenticate(request: Request, authenticators: tuple[Authenticator, ...]) -> User:
    """The caller; raises ``Unauthorized`` for missing or unknown credentials.

    A bearer token takes precedence over a certificate, as in Kubernetes' clients.
    """
    header = request.headers.get("authorization", "")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and token:
        user = await user_of_token(token, authenticators, frozenset({API_AUDIENCE}))
        if user is None:
            raise Unauthorized(
                "the bearer token is not valid here; use the kubeconfig of this server"
            )
        return user
    if request.certificate:
        return user_of_certificate(request.certificate)
    raise Unauthorized(
        "no bearer token or client certificate was sent; use the kubeconfig in the data directory"
    )


async def user_of_token(
    token: str, authenticators: tuple[Authenticator, ...], audiences: frozenset[str]
) -> User | None:
    for authenticator in authenticators:
        user = await authenticator.identify(token, audiences)
        if user is not None:
            return user
    return None


PREFIX = "impersonate-"
EXTRA_PREFIX = "extra-"
HEADERS_MAX = 100
AUTHENTICATION = "authentication.k8s.io"
ANONYMOUS = "system:anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """The identity a caller asks to act as."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """Keys and values; a key with several values occurs several times."""


def requested(headers: tuple[tuple[str, str], ...]) -> Impersonation | None:
    """The impersonation in the headers; None if there is none. Raises ``BadRequest``."""
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        raise BadRequest(f"more than {HEADERS_MAX} Impersonate headers were sent")
    users: list[str] = []
    uids: list[str] = []
    groups: list[str] = []
    extra: list[tuple[str, str]] = []
    for name, value in headers:
        part = name.removeprefix(PREFIX)
        if part == "user":
            users.append(value)
        elif part == "group":
            groups.append(value)
        elif part == "uid":
            uids.append(value)
        elif part.startswith(EXTRA_PREFIX):
            extra.append((unquote(part.removeprefix(EXTRA_PREFIX)), value))
    if not users or not users[0]:
        raise BadRequest("Impersonate headers were sent without Impersonate-User; name a user")
    return Impersonation(
        user=users[0], uid=uids[0] if uids else "", groups=tuple(groups), extra=tuple(extra)
    )


def required(wanted: Impersonation) -> Iterator[Attributes]:
    """The rights a caller needs for this impersonation."""
    account = core.parse_username(wanted.user)
    if account is not None:
        namespace, name = account
        yield Attributes(
            verb="impersonate", resource="serviceaccounts", namespace=namespace, name=name
        )
    else:
        yield Attributes(verb="impersonate", resource="users", name=wanted.user)
    for group in wanted.groups:
        yield Attributes(verb="impersonate", resource="groups", name=group)
    for key, value in wanted.extra:
        yield Attributes(
            verb="impersonate",
            group=AUTHENTICATION,
            resource="userextras",
            subresource=key,
            name=value,
        )
    if wanted.uid:
        yield Attributes(verb="impersonate", group=AUTHENTICATION, resource="uids", name=wanted.uid)


def impersonated(wanted: Impersonation) -> User:
    """The user that ``wanted`` describes, with the groups that every such user has."""
    groups = list(wanted.groups)
    account = core.parse_username(wanted.user)
    if account is not None and not groups:
        groups.extend(core.groups(account[0]))
    if wanted.user != ANONYMOUS:
        groups.append(AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {}
    for key, value in wanted.extra:
        extra[key] = (*extra.get(key, ()), value)
    return User(name=wanted.user, uid=wanted.uid, groups=tuple(dict.fromkeys(groups)), extra=extra)
