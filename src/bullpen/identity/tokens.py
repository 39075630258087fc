"""Tokens that the service signs and verifies.

A cache of tokens whose signature was verified. Expiry is the caller's to check each time.

Tokens we sign: a year-long one per Client and Exporter, and short ones for streams.
Identity tokens are ES256 JWTs, because Jumpstarter's client decodes them to read ``exp``
and ``iss``. Several signing keys may be valid at once: the newest signs, all verify, which
allows rotation. Stream tokens are HS256 and issued twice per dial, once for each side, and
name the lease, its epoch and the side.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Generic, TypeVar

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet

from bullpen.errors import Unauthorized
from bullpen.identity.subjects import Role, Subject

C = TypeVar("C")


class VerifiedTokens(Generic[C]):
    """Claims by the digest of their token: the cache holds no token that could be replayed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._claims: dict[bytes, C] = {}

    def claims(self, token: str, verify: Callable[[str], C]) -> C:
        """The claims of ``token``, which ``verify`` reads and checks at its first use."""
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._claims.get(digest)
        if found is None:
            found = verify(token)
            if len(self._claims) >= self._most:
                self._claims.clear()
            self._claims[digest] = found
        return found


# The issuer of upstream's own tokens; `jmp` treats tokens of this issuer as internal.
ISSUER = "https://localhost:8085"
AUDIENCE = "jumpstarter"
STREAM_ISSUER = "https://jumpstarter.dev/stream"
STREAM_AUDIENCE = "https://jumpstarter.dev/router"

LIFETIME = timedelta(days=365)
STREAM_LIFETIME = timedelta(minutes=30)
CLOCK_SKEW = timedelta(minutes=1)

VERIFIED_MAX = 20_000
"""Tokens whose signature was verified and is cached; a verification costs 0.15 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of a verified identity token."""

    subject: Subject
    expires: datetime


class Signer:
    """Signs and verifies identity tokens."""

    def __init__(self, keys: tuple[ECKey, ...]) -> None:
        assert keys, "there is always a key to sign with"
        self._newest = keys[0]
        self._all = KeySet(list(keys))
        self._verified: VerifiedTokens[Claims] = VerifiedTokens(VERIFIED_MAX)

    def issue(self, subject: Subject, *, token_id: str, now: datetime) -> str:
        """A token for ``subject``. ``token_id`` makes two tokens of one moment differ."""
        claims = {
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": str(subject),
            "iat": int(now.timestamp()),
            "exp": int((now + LIFETIME).timestamp()),
            "jti": token_id,
        }
        header = {"alg": "ES256", "kid": self._newest.kid}
        return jwt.encode(header, claims, self._newest)

    def verify(self, token: str, *, now: datetime) -> Claims:
        """The claims of the token; raises ``Unauthorized`` unless it is ours and valid."""
        found = self._verified.claims(token, self._check)
        if found.expires <= now:
            # Avoids the words on which the client logs in again: no login renews a token of ours,
            # and the attempt would end in a traceback.
            raise Unauthorized("the token has run out; get a new one from its secret")
        return found

    def _check(self, token: str) -> Claims:
        try:
            claims = jwt.decode(token, self._all, algorithms=["ES256"]).claims
            return _claims(claims)
        except (JoseError, ValueError, KeyError, TypeError):
            raise Unauthorized("the token is not valid here; get a new one") from None


def _claims(claims: dict[str, Any]) -> Claims:
    if claims["iss"] != ISSUER or AUDIENCE not in claims["aud"]:
        raise ValueError("issuer or audience")
    role, namespace, name, uid = str(claims["sub"]).split(":")
    return Claims(
        subject=Subject(role=Role(role.capitalize()), namespace=namespace, name=name, uid=uid),
        expires=datetime.fromtimestamp(int(claims["exp"]), UTC),
    )


def expiry(token: str) -> datetime | None:
    """When a token of ours expires, without any verification."""
    try:
        return datetime.fromtimestamp(int(payload_of(token)["exp"]), UTC)
    except (KeyError, ValueError, TypeError):
        return None


def payload_of(token: str) -> dict[str, Any]:
    """The unverified claims of a token; raises ``ValueError`` if it is malformed."""
    try:
        return _unpack(token.split(".")[1])
    except (IndexError, TypeError, msgspec.DecodeError) as error:
        raise ValueError(f"not a token: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right of one side to be paired once."""

    stream: str
    """The id of the stream, which both sides of a dial share."""

    lease: str
    """Uid of the lease."""

    epoch: int
    role: Role
    expires: datetime


class Tickets:
    """Issues and verifies stream tokens. Five microseconds each: this is a hot path."""

    _HEADER = b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 32, "a short key could be guessed"
        self._key = key

    def mint(self, ticket: Ticket, *, now: datetime) -> str:
        claims = {
            "iss": STREAM_ISSUER,
            "aud": [STREAM_AUDIENCE],
            "sub": ticket.stream,
            "jti": f"{ticket.stream}-{ticket.role.lower()}",
            "iat": int(now.timestamp()),
            "nbf": int((now - CLOCK_SKEW).timestamp()),
            "exp": int(ticket.expires.timestamp()),
            "lease": ticket.lease,
            "epoch": ticket.epoch,
            "role": ticket.role.value,
        }
        signed = self._HEADER + b"." + _pack(claims)
        return (signed + b"." + _encode(self._mac(signed))).decode()

    def verify(self, token: str, *, now: datetime) -> Ticket:
        """The ticket in the token; raises ``Unauthorized``."""
        try:
            signed, _, signature = token.encode("ascii").rpartition(b".")
            if not hmac.compare_digest(_decode(signature), self._mac(signed)):
                raise ValueError("signature")
            header, _, payload = signed.partition(b".")
            if header != self._HEADER:
                raise ValueError("header")
            claims = _unpack(payload.decode())
            if claims["iss"] != STREAM_ISSUER or STREAM_AUDIENCE not in claims["aud"]:
                raise ValueError("issuer or audience")
            if not claims["nbf"] <= now.timestamp() < claims["exp"]:
                raise ValueError("not now")
            return Ticket(
                stream=str(claims["sub"]),
                lease=str(claims["lease"]),
                epoch=int(claims["epoch"]),
                role=Role(claims["role"]),
                expires=datetime.fromtimestamp(int(claims["exp"]), UTC),
            )
        except (ValueError, KeyError, TypeError, msgspec.DecodeError):
            raise Unauthorized("the stream token is not valid") from None

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")


def _encode(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _decode(data: bytes) -> bytes:
    return urlsafe_b64decode(data + b"=" * (-len(data) % 4))


def _pack(claims: dict[str, Any]) -> bytes:
    return _encode(msgspec.json.encode(claims))


def _unpack(part: str) -> dict[str, Any]:
    value = msgspec.json.decode(_decode(part.encode()))
    if not isinstance(value, dict):
        raise TypeError("claims")
    return value
