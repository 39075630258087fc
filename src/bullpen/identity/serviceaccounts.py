"""Tokens of ServiceAccounts: signed JWTs in Kubernetes' own form.

A token contains the uid of its account, so that it is invalid after the account is deleted,
and its audiences. The caller checks whether the account still exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet

from bullpen.errors import Unauthorized
from bullpen.identity.tokens import VerifiedTokens, payload_of

ISSUER = "https://kubernetes.default.svc"
API_AUDIENCE = ISSUER
"""The audience of this API server, as in Kubernetes the same as its issuer."""

LIFETIME_DEFAULT = timedelta(hours=1)
LIFETIME_MIN = timedelta(minutes=10)
LIFETIME_MAX = timedelta(days=365)
"""A longer lifetime is shortened to this; the answer says when the token expires."""

AUDIENCES_MAX = 20
VERIFIED_MAX = 10_000
"""Tokens whose signature was verified and is cached."""

_PRIVATE = "kubernetes.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountClaims:
    """The claims of a verified token."""

    namespace: str
    name: str
    uid: str
    token_id: str
    audiences: frozenset[str]
    expires: datetime


class AccountTokens:
    """Signs and verifies tokens of ServiceAccounts."""

    def __init__(self, keys: tuple[ECKey, ...]) -> None:
        assert keys, "there is always a key to sign with"
        self._newest = keys[0]
        self._all = KeySet(list(keys))
        self._verified: VerifiedTokens[AccountClaims] = VerifiedTokens(VERIFIED_MAX)

    def issue(self, claims: AccountClaims, *, now: datetime) -> str:
        """A token with these claims."""
        content = {
            "iss": ISSUER,
            "aud": sorted(claims.audiences),
            "sub": f"system:serviceaccount:{claims.namespace}:{claims.name}",
            "iat": int(now.timestamp()),
            "nbf": int(now.timestamp()),
            "exp": int(claims.expires.timestamp()),
            "jti": claims.token_id,
            _PRIVATE: {
                "namespace": claims.namespace,
                "serviceaccount": {"name": claims.name, "uid": claims.uid},
            },
        }
        return jwt.encode({"alg": "ES256", "kid": self._newest.kid}, content, self._newest)

    def knows(self, token: str) -> bool:
        """Whether the token claims to be of this kind; not verified yet."""
        try:
            return payload_of(token).get("iss") == ISSUER
        except (ValueError, AttributeError):
            return False

    def verify(self, token: str, *, now: datetime) -> AccountClaims:
        """The claims of the token; raises ``Unauthorized`` unless signed here and valid."""
        found = self._verified.claims(token, self._check)
        if found.expires <= now:
            raise Unauthorized("the token has expired; request a new one")
        return found

    def _check(self, token: str) -> AccountClaims:
        try:
            claims = jwt.decode(token, self._all, algorithms=["ES256"]).claims
            return _claims(claims)
        except (JoseError, ValueError, KeyError, TypeError):
            raise Unauthorized("the token is not valid here; request a new one") from None


def _claims(claims: dict[str, Any]) -> AccountClaims:
    if claims["iss"] != ISSUER:
        raise ValueError("issuer")
    private = claims[_PRIVATE]
    return AccountClaims(
        namespace=str(private["namespace"]),
        name=str(private["serviceaccount"]["name"]),
        uid=str(private["serviceaccount"]["uid"]),
        token_id=str(claims.get("jti", "")),
        audiences=frozenset(map(str, claims["aud"])),
        expires=datetime.fromtimestamp(int(claims["exp"]), UTC),
    )
