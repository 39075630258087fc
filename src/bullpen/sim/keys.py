"""Identity tokens as cheap as a digest: the same claims, one shared key.

A real signature costs more than all the rest of a simulated lease and differs each time, so
runs would not be reproducible.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from datetime import UTC, datetime

import msgspec

from bullpen.app.config import Config
from bullpen.app.lab import Keys
from bullpen.app.login import outside_tokens
from bullpen.errors import Unauthorized
from bullpen.identity.subjects import Role, Subject
from bullpen.identity.tokens import (
    LIFETIME,
    VERIFIED_MAX,
    Claims,
    Signer,
    Tickets,
    VerifiedTokens,
    payload_of,
)
from bullpen.kit.clock import Clock

_KEY = b"k" * 32
_HEADER = urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=").decode()


class CheapSigner(Signer):
    """A ``Signer`` for a world without attackers who could guess its key."""

    def __init__(self) -> None:
        self._verified = VerifiedTokens(VERIFIED_MAX)

    def issue(self, subject: Subject, *, token_id: str, now: datetime) -> str:
        claims = {"sub": str(subject), "exp": int((now + LIFETIME).timestamp()), "jti": token_id}
        payload = urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()
        return f"{_HEADER}.{payload}.{_mac(payload)}"

    def _check(self, token: str) -> Claims:
        try:
            _, payload, mac = token.split(".")
            if not hmac.compare_digest(mac, _mac(payload)):
                raise ValueError("signature")
            claims = payload_of(token)
            role, namespace, name, uid = str(claims["sub"]).split(":")
        except (ValueError, KeyError):
            raise Unauthorized("the token is not valid here; get a new one") from None
        return Claims(
            subject=Subject(role=Role(role.capitalize()), namespace=namespace, name=name, uid=uid),
            expires=datetime.fromtimestamp(int(claims["exp"]), UTC),
        )


def cheap_keys(clock: Clock) -> Keys:
    """The keys of a lab without outside issuers."""
    return Keys(
        signer=CheapSigner(),
        tickets=Tickets(_KEY),
        outside=outside_tokens(Config(), clock),
    )


def _mac(payload: str) -> str:
    return hmac.digest(_KEY, payload.encode(), hashlib.sha256).hex()
