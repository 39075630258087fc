"""Authenticates callers: a token, and the object it may act as.

One of our own tokens is valid only while it is the one in its object's Secret, so deleting
or rotating the Secret, or deleting the object, revokes it at once. A token of an outside
issuer is valid for the object whose ``spec.username`` it names.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TypeVar

from bullpen.api.kinds.client import Client, ClientSpec
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.controllers.exporters.credentials import subject_of, token_of
from bullpen.controllers.views import Views
from bullpen.errors import AlreadyExists, BadRequest, Forbidden, NotFound, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.oidc import OutsideTokens, OutsideUser
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock

T = TypeVar("T", Client, Exporter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a caller claims about itself, not yet verified."""

    token: str
    role: Role
    namespace: str
    name: str


class Anonymous(Unauthorized):
    """The caller presented no token at all, so the call was not made on behalf of a user."""


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
        """The Client of the caller; raises ``Unauthorized`` or a subclass."""
        if claim.role is not Role.CLIENT:
            raise BadRequest("only clients may make this call; jumpstarter-kind must be Client")
        client = self._views.clients.get(claim.namespace, claim.name)
        if self._outside.knows(claim.token):
            user = await self._outside.identity(claim.token)
            if client is None:
                client = await self._provision(claim, user)
            return _named(claim, client, user.username)
        return self._proven(claim, client)

    async def exporter(self, claim: Claim) -> Exporter:
        """The Exporter of the caller."""
        if claim.role is not Role.EXPORTER:
            raise BadRequest("only exporters may make this call; jumpstarter-kind must be Exporter")
        exporter = self._views.exporters.get(claim.namespace, claim.name)
        if self._outside.knows(claim.token):
            return _named(claim, exporter, await self._outside.username(claim.token))
        return self._proven(claim, exporter)

    async def _provision(self, claim: Claim, user: OutsideUser) -> Client | None:
        """Create a Client for an undeclared user, if the issuer's configuration allows it."""
        own_name = claim.name == subjects.object_name(user.username)
        if not self._provisioning or not own_name or claim.namespace not in user.namespaces:
            return None
        fresh = Client(
            metadata=ObjectMeta(name=claim.name, namespace=claim.namespace),
            spec=ClientSpec(username=user.username),
        )
        try:
            made = await self._objects.create(fresh)
        except AlreadyExists:
            made = await self._objects.get(Client, claim.namespace, claim.name)
        self._views.clients.observe(made)
        return made

    def _proven(self, claim: Claim, found: T | None) -> T:
        """The object one of our own tokens was issued for, if it is the current token.

        Whether an object exists is revealed only to the bearer of a token that names it.
        """
        named = self._signer.verify(claim.token, now=self._clock.now()).subject
        kind = claim.role.lower()
        own = (named.role, named.namespace, named.name) == (claim.role, claim.namespace, claim.name)
        if found is None and own:
            raise NotFound(f"there is no {kind} {claim.name} in namespace {claim.namespace}")
        if found is None or named != subject_of(claim.role, found):
            raise Forbidden(f"the token is not for {kind} {claim.name}")
        secret = self._views.secrets.get(
            claim.namespace, subjects.secret_name(claim.role, claim.name)
        )
        if not hmac.compare_digest(token_of(secret).encode(), claim.token.encode()):
            raise Unauthorized("the token was revoked; get the current one from its secret")
        return found


def _named(claim: Claim, found: T | None, username: str) -> T:
    """The object an outside user may act as; a missing object is refused like a foreign one."""
    if found is None or username not in subjects.usernames(
        subject_of(claim.role, found), found.spec.username
    ):
        kind = claim.role.lower()
        raise Forbidden(
            f"{username} may not act as {kind} {claim.name} in namespace {claim.namespace};"
            f" an administrator can name the user in spec.username of that {kind}"
        )
    return found
