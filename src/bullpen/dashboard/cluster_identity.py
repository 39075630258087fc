"""Who people are and what they may do in a cluster: its API server and the controller answer.

Answers are remembered for a few seconds, because every key that is typed on a console is a
request. While the one that answers is away, its last answers count for a minute: streams and
leases go on then too.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

from bullpen.api.kinds.client import Client
from bullpen.api.objects import Objects
from bullpen.cluster import reviews
from bullpen.controllers.exporters.credentials import subject_of
from bullpen.controllers.views import Views
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.dashboard.controller_calls import ControllerCalls
from bullpen.errors import Rejected, Unavailable
from bullpen.identity import subjects
from bullpen.identity.serviceaccounts import API_AUDIENCE
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import ISSUER, payload_of
from bullpen.kit.clock import Clock

FRESH = timedelta(seconds=10)
"""How long an answer counts; a withdrawn right or token counts as long."""

LAST_KNOWN = timedelta(seconds=60)
"""How long it counts if there is no newer one to be had."""

ANSWERS_MAX = 20_000
QUESTIONS_MAX = 16
"""Tokens that are looked up at the same time; strangers can send as many as they like."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class Answers(Generic[Q, A]):
    """The last answers to questions, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[Q, tuple[timedelta, A]] = {}

    async def get(self, question: Q, ask: Callable[[], Awaitable[A]]) -> A:
        """The answer; raises ``Unavailable`` if the cluster gives none and none is remembered."""
        now = self._clock.steady()
        known = self._kept.get(question)
        if known is not None and now - known[0] < FRESH:
            return known[1]
        try:
            answer = await ask()
        except Unavailable:
            if known is None or now - known[0] >= LAST_KNOWN:
                raise
            return known[1]
        self._kept.pop(question, None)
        self._kept[question] = (now, answer)
        while len(self._kept) > ANSWERS_MAX:
            del self._kept[next(iter(self._kept))]
        return answer


class ClusterRights:
    """What a user may do, by SubjectAccessReview."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._answers: Answers[Hashable, bool] = Answers(clock)

    async def allows(self, user: User, wanted: Attributes) -> bool:
        return await self._answers.get(
            (user.name, user.uid, user.groups, tuple(sorted(user.extra.items())), wanted),
            lambda: reviews.allows(self._objects, user, wanted),
        )


class _Lookups:
    """The users of tokens, by the digest of the token."""

    def __init__(self, clock: Clock) -> None:
        self._answers: Answers[str, User | None] = Answers(clock)
        self._slots = asyncio.Semaphore(QUESTIONS_MAX)

    async def user(self, token: str, ask: Callable[[], Awaitable[User | None]]) -> User | None:
        async def asked() -> User | None:
            async with self._slots:
                return await ask()

        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return await self._answers.get(digest, asked)


class ClusterTokens:
    """Tokens that the API server of the cluster knows, by TokenReview."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._lookups = _Lookups(clock)

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if API_AUDIENCE not in audiences:
            return None
        return await self._lookups.user(token, lambda: reviews.user_of_token(self._objects, token))


class ClientTokens:
    """Tokens of Jumpstarter clients, which the controller verifies: it has the keys."""

    def __init__(self, views: Views, calls: ControllerCalls, clock: Clock) -> None:
        self._views = views
        self._calls = calls
        self._lookups = _Lookups(clock)

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if API_AUDIENCE not in audiences or not token.isascii() or not token.isprintable():
            return None
        client = self._named_by(token)
        if client is None:
            return None
        return await self._lookups.user(token, lambda: self._verified(client, token))

    def _named_by(self, token: str) -> Client | None:
        """The client that a token claims to be of; nothing is verified."""
        try:
            claims = payload_of(token)
            issuer, named = claims["iss"], claims["sub"]
        except (ValueError, KeyError, TypeError):
            return None
        if issuer != ISSUER:
            return None
        found = (c for c in self._views.clients.all() if str(subject_of(Role.CLIENT, c)) == named)
        return next(found, None)

    async def _verified(self, client: Client, token: str) -> User | None:
        try:
            await self._calls.verify(client, token)
        except Rejected:
            return None
        subject = subject_of(Role.CLIENT, client)
        return User(
            name=f"{subjects.PREFIX}{subject}", uid=subject.uid, groups=subjects.groups(subject)
        )
