"""Tokens of our own: what they say, and what they are refused for."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from bullpen.errors import Unauthorized
from bullpen.identity.subjects import Role, Subject
from bullpen.identity.tokens import (
    AUDIENCE,
    ISSUER,
    LIFETIME,
    STREAM_LIFETIME,
    Claims,
    Signer,
    Ticket,
    Tickets,
    expiry,
)
from bullpen.kit.clock import EPOCH

NOW = EPOCH
SECOND = timedelta(seconds=1)
KEYS = [ECKey.generate_key("P-256", {"kid": name}, private=True) for name in ("old", "new")]
OLD, NEW = KEYS
ALICE = Subject(role=Role.CLIENT, namespace="lab", name="alice", uid="u1")


def issued(signer: Signer, subject: Subject = ALICE, token_id: str = "t") -> str:
    return signer.issue(subject, token_id=token_id, now=NOW)


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def test_a_token_says_who_it_is_for_and_until_when() -> None:
    signer = Signer((NEW,))
    token = issued(signer)
    assert signer.verify(token, now=NOW) == Claims(subject=ALICE, expires=NOW + LIFETIME)
    assert claims_of(token)["iss"] == ISSUER, "the client reads it"
    assert expiry(token) == NOW + LIFETIME


def test_it_is_good_until_its_last_second_and_not_after() -> None:
    signer = Signer((NEW,))
    token = issued(signer)
    signer.verify(token, now=NOW + LIFETIME - SECOND)
    with pytest.raises(Unauthorized, match="has run out") as refused:
        signer.verify(token, now=NOW + LIFETIME)
    assert "expired" not in refused.value.message, "the client would log in for that word"


def test_a_verified_token_is_not_good_for_ever_because_it_was_once() -> None:
    signer = Signer((NEW,))
    token = issued(signer)
    signer.verify(token, now=NOW)
    with pytest.raises(Unauthorized):
        signer.verify(token, now=NOW + LIFETIME)


def test_two_tokens_of_one_moment_differ() -> None:
    signer = Signer((NEW,))
    assert issued(signer, token_id="a") != issued(signer, token_id="b")


def test_after_rotation_the_newest_key_signs_and_older_ones_still_verify() -> None:
    before = issued(Signer((OLD,)))
    rotated = Signer((NEW, OLD))
    assert rotated.verify(before, now=NOW).subject == ALICE
    assert Signer((NEW,)).verify(issued(rotated), now=NOW).subject == ALICE
    with pytest.raises(Unauthorized):
        Signer((NEW,)).verify(before, now=NOW)


def encoded(key: Any, alg: str = "ES256", **changes: Any) -> str:
    claims = {**claims_of(issued(Signer((NEW,)))), **changes}
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": alg, "kid": "new"}, kept, key, algorithms=[alg])


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="nothing"),
        pytest.param("x", id="no token at all"),
        pytest.param("a.b.c", id="three words"),
        pytest.param(issued(Signer((OLD,))), id="signed by somebody else"),
        pytest.param(encoded(NEW, iss="https://other"), id="of another issuer"),
        pytest.param(encoded(NEW, aud=["other"]), id="for another audience"),
        pytest.param(encoded(NEW, sub="client:lab:alice"), id="a subject without uid"),
        pytest.param(encoded(NEW, sub="king:lab:alice:u1"), id="a role that is none"),
        pytest.param(encoded(NEW, exp=None), id="without end"),
        pytest.param(encoded(NEW, exp="soon"), id="an end that is no time"),
        pytest.param(encoded(OctKey.import_key("k" * 32), "HS256"), id="a shared secret"),
    ],
)
def test_what_is_not_ours_is_refused(token: str) -> None:
    with pytest.raises(Unauthorized, match="not valid here"):
        Signer((NEW,)).verify(token, now=NOW)


def test_a_token_without_signature_is_nobodys() -> None:
    def part(value: dict[str, Any]) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = claims_of(issued(Signer((NEW,))))
    for alg in ("none", "None", "ES256"):
        with pytest.raises(Unauthorized):
            Signer((NEW,)).verify(f"{part({'alg': alg})}.{part(claims)}.", now=NOW)


@given(st.text(max_size=200))
def test_any_text_is_refused_with_an_error_of_ours(text: str) -> None:
    with pytest.raises(Unauthorized):
        Signer((NEW,)).verify(text, now=NOW)
    with pytest.raises(Unauthorized):
        Tickets(b"k" * 32).verify(text, now=NOW)
    assert expiry(text) is None


TICKETS = Tickets(b"k" * 32)
TICKET = Ticket(stream="s1", lease="u1", epoch=3, role=Role.CLIENT, expires=NOW + STREAM_LIFETIME)


def test_a_ticket_says_stream_lease_epoch_and_side() -> None:
    token = TICKETS.mint(TICKET, now=NOW)
    assert TICKETS.verify(token, now=NOW) == TICKET
    assert claims_of(token)["aud"] == ["https://jumpstarter.dev/router"]
    assert AUDIENCE not in claims_of(token)["aud"], "it opens no other door"


def test_a_ticket_is_good_for_its_time_only() -> None:
    token = TICKETS.mint(TICKET, now=NOW)
    TICKETS.verify(token, now=NOW + STREAM_LIFETIME - SECOND)
    TICKETS.verify(token, now=NOW - timedelta(seconds=30))
    for moment in (NOW + STREAM_LIFETIME, NOW - timedelta(minutes=2)):
        with pytest.raises(Unauthorized):
            TICKETS.verify(token, now=moment)


def test_a_ticket_of_another_key_is_refused() -> None:
    with pytest.raises(Unauthorized):
        Tickets(b"x" * 32).verify(TICKETS.mint(TICKET, now=NOW), now=NOW)


def test_an_identity_token_is_no_ticket_and_the_other_way_round() -> None:
    with pytest.raises(Unauthorized):
        TICKETS.verify(issued(Signer((NEW,))), now=NOW)
    with pytest.raises(Unauthorized):
        Signer((NEW,)).verify(TICKETS.mint(TICKET, now=NOW), now=NOW)


@given(st.data())
def test_no_changed_byte_of_a_ticket_goes_unnoticed(data: st.DataObject) -> None:
    token = TICKETS.mint(replace(TICKET, role=data.draw(st.sampled_from(Role))), now=NOW)
    at = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABab01-_."))
    changed = token[:at] + letter + token[at + 1 :]
    if _same_bytes(changed, token):
        return
    with pytest.raises(Unauthorized):
        TICKETS.verify(changed, now=NOW)


def _same_bytes(one: str, other: str) -> bool:
    """Base64 may spell the last bits of the signature in more than one way."""
    if one.rpartition(".")[0] != other.rpartition(".")[0]:
        return False
    tails = [token.rpartition(".")[2] for token in (one, other)]
    return urlsafe_b64decode(tails[0] + "=") == urlsafe_b64decode(tails[1] + "=")
