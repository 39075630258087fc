"""Tokens of outside issuers: whom they name, and what they are refused for."""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from bullpen.errors import TooManyRequests, Unauthorized, Unavailable
from bullpen.identity.oidc import (
    REFRESH_PAUSE,
    VERIFYING_MAX,
    Issuer,
    NamespaceRule,
    OutsideTokens,
    namespaces_of,
)
from bullpen.kit.clock import VirtualClock

ADDRESS = "https://issuer.example"
ISSUER = Issuer(
    address=ADDRESS,
    audiences=frozenset({"jumpstarter-cli"}),
    username_claim="preferred_username",
    prefix="dex:",
)


class Provider:
    """An issuer's documents and keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.key: Any = ECKey.generate_key("P-256", {"kid": "one"}, private=True)
        self.fetches: list[str] = []
        self.name = ADDRESS
        self.tokens = OutsideTokens((ISSUER,), fetch=self.fetch, clock=self.clock)

    async def fetch(self, url: str) -> bytes:
        self.fetches.append(url)
        if url.endswith("openid-configuration"):
            return msgspec.json.encode({"issuer": self.name, "jwks_uri": f"{ADDRESS}/keys"})
        return msgspec.json.encode(KeySet([self.key]).as_dict(private=False))

    def token(self, key: Any = None, alg: str = "ES256", **claims: Any) -> str:
        now = int(self.clock.now().timestamp())
        content = {
            "iss": ADDRESS,
            "aud": "jumpstarter-cli",
            "exp": now + 300,
            "preferred_username": "alice",
            **claims,
        }
        chosen = key or self.key
        header = {"alg": alg, "kid": chosen.kid or "one"}
        found = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(header, found, chosen, algorithms=[alg])


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def test_a_good_token_names_its_user(provider: Provider) -> None:
    assert provider.tokens.knows(provider.token())
    assert await provider.tokens.username(provider.token()) == "dex:alice"
    many = provider.token(aud=["other", "jumpstarter-cli"], preferred_username="bob")
    assert await provider.tokens.username(many) == "dex:bob"


async def test_keys_are_fetched_once_for_many_tokens(provider: Provider) -> None:
    for number in range(20):
        await provider.tokens.username(provider.token(jti=str(number)))
    assert len(provider.fetches) == 2


async def test_a_new_key_is_found_but_not_sought_too_often(provider: Provider) -> None:
    await provider.tokens.username(provider.token())
    provider.key = ECKey.generate_key("P-256", {"kid": "two"}, private=True)
    with pytest.raises(Unauthorized, match="signature"):
        await provider.tokens.username(provider.token())
    assert len(provider.fetches) == 2
    provider.clock.advance(REFRESH_PAUSE)
    assert await provider.tokens.username(provider.token()) == "dex:alice"
    assert len(provider.fetches) == 4


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        pytest.param({"aud": "other"}, "audience is not accepted", id="another audience"),
        pytest.param({"exp": None}, "no exp claim", id="without an end"),
        pytest.param({"preferred_username": None}, "no claim", id="no name"),
        pytest.param({"preferred_username": ""}, "no claim", id="an empty name"),
        pytest.param({"nbf": 4_000_000_000}, "not valid yet", id="from the future"),
        pytest.param({"exp": 1}, "token is expired", id="run out"),
    ],
)
async def test_a_token_whose_claims_do_not_hold_is_refused(
    provider: Provider, claims: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unauthorized, match=why):
        await provider.tokens.username(provider.token(**claims))


async def test_a_remembered_token_still_runs_out(provider: Provider) -> None:
    token = provider.token()
    await provider.tokens.username(token)
    provider.clock.advance(timedelta(minutes=10))
    with pytest.raises(Unauthorized, match="token is expired"):
        await provider.tokens.username(token)


async def test_a_forged_signature_is_refused(provider: Provider) -> None:
    forged = provider.token(ECKey.generate_key("P-256", {"kid": "one"}, private=True))
    with pytest.raises(Unauthorized, match="signature"):
        await provider.tokens.username(forged)


async def test_the_public_key_does_not_pass_as_a_shared_secret(provider: Provider) -> None:
    provider.key = RSAKey.generate_key(2048, {"kid": "rsa"}, private=True)
    _, payload, _ = provider.token(alg="RS256").split(".")
    for alg in ("HS256", "none"):
        head = urlsafe_b64encode(msgspec.json.encode({"alg": alg, "kid": "rsa"})).rstrip(b"=")
        signed = head + b"." + payload.encode()
        public = provider.key.as_pem(private=False)
        mac = urlsafe_b64encode(hmac.digest(public, signed, "sha256")).rstrip(b"=")
        with pytest.raises(Unauthorized, match="signature"):
            await provider.tokens.username((signed + b"." + mac).decode())


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "a.e30.c", "a.W10.c"])
async def test_what_is_no_token_is_nobodys(provider: Provider, token: str) -> None:
    assert not provider.tokens.knows(token)
    with pytest.raises(Unauthorized):
        await provider.tokens.username(token)


async def test_an_issuer_that_calls_itself_otherwise_is_not_believed(provider: Provider) -> None:
    provider.name = "https://evil.example"
    with pytest.raises(Unavailable, match="another issuer"):
        await provider.tokens.username(provider.token())


async def test_while_the_issuer_does_not_answer_only_so_many_tokens_are_being_checked() -> None:
    provider = Provider()
    silent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def fetch(url: str) -> bytes:
        return await silent

    tokens = OutsideTokens((ISSUER,), fetch=fetch, clock=provider.clock)
    asked = [
        asyncio.ensure_future(tokens.username(provider.token(jti=str(number))))
        for number in range(VERIFYING_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await tokens.username(provider.token(jti="one more"))
    silent.set_exception(Unavailable("the issuer cannot be reached"))
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(found, Unavailable)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await tokens.username(provider.token(jti="and again"))


LAB = NamespaceRule(claim="groups", value="farm", namespaces=frozenset({"lab"}))
QA = NamespaceRule(claim="department", value="qa", namespaces=frozenset({"qa", "lab"}))


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param({}, {"default"}, id="any user"),
        pytest.param({"groups": ["x", "farm"]}, {"default", "lab"}, id="a group in a list"),
        pytest.param({"groups": "farm"}, {"default", "lab"}, id="one group"),
        pytest.param({"groups": ["farmers"]}, {"default"}, id="part of a name is not it"),
        pytest.param({"groups": {"farm": True}}, {"default"}, id="not a list"),
        pytest.param({"department": "qa"}, {"default", "qa", "lab"}, id="another claim"),
    ],
)
def test_the_namespaces_of_a_user_come_from_its_issuer_and_its_claims(
    claims: dict[str, Any], expected: set[str]
) -> None:
    issuer = replace(ISSUER, namespaces=frozenset({"default"}), namespace_rules=(LAB, QA))
    assert namespaces_of(issuer, claims) == expected
    assert namespaces_of(ISSUER, claims) == frozenset(), "nowhere unless it is said"
