"""Who is signed in: sessions, and the one-time links that start one.

A session and a link stand for a bearer token. The token is identified again for every request,
so a session never outlives a token that was revoked. One of an outside issuer is renewed when
it expires. The secret in a cookie or link is kept as its digest only. Everything is in memory: a
restart of the service signs all users out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.errors import Unauthorized
from bullpen.identity.code_flow import Grant, Renewal
from bullpen.kit.clock import Clock

SESSION_LIFETIME = timedelta(hours=12)
SESSIONS_MAX = 1_000
"""The oldest session ends when there would be more."""

Renew = Callable[[Renewal], Awaitable[Grant]]
"""Asks an issuer for the next token; raises ``Unauthorized`` if it gives none."""

LINK_LIFETIME = timedelta(minutes=15)
LINKS_MAX = 100
SECRET_LENGTH_MAX = 128
"""Longer cookies and links are not looked up at all."""


def random_secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A person who has signed in."""

    digest: str
    """Of the cookie."""

    token: str = field(repr=False)
    """The credential it stands for."""

    csrf: str = field(repr=False)
    """Sent by the pages with every write; other sites cannot read it."""

    expires: datetime
    renewal: Renewal | None = None
    """How to get the next token when this one expires; None if the issuer gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    token: str = field(repr=False)
    expires: datetime


class Sessions:
    def __init__(self, clock: Clock, *, new_secret: Callable[[], str] = random_secret) -> None:
        self._clock = clock
        self._new_secret = new_secret
        self._sessions: dict[str, Session] = {}
        """By the digest of the cookie, oldest first."""

        self._links: dict[str, _Link] = {}
        self._renewals: dict[str, asyncio.Future[Session]] = {}
        """Sessions that wait for the next token of their issuer."""

    def issue_link(self, token: str) -> str:
        """The secret of a link that signs in once, as the owner of ``token``."""
        self._drop_expired()
        while len(self._links) >= LINKS_MAX:
            del self._links[next(iter(self._links))]
        secret = self._new_secret()
        self._links[_digest(secret)] = _Link(token=token, expires=self._clock.now() + LINK_LIFETIME)
        return secret

    def redeem_link(self, secret: str) -> str | None:
        """The token of a link, which is used up; None if it was used, has expired or is unknown."""
        if len(secret) > SECRET_LENGTH_MAX:
            return None
        link = self._links.pop(_digest(secret), None)
        return link.token if link is not None and link.expires > self._clock.now() else None

    def start(self, token: str, renewal: Renewal | None = None) -> tuple[str, Session]:
        """A new session, and the value of its cookie."""
        self._drop_expired()
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        secret = self._new_secret()
        session = Session(
            digest=_digest(secret),
            token=token,
            csrf=self._new_secret(),
            expires=self._clock.now() + SESSION_LIFETIME,
            renewal=renewal,
        )
        self._sessions[session.digest] = session
        return secret, session

    def find(self, cookie: str) -> Session | None:
        if not cookie or len(cookie) > SECRET_LENGTH_MAX:
            return None
        found = self._sessions.get(_digest(cookie))
        return found if found is not None and found.expires > self._clock.now() else None

    def is_open(self, session: Session) -> bool:
        """Whether a session found earlier has neither ended nor expired."""
        return session.expires > self._clock.now() and session.digest in self._sessions

    def newest(self, session: Session) -> Session:
        """The session with its current token, if it is still open."""
        return self._sessions.get(session.digest, session)

    async def renewed(self, session: Session, renew: Renew) -> Session:
        """The session with the next token; unchanged if the issuer gives none.

        Requests that come meanwhile wait for the same answer: a refresh token works once.
        """
        running = self._renewals.get(session.digest)
        if running is None:
            running = asyncio.ensure_future(self._renew(session, renew))
            self._renewals[session.digest] = running
            running.add_done_callback(lambda _: self._renewals.pop(session.digest, None))
        return await asyncio.shield(running)

    async def _renew(self, session: Session, renew: Renew) -> Session:
        assert session.renewal is not None, "only a session with a refresh token is renewed"
        try:
            grant = await renew(session.renewal)
        except Unauthorized:
            return session
        renewed = replace(session, token=grant.token, renewal=grant.renewal)
        if session.digest in self._sessions:
            self._sessions[session.digest] = renewed
        return renewed

    def end(self, session: Session) -> None:
        self._sessions.pop(session.digest, None)

    def _drop_expired(self) -> None:
        now = self._clock.now()
        for digest in [key for key, found in self._sessions.items() if found.expires <= now]:
            del self._sessions[digest]
        for digest in [key for key, found in self._links.items() if found.expires <= now]:
            del self._links[digest]


def same(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on them."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
