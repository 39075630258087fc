"""Signing in at an outside issuer with a browser: the authorization code flow with PKCE.

As OpenID Connect Core 3.1 and RFC 7636 describe it. Nothing is kept between the two halves:
everything that the second half needs follows from a secret that the browser holds in a cookie,
so that callers who are not signed in cannot make the service remember anything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote_plus, urlencode

import msgspec

from bullpen.errors import TooManyRequests, Unauthorized, Unavailable
from bullpen.identity.oidc import REFRESH_PAUSE, Fetch, OutsideTokens
from bullpen.identity.tokens import payload_of
from bullpen.kit.clock import Clock

Post = Callable[[str, Mapping[str, str], str], Awaitable[bytes]]
"""Sends a form to a URL, with the value of the Authorization header or nothing.

Raises ``Unauthorized`` if it is refused, ``Unavailable`` if it is not answered.
"""

EXCHANGES_MAX = 16
"""Concurrent exchanges of a code or of a refresh token."""

SECRET_LENGTH_MAX = 128
CODE_LENGTH_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserClient:
    """What an issuer knows the dashboard as."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty for a public client."""

    scopes: tuple[str, ...] = ("openid",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an issuer gave."""

    token: str = field(repr=False)
    """The identity token, whose signature, issuer and audience are verified."""

    renewal: Renewal | None = None
    """How to get the next one; None if the issuer gives no refresh token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    client: BrowserClient
    refresh_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Endpoints:
    authorization: str
    token: str


class CodeFlow:
    def __init__(
        self,
        clients: tuple[BrowserClient, ...],
        tokens: OutsideTokens,
        *,
        fetch: Fetch,
        post: Post,
        clock: Clock,
    ) -> None:
        self.clients = clients
        self._tokens = tokens
        self._fetch, self._post, self._clock = fetch, post, clock
        self._endpoints: dict[str, _Endpoints] = {}
        self._failed: dict[str, datetime] = {}
        self._exchanging = 0

    async def begin(self, index: int, secret: str, redirect: str) -> str:
        """The address at the issuer to send the browser to, which holds ``secret``."""
        client = self.clients[index]
        endpoints = await self._endpoints_of(client.issuer)
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(client.scopes),
            "state": _state(index, secret),
            "nonce": _derived("nonce", secret),
            "code_challenge": _encoded(hashlib.sha256(_verifier(secret).encode()).digest()),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in endpoints.authorization else "?"
        return f"{endpoints.authorization}{joint}{urlencode(query)}"

    async def finish(self, secret: str, state: str, code: str, redirect: str) -> Grant:
        """Exchange the code that the browser brought back. Raises ``Unauthorized``."""
        index = state.partition(".")[0]
        known = index.isdigit() and len(index) < 4 and int(index) < len(self.clients)
        if not known or not 0 < len(secret) <= SECRET_LENGTH_MAX or len(code) > CODE_LENGTH_MAX:
            raise Unauthorized("the sign-in was not begun in this browser; begin again")
        if not hmac.compare_digest(state.encode(), _state(int(index), secret).encode()):
            raise Unauthorized("the sign-in was not begun in this browser; begin again")
        client = self.clients[int(index)]
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": _verifier(secret),
        }
        grant = await self._exchange(client, form)
        if payload_of(grant.token).get("nonce") != _derived("nonce", secret):
            raise Unauthorized("the issuer's token belongs to another sign-in; begin again")
        return grant

    async def renew(self, renewal: Renewal) -> Grant:
        """The next token of a person who is signed in. Raises ``Unauthorized``."""
        form = {"grant_type": "refresh_token", "refresh_token": renewal.refresh_token}
        grant = await self._exchange(renewal.client, form)
        # An issuer may let the former refresh token go on.
        return grant if grant.renewal is not None else Grant(token=grant.token, renewal=renewal)

    async def _exchange(self, client: BrowserClient, form: Mapping[str, str]) -> Grant:
        if self._exchanging >= EXCHANGES_MAX:
            raise TooManyRequests("too many people are signing in; try again")
        self._exchanging += 1
        try:
            endpoints = await self._endpoints_of(client.issuer)
            authorization, own = "", {"client_id": client.client_id}
            if client.client_secret:
                # Both are encoded as in a form (RFC 6749, 2.3.1).
                pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
                authorization, own = f"Basic {base64.b64encode(pair.encode()).decode()}", {}
            answer = await self._post(endpoints.token, {**form, **own}, authorization)
            return await self._granted(client, answer)
        finally:
            self._exchanging -= 1

    async def _granted(self, client: BrowserClient, answer: bytes) -> Grant:
        try:
            given = msgspec.json.decode(answer, type=_Answer)
        except msgspec.DecodeError:
            raise Unavailable(f"{client.issuer} gave an answer without an identity token") from None
        await self._tokens.identity(given.id_token)
        audience = payload_of(given.id_token).get("aud", ())
        if client.client_id not in ([audience] if isinstance(audience, str) else audience):
            raise Unauthorized("the issuer's token is for another application")
        renewal = (
            Renewal(client=client, refresh_token=given.refresh_token)
            if given.refresh_token
            else None
        )
        return Grant(token=given.id_token, renewal=renewal)

    async def _endpoints_of(self, issuer: str) -> _Endpoints:
        """From the discovery document, which is fetched once; a failure is remembered a while."""
        found = self._endpoints.get(issuer)
        if found is not None:
            return found
        now, failed = self._clock.now(), self._failed.get(issuer)
        if failed is not None and now - failed < REFRESH_PAUSE:
            raise Unavailable(f"{issuer} could not be reached; try again in half a minute")
        self._failed[issuer] = now
        base = issuer.rstrip("/")
        try:
            document = await self._fetch(f"{base}/.well-known/openid-configuration")
            read = msgspec.json.decode(document, type=_Discovery)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the configuration of {base} cannot be read: {error}") from None
        if read.issuer.rstrip("/") != base:
            raise Unavailable(f"{base} says it is another issuer: {read.issuer}")
        self._endpoints[issuer] = _Endpoints(read.authorization_endpoint, read.token_endpoint)
        del self._failed[issuer]
        return self._endpoints[issuer]


class _Discovery(msgspec.Struct):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str


class _Answer(msgspec.Struct):
    id_token: str
    refresh_token: str = ""


def _state(index: int, secret: str) -> str:
    return f"{index}.{_derived(f'state {index}', secret)}"


def _verifier(secret: str) -> str:
    return _derived("verifier", secret)


def _derived(purpose: str, secret: str) -> str:
    return _encoded(hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
