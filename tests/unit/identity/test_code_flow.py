"""Signing in at an issuer with a browser: what is sent, what is believed, what is remembered."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from bullpen.errors import TooManyRequests, Unauthorized, Unavailable
from bullpen.identity.code_flow import EXCHANGES_MAX, BrowserClient, CodeFlow, Renewal
from bullpen.identity.oidc import REFRESH_PAUSE, Issuer, OutsideTokens
from bullpen.identity.tokens import payload_of
from bullpen.kit.clock import VirtualClock

ADDRESS = "https://issuer.example"
BACK = "https://lab:8080/dashboard/oidc/back"
SECRET = "what-the-browser-holds"
ISSUER = Issuer(
    address=ADDRESS,
    audiences=frozenset({"bullpen", "jumpstarter-cli"}),
    username_claim="preferred_username",
    prefix="oidc:",
)


class Provider:
    """An issuer that exchanges codes as RFC 7636 demands."""

    def __init__(self, client_secret: str = "") -> None:
        self.clock = VirtualClock()
        self.key: Any = ECKey.generate_key("P-256", {"kid": "one"}, private=True)
        self.fetches: list[str] = []
        self.posts: list[tuple[dict[str, str], str]] = []
        self.challenge = ""
        self.claims: dict[str, Any] = {}
        self.refresh_token = "again"
        self.down = False
        tokens = OutsideTokens((ISSUER,), fetch=self.fetch, clock=self.clock)
        client = BrowserClient(
            issuer=ADDRESS, client_id="bullpen", client_secret=client_secret, scopes=("openid",)
        )
        self.flow = CodeFlow((client,), tokens, fetch=self.fetch, post=self.post, clock=self.clock)

    async def fetch(self, url: str) -> bytes:
        self.fetches.append(url)
        if self.down:
            raise Unavailable("no answer")
        if url.endswith("openid-configuration"):
            return msgspec.json.encode(
                {
                    "issuer": ADDRESS,
                    "authorization_endpoint": f"{ADDRESS}/authorize",
                    "token_endpoint": f"{ADDRESS}/token",
                    "jwks_uri": f"{ADDRESS}/keys",
                }
            )
        return msgspec.json.encode(KeySet([self.key]).as_dict(private=False))

    async def post(self, url: str, form: Mapping[str, str], authorization: str) -> bytes:
        assert url == f"{ADDRESS}/token"
        self.posts.append((dict(form), authorization))
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != self.challenge:
                raise Unauthorized("wrong verifier")
        return msgspec.json.encode({"id_token": self.token(), "refresh_token": self.refresh_token})

    def token(self) -> str:
        now = int(self.clock.now().timestamp())
        claims = {
            "iss": ADDRESS,
            "aud": "bullpen",
            "exp": now + 300,
            "preferred_username": "alice",
            **self.claims,
        }
        return jwt.encode({"alg": "ES256", "kid": "one"}, claims, self.key)

    async def visited(self, secret: str = SECRET) -> dict[str, str]:
        """What the issuer is asked for when a browser begins; the issuer remembers it."""
        query = parse_qs(urlsplit(await self.flow.begin(0, secret, BACK)).query)
        asked = {name: values[0] for name, values in query.items()}
        self.challenge = asked["code_challenge"]
        self.claims.setdefault("nonce", asked["nonce"])
        return asked


async def test_a_browser_brings_a_code_that_is_exchanged_for_a_token() -> None:
    provider = Provider()
    asked = await provider.visited()
    assert asked["response_type"] == "code"
    assert asked["client_id"] == "bullpen"
    assert asked["redirect_uri"] == BACK
    assert asked["code_challenge_method"] == "S256"
    grant = await provider.flow.finish(SECRET, asked["state"], "code", BACK)
    assert payload_of(grant.token) == payload_of(provider.token())
    (form, authorization) = provider.posts[0]
    assert form["client_id"] == "bullpen"
    assert form["redirect_uri"] == BACK
    assert authorization == ""
    assert SECRET not in str(asked), "the secret itself never leaves the browser and the service"


async def test_a_confidential_client_authenticates_with_its_secret() -> None:
    provider = Provider(client_secret="s3cret")
    asked = await provider.visited()
    await provider.flow.finish(SECRET, asked["state"], "code", BACK)
    (form, authorization) = provider.posts[0]
    assert authorization == f"Basic {base64.b64encode(b'bullpen:s3cret').decode()}"
    assert "client_id" not in form


@pytest.mark.parametrize(
    ("secret", "state"),
    [
        pytest.param("of another browser", None, id="another browser"),
        pytest.param("", None, id="no cookie"),
        pytest.param(SECRET, "0.forged", id="a forged state"),
        pytest.param(SECRET, "7.forged", id="an issuer that does not exist"),
        pytest.param(SECRET, "", id="no state"),
        pytest.param("x" * 1_000, None, id="a cookie that is too long"),
    ],
)
async def test_only_the_browser_that_began_can_finish(secret: str, state: str | None) -> None:
    provider = Provider()
    asked = await provider.visited()
    with pytest.raises(Unauthorized, match="not begun in this browser"):
        await provider.flow.finish(secret, asked["state"] if state is None else state, "c", BACK)
    assert provider.posts == []


async def test_a_token_of_another_sign_in_is_refused() -> None:
    provider = Provider()
    asked = await provider.visited()
    provider.claims["nonce"] = "another"
    with pytest.raises(Unauthorized, match="another sign-in"):
        await provider.flow.finish(SECRET, asked["state"], "code", BACK)


async def test_a_token_for_another_application_is_refused() -> None:
    provider = Provider()
    asked = await provider.visited()
    provider.claims["aud"] = "jumpstarter-cli"
    with pytest.raises(Unauthorized, match="another application"):
        await provider.flow.finish(SECRET, asked["state"], "code", BACK)


async def test_a_forged_token_is_refused() -> None:
    provider = Provider()
    asked = await provider.visited()
    await provider.flow.finish(SECRET, asked["state"], "code", BACK)
    provider.key = ECKey.generate_key("P-256", {"kid": "one"}, private=True)
    with pytest.raises(Unauthorized):
        await provider.flow.finish(SECRET, asked["state"], "code", BACK)


async def test_a_token_is_renewed_with_the_newest_refresh_token() -> None:
    provider = Provider()
    asked = await provider.visited()
    grant = await provider.flow.finish(SECRET, asked["state"], "code", BACK)
    assert grant.renewal is not None
    provider.clock.advance(timedelta(minutes=10))
    provider.refresh_token = "and again"
    second = await provider.flow.renew(grant.renewal)
    assert second.token != grant.token
    assert provider.posts[-1][0]["refresh_token"] == "again"
    provider.refresh_token = ""
    assert second.renewal is not None
    third = await provider.flow.renew(second.renewal)
    assert provider.posts[-1][0]["refresh_token"] == "and again"
    assert third.renewal == second.renewal, "the issuer lets the former one go on"


async def test_an_issuer_that_is_down_is_asked_twice_a_minute_at_most() -> None:
    provider = Provider()
    provider.down = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            await provider.flow.begin(0, SECRET, BACK)
    assert len(provider.fetches) == 1
    provider.clock.advance(REFRESH_PAUSE)
    provider.down = False
    await provider.visited()
    await provider.visited()
    assert len(provider.fetches) == 2, "its configuration is fetched once"


async def test_exchanges_at_a_time_are_limited() -> None:
    provider = Provider()
    asked = await provider.visited()
    held = asyncio.Event()
    answer = provider.post

    async def slow(url: str, form: Mapping[str, str], authorization: str) -> bytes:
        await held.wait()
        return await answer(url, form, authorization)

    flow = CodeFlow(
        provider.flow.clients,
        OutsideTokens((ISSUER,), fetch=provider.fetch, clock=provider.clock),
        fetch=provider.fetch,
        post=slow,
        clock=provider.clock,
    )
    running = [
        asyncio.ensure_future(flow.finish(SECRET, asked["state"], "code", BACK))
        for _ in range(EXCHANGES_MAX)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await flow.renew(Renewal(client=flow.clients[0], refresh_token="x"))
    held.set()
    assert len({grant.token for grant in await asyncio.gather(*running)}) >= 1
