"""Who is calling: a token, and the object it may act as.

One of our own tokens counts only while it is the one in its object's Secret, so deleting or
rotating the Secret, or deleting the object, shuts it out at once. A token of an outside
issuer counts for the object whose ``spec.username`` it names.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TypeVar

from bullpen.api.client import Client, ClientSpec
from bullpen.api.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.controllers.credentials import subject_of, token_of
from bullpen.controllers.views import Views
from bullpen.errors import AlreadyExists, BadRequest, Forbidden, NotFound, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.oidc import OutsideTokens
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock

T = TypeVar("T", Client, Exporter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a caller says about itself, not yet believed."""

    token: str
    role: Role
    namespace: str
    name: str


class Anonymous(Unauthorized):
    """The caller showed no token at all, so that no person can have meant it."""


class Callers:
    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        signer: Signer,
        outside: OutsideTokens,
        provisioning: bool,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._views = views
        self._signer = signer
        self._outside = outside
        self._provisioning = provisioning
        self._clock = clock

    async def client(self, claim: Claim) -> Client:
        """The Client the caller is; raises ``Unauthorized`` and its kin."""
        if claim.role is not Role.CLIENT:
            raise BadRequest("this call is for clients; jumpstarter-kind must be Client")
        client = self._views.clients.get(claim.namespace, claim.name)
        if self._outside.knows(claim.token):
            username = await self._outside.username(claim.token)
            if client is None:
                client = await self._provision(claim, username)
            return _named(claim, client, username)
        return self._proven(claim, client)

    async def exporter(self, claim: Claim) -> Exporter:
        """The Exporter the caller is."""
        if claim.role is not Role.EXPORTER:
            raise BadRequest("this call is for exporters; jumpstarter-kind must be Exporter")
        exporter = self._views.exporters.get(claim.namespace, claim.name)
        if self._outside.knows(claim.token):
            return _named(claim, exporter, await self._outside.username(claim.token))
        return self._proven(claim, exporter)

    async def _provision(self, claim: Claim, username: str) -> Client | None:
        """A new Client for a user nobody has declared, where that is allowed."""
        if not self._provisioning or claim.name != subjects.object_name(username):
            return None
        fresh = Client(
            metadata=ObjectMeta(name=claim.name, namespace=claim.namespace),
            spec=ClientSpec(username=username),
        )
        try:
            made = await self._objects.create(fresh)
        except AlreadyExists:
            made = await self._objects.get(Client, claim.namespace, claim.name)
        self._views.clients.observe(made)
        return made

    def _proven(self, claim: Claim, value: T | None) -> T:
        """The object one of our own tokens was made for, if it is the current one."""
        claims = self._signer.verify(claim.token, now=self._clock.now())
        found = _found(claim, value)
        if claims.subject != subject_of(claim.role, found):
            raise Forbidden(f"the token is not for {claim.role.lower()} {claim.name}")
        secret = self._views.secrets.get(
            claim.namespace, subjects.secret_name(claim.role, claim.name)
        )
        if not hmac.compare_digest(token_of(secret).encode(), claim.token.encode()):
            raise Unauthorized("the token was revoked; get the current one from its secret")
        return found


def _named(claim: Claim, value: T | None, username: str) -> T:
    """The object an outside user may act as."""
    found = _found(claim, value)
    if username not in subjects.usernames(subject_of(claim.role, found), found.spec.username):
        raise Forbidden(f"{username} is not the user of {claim.role.lower()} {claim.name}")
    return found


def _found(claim: Claim, value: T | None) -> T:
    if value is None:
        kind = claim.role.lower()
        raise NotFound(f"there is no {kind} {claim.name} in namespace {claim.namespace}")
    return value
