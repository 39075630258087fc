"""Jumpstarter's services over one lab, for gRPC and for callers without it.

Their tokens are accepted at the API server too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bullpen.app.lab import Lab
from bullpen.controllers.views import Views
from bullpen.core.rbac.authorization import User
from bullpen.errors import Rejected, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.serviceaccounts import API_AUDIENCE
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock
from bullpen.services.callers import Callers, Claim
from bullpen.services.claims import Claims
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.extensions import Extensions
from bullpen.services.grpc.claims import ClaimServicer
from bullpen.services.grpc.client import ClientServicer
from bullpen.services.grpc.controller import ControllerServicer
from bullpen.services.leases import Leases
from bullpen.services.pool_loads import PoolLoads
from bullpen.services.quotas import Gatekeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    views: Views
    callers: Callers
    leases: Leases
    exporters: Exporters
    switchboard: Switchboard
    controller: ControllerServicer
    """The services of exporters, for gRPC."""

    extensions: Extensions
    """Whether leases and claims may last longer."""

    client: ClientServicer
    """The services of clients, for gRPC."""

    claims: Claims
    claim_calls: ClaimServicer
    """Claims of clients, for gRPC."""

    @classmethod
    def of(cls, lab: Lab) -> Services:
        """Make the services, before the lab runs: they follow the views from the first list on."""
        assert not lab.started, "services made after the start would miss what is there already"
        views, clock, settings = lab.views, lab.clock, lab.settings
        callers = Callers(
            lab.objects,
            views,
            signer=lab.keys.signer,
            outside=lab.keys.outside,
            provisioning=settings.provisioning,
            clock=clock,
        )
        gatekeeper = Gatekeeper(
            lab.labs, settings.quotas, monotonic=asyncio.get_running_loop().time
        )
        extensions = Extensions(lab.labs, lab.supplies, clock=clock)
        leases = Leases(
            lab.objects,
            views,
            gatekeeper=gatekeeper,
            extensions=extensions,
            signals=lab.signals,
            clock=clock,
            ids=lab.ids,
            traces=lab.traces,
        )
        exporters = Exporters(
            lab.objects,
            views,
            connections=lab.connections,
            reports=lab.reports,
            presence_changed=lab.presence_changed,
            signals=lab.signals,
            clock=clock,
            events=lab.events,
        )
        switchboard = Switchboard(
            views,
            tickets=lab.keys.tickets,
            routers=lab.routers,
            signals=lab.signals,
            clock=clock,
            ids=lab.ids,
            traces=lab.traces,
        )
        claims = Claims(
            lab.objects,
            views,
            lab.labs,
            gatekeeper=gatekeeper,
            extensions=extensions,
            supplies=lab.claim_supplies,
            quotas=settings.quotas,
            signals=lab.signals,
            clock=clock,
            ids=lab.ids,
        )
        return cls(
            views=views,
            callers=callers,
            leases=leases,
            extensions=extensions,
            exporters=exporters,
            switchboard=switchboard,
            controller=ControllerServicer(
                views, exporters=exporters, leases=leases, switchboard=switchboard
            ),
            client=ClientServicer(
                views, leases, lab.credentials, clock=clock, labels=settings.labels
            ),
            claims=claims,
            claim_calls=ClaimServicer(claims),
        )


def pool_loads(lab: Lab) -> PoolLoads:
    """How busy the pools are, for autoscalers; made before the lab runs, like the services."""
    assert not lab.started, "it would have no view of the pools"
    return PoolLoads(lab.views, lab.labs, signals=lab.signals, clock=lab.clock)


class LabTokens:
    """Recognises tokens of Jumpstarter clients and exporters until they are revoked."""

    def __init__(self, signer: Signer, callers: Callers, clock: Clock) -> None:
        self._signer = signer
        self._callers = callers
        self._clock = clock

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if API_AUDIENCE not in audiences:
            return None
        try:
            subject = self._signer.verify(token, now=self._clock.now()).subject
        except Unauthorized:
            return None
        claim = Claim(
            token=token, role=subject.role, namespace=subject.namespace, name=subject.name
        )
        try:
            if subject.role is subjects.Role.CLIENT:
                await self._callers.client(claim)
            else:
                await self._callers.exporter(claim)
        except Rejected:
            return None
        return User(
            name=f"{subjects.PREFIX}{subject}", uid=subject.uid, groups=subjects.groups(subject)
        )
