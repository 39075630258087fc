"""Who is calling: a token, and the object it may act as.

A token counts only while it is the one in its object's Secret, so deleting or
rotating the Secret, or deleting the object, shuts it out at once.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.controllers.credentials import subject_of, token_of
from bullpen.controllers.views import Views
from bullpen.errors import BadRequest, Forbidden, NotFound, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a caller says about itself, not yet believed."""

    token: str
    role: Role
    namespace: str
    name: str


class Callers:
    def __init__(self, views: Views, *, signer: Signer, clock: Clock) -> None:
        self._views = views
        self._signer = signer
        self._clock = clock

    def client(self, claim: Claim) -> Client:
        """The Client the caller is; raises ``Unauthorized`` and its kin."""
        if claim.role is not Role.CLIENT:
            raise BadRequest("this call is for clients; jumpstarter-kind must be Client")
        client = self._views.clients.get(claim.namespace, claim.name)
        self._check(claim, client)
        assert client is not None
        return client

    def exporter(self, claim: Claim) -> Exporter:
        """The Exporter the caller is."""
        if claim.role is not Role.EXPORTER:
            raise BadRequest("this call is for exporters; jumpstarter-kind must be Exporter")
        exporter = self._views.exporters.get(claim.namespace, claim.name)
        self._check(claim, exporter)
        assert exporter is not None
        return exporter

    def _check(self, claim: Claim, value: Client | Exporter | None) -> None:
        claims = self._signer.verify(claim.token, now=self._clock.now())
        if value is None:
            kind = claim.role.lower()
            raise NotFound(f"there is no {kind} {claim.name} in namespace {claim.namespace}")
        expected = subject_of(claim.role, value)
        if claims.subject != expected:
            raise Forbidden(f"the token is not for {claim.role.lower()} {claim.name}")
        secret = self._views.secrets.get(
            claim.namespace, subjects.secret_name(claim.role, claim.name)
        )
        if not hmac.compare_digest(token_of(secret).encode(), claim.token.encode()):
            raise Unauthorized("the token was revoked; get the current one from its secret")
