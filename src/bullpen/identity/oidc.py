"""Tokens of outside issuers: the user they name, after signature and claims are verified.

The caller provides the function that fetches the issuer's documents. Keys are cached and
fetched again only when a token names an unknown key, and at most every half minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from bullpen.errors import TooManyRequests, Unauthorized, Unavailable
from bullpen.identity.tokens import payload_of
from bullpen.kit.clock import Clock

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the document at a URL; raises ``Unavailable``."""

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
"""Asymmetric signatures only: a token with a shared secret or without one proves nothing."""

REFRESH_PAUSE = timedelta(seconds=30)
CLOCK_SKEW = timedelta(seconds=60)
VERIFIED_MAX = 10_000
GROUPS_MAX = 1_000
"""Groups of one user that are considered."""

VERIFYING_MAX = 64
"""Concurrent verifications.

A verification may wait for the issuer, and any caller can send a token that names it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRule:
    """Users whose claim has the value may be provisioned in these namespaces."""

    claim: str
    value: str
    namespaces: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """A trusted issuer, and the names of its users here."""

    address: str
    audiences: frozenset[str]
    username_claim: str
    prefix: str
    namespaces: frozenset[str] = frozenset()
    """Namespaces where every user of the issuer may be provisioned."""

    namespace_rules: tuple[NamespaceRule, ...] = ()
    """Further namespaces, for some of the users."""
    groups_claim: str = "groups"
    groups_prefix: str = "oidc:"


@dataclass(frozen=True, slots=True)
class OutsideUser:
    """The user a token names, with the issuer's prefixes, and its namespaces."""

    username: str
    namespaces: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Verified:
    user: OutsideUser
    expires: float


class OutsideTokens:
    """Verifies tokens of the configured issuers."""

    def __init__(self, issuers: tuple[Issuer, ...], *, fetch: Fetch, clock: Clock) -> None:
        self._issuers = {issuer.address.rstrip("/"): issuer for issuer in issuers}
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, KeySet] = {}
        self._fetched: dict[str, datetime] = {}
        self._verified: dict[str, _Verified] = {}
        self._verifying = 0

    def knows(self, token: str) -> bool:
        """Whether the token claims to be from one of our issuers; not verified yet."""
        return self._issuer(token) is not None

    async def username(self, token: str) -> str:
        """The name of the user, with the issuer's prefix; raises ``Unauthorized``."""
        return (await self.identity(token)).username

    async def identity(self, token: str) -> OutsideUser:
        """The user and the groups that the token names; raises ``Unauthorized``."""
        now = self._clock.now().timestamp()
        found = self._verified.get(token)
        if found is None:
            found = await self._verify_bounded(token)
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[token] = found
        if found.expires + CLOCK_SKEW.total_seconds() <= now:
            del self._verified[token]
            raise Unauthorized("token is expired")
        return found.user

    def _issuer(self, token: str) -> Issuer | None:
        try:
            claimed = str(payload_of(token).get("iss", ""))
        except ValueError:
            return None
        return self._issuers.get(claimed.rstrip("/"))

    async def _verify_bounded(self, token: str) -> _Verified:
        if self._verifying >= VERIFYING_MAX:
            raise TooManyRequests("too many tokens of outside issuers are being checked; try again")
        self._verifying += 1
        try:
            return await self._verify(token)
        finally:
            self._verifying -= 1

    async def _verify(self, token: str) -> _Verified:
        issuer = self._issuer(token)
        if issuer is None:
            raise Unauthorized("the token's issuer is not configured here")
        keys = await self._keys_of(issuer, refresh=False)
        try:
            claims = self._decoded(token, keys)
        except JoseError:
            # It may be signed with a key that is newer than the cached ones.
            keys = await self._keys_of(issuer, refresh=True)
            try:
                claims = self._decoded(token, keys)
            except JoseError:
                raise Unauthorized("token signature verification failed") from None
        return self._accepted(issuer, claims)

    def _decoded(self, token: str, keys: KeySet) -> dict[str, Any]:
        try:
            return jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        except (ValueError, TypeError, KeyError) as error:
            raise JoseError(str(error)) from None

    def _accepted(self, issuer: Issuer, claims: dict[str, Any]) -> _Verified:
        audience = claims.get("aud", ())
        audiences = {audience} if isinstance(audience, str) else set(audience)
        if not audiences & issuer.audiences:
            raise Unauthorized("token audience is not accepted here")
        now = self._clock.now().timestamp()
        begins, expires = claims.get("nbf", 0), claims.get("exp")
        if not isinstance(expires, int | float) or not isinstance(begins, int | float):
            raise Unauthorized("token has no exp claim")
        if begins - CLOCK_SKEW.total_seconds() > now:
            raise Unauthorized("the token is not valid yet")
        name = claims.get(issuer.username_claim)
        if not isinstance(name, str) or not name:
            raise Unauthorized(f"the token has no claim {issuer.username_claim!r}")
        groups = tuple(f"{issuer.groups_prefix}{group}" for group in _groups(issuer, claims))
        namespaces = namespaces_of(issuer, claims)
        user = OutsideUser(f"{issuer.prefix}{name}", namespaces, groups)
        return _Verified(user, float(expires))

    async def _keys_of(self, issuer: Issuer, *, refresh: bool) -> KeySet:
        found = self._keys.get(issuer.address)
        now = self._clock.now()
        before = self._fetched.get(issuer.address)
        rested = before is None or now - before >= REFRESH_PAUSE
        if found is not None and not (refresh and rested):
            return found
        self._fetched[issuer.address] = now
        keys = await self._fetch_keys(issuer)
        self._keys[issuer.address] = keys
        return keys

    async def _fetch_keys(self, issuer: Issuer) -> KeySet:
        base = issuer.address.rstrip("/")
        try:
            discovery = msgspec.json.decode(
                await self._fetch(f"{base}/.well-known/openid-configuration")
            )
            if str(discovery["issuer"]).rstrip("/") != base:
                raise Unavailable(f"{base} says it is another issuer: {discovery['issuer']}")
            keys = msgspec.json.decode(await self._fetch(discovery["jwks_uri"]))
            return KeySet.import_key_set(keys)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, JoseError) as error:
            raise Unavailable(f"the keys of {base} cannot be read: {error}") from None


def namespaces_of(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[str]:
    """The namespaces where a user with these claims may be provisioned."""
    granted = (
        rule.namespaces
        for rule in issuer.namespace_rules
        if _has(claims.get(rule.claim), rule.value)
    )
    return issuer.namespaces.union(*granted)


def _has(claim: object, value: str) -> bool:
    """Whether a claim equals the value, or is a list that contains it."""
    return claim == value or (isinstance(claim, list) and value in claim)


def _groups(issuer: Issuer, claims: dict[str, Any]) -> tuple[str, ...]:
    found = claims.get(issuer.groups_claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return tuple(group for group in listed[:GROUPS_MAX] if isinstance(group, str) and group)
