"""Sessions and one-time links: who is signed in, for how long."""

from __future__ import annotations

from datetime import timedelta

from bullpen.dashboard import sessions
from bullpen.dashboard.sessions import LINKS_MAX, SESSIONS_MAX, Sessions
from bullpen.kit.clock import VirtualClock


def test_a_link_signs_in_once() -> None:
    known = Sessions(VirtualClock())
    secret = known.issue_link("token")
    assert known.redeem_link(secret) == "token"
    assert known.redeem_link(secret) is None


def test_a_link_expires() -> None:
    clock = VirtualClock()
    known = Sessions(clock)
    secret = known.issue_link("token")
    clock.advance(sessions.LINK_LIFETIME)
    assert known.redeem_link(secret) is None


def test_an_unknown_or_overlong_link_signs_in_nobody() -> None:
    known = Sessions(VirtualClock())
    assert known.redeem_link("guess") is None
    assert known.redeem_link("x" * 1_000_000) is None


def test_a_session_is_found_by_its_cookie_until_it_expires() -> None:
    clock = VirtualClock()
    known = Sessions(clock)
    cookie, session = known.start("token")
    assert known.find(cookie) == session
    assert known.find("") is None
    clock.advance(sessions.SESSION_LIFETIME - timedelta(seconds=1))
    assert known.find(cookie) == session
    clock.advance(timedelta(seconds=1))
    assert known.find(cookie) is None
    assert not known.is_open(session)


def test_an_ended_session_is_not_found_again() -> None:
    known = Sessions(VirtualClock())
    cookie, session = known.start("token")
    known.end(session)
    assert known.find(cookie) is None
    assert not known.is_open(session)


def test_the_number_of_sessions_and_links_is_bounded_and_the_oldest_end() -> None:
    known = Sessions(VirtualClock())
    cookies = [known.start("token")[0] for _ in range(SESSIONS_MAX + 1)]
    assert known.find(cookies[0]) is None
    assert known.find(cookies[1]) is not None
    links = [known.issue_link("token") for _ in range(LINKS_MAX + 1)]
    assert known.redeem_link(links[0]) is None
    assert known.redeem_link(links[1]) == "token"


def test_neither_cookie_nor_credential_can_be_read_from_what_is_kept() -> None:
    known = Sessions(VirtualClock(), new_secret=iter(["link", "cookie", "csrf"]).__next__)
    known.issue_link("credential")
    _, session = known.start("credential")
    assert "cookie" not in repr(vars(known)).replace("digest of the cookie", "")
    assert "credential" not in repr(session)
    assert "csrf" not in repr(session)
