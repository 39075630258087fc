"""Puts the dashboard together, from what its home provides: one process, or a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bullpen import __version__
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.objects import Objects
from bullpen.apiserver.authentication import Authenticator
from bullpen.apiserver.service import ApiService
from bullpen.app.lab import Lab
from bullpen.app.services import Services
from bullpen.audit.events import AuditSink
from bullpen.client.config import ClientConfig
from bullpen.controllers.leases.lease_counter import LeaseCounter
from bullpen.controllers.views import Views
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.claim_form import ClaimForm
from bullpen.dashboard.client_calls import ClientCalls, LocalClientCalls
from bullpen.dashboard.consoles import Consoles
from bullpen.dashboard.ended_leases import EndedLeases
from bullpen.dashboard.feed import Feed
from bullpen.dashboard.front_door import FrontDoor
from bullpen.dashboard.history import History
from bullpen.dashboard.lease_actions import LeaseActions
from bullpen.dashboard.object_requests import LocalObjectRequests, ObjectRequests
from bullpen.dashboard.own_machine import OwnMachine
from bullpen.dashboard.pages import Pages
from bullpen.dashboard.people import Allows, People
from bullpen.dashboard.recording import Recorder
from bullpen.dashboard.service import Dashboard, Parts
from bullpen.dashboard.sessions import Sessions
from bullpen.dashboard.target_logs import FileLogs, TargetLogs
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.identity.code_flow import CodeFlow
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids

log = logging.getLogger("bullpen.app")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The lab as the dashboard reads it."""

    views: Views
    objects: Objects
    lease_counter: LeaseCounter
    retention: timedelta
    hidden_labels: frozenset[str]
    clock: Clock
    ids: Ids

    @classmethod
    def of(cls, lab: Lab) -> Shown:
        assert not lab.started, "a feed made after the start would miss what is there already"
        return cls(
            views=lab.views,
            objects=lab.objects,
            lease_counter=lab.lease_counter,
            retention=lab.settings.retention,
            hidden_labels=lab.settings.labels.hidden,
            clock=lab.clock,
            ids=lab.ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Who people are, what they may do, and how it is done on their behalf."""

    authenticators: tuple[Authenticator, ...]
    allows: Allows
    object_requests: ObjectRequests
    client_calls: ClientCalls
    audit: AuditSink
    """For what no API server records."""

    target_logs: TargetLogs
    router_trust: ClientConfig
    """How consoles reach the routers: an authority, and a token for each dial."""

    own_machine: OwnMachine | None = None
    """None if this machine runs no instances."""

    in_cluster: bool = False
    """Whether the API server and the controller are other processes."""


class DashboardParts:
    """What the dashboard needs before the views are read, and the rest of it."""

    def __init__(
        self,
        shown: Shown,
        *,
        history: Path | None = None,
        audit_trail: AuditTrail,
        code_flow: CodeFlow | None = None,
    ) -> None:
        """``history``: the file in which the history of pools is kept; None to forget it."""
        self._shown = shown
        clock, views = shown.clock, shown.views
        self.sessions = Sessions(clock)
        self._feed = Feed(views, clock=clock, epoch=shown.ids.uid(), hidden=shown.hidden_labels)
        self.history = History(
            views, shown.lease_counter, clock=clock, save=_saving(history) if history else None
        )
        if history is not None and history.exists():
            self.history.restore(history.read_bytes())
        self._code_flow = code_flow
        self._ended_leases = EndedLeases(
            views, shown.objects, retention=shown.retention, clock=clock
        )
        self._audit_trail = audit_trail
        views[DeviceClass]  # offered by the form of a claim

    def dashboard(self, rights: Rights) -> Dashboard:
        shown = self._shown
        recorder = Recorder(rights.audit, clock=shown.clock, ids=shown.ids)
        people = People(shown.views, rights.allows, rights.authenticators)
        parts = Parts(
            views=shown.views,
            ended_leases=self._ended_leases,
            object_requests=rights.object_requests,
            people=people,
            sessions=self.sessions,
            feed=self._feed,
            leases=LeaseActions(
                client_calls=rights.client_calls,
                object_requests=rights.object_requests,
                recorder=recorder,
                clock=shown.clock,
                ids=shown.ids,
            ),
            claim_form=ClaimForm(
                views=shown.views,
                people=people,
                client_calls=rights.client_calls,
                object_requests=rights.object_requests,
                recorder=recorder,
                clock=shown.clock,
                ids=shown.ids,
            ),
            consoles=Consoles(rights.router_trust, shown.ids),
            history=self.history,
            audit_trail=self._audit_trail,
            target_logs=rights.target_logs,
            own_machine=rights.own_machine,
            client_calls=rights.client_calls,
            recorder=recorder,
            pages=Pages(),
            code_flow=self._code_flow,
            clock=shown.clock,
            version=__version__,
            in_cluster=rights.in_cluster,
        )
        return Dashboard(parts)


def front_door(
    parts: DashboardParts,
    lab: Lab,
    api: ApiService,
    services: Services,
    authenticators: tuple[Authenticator, ...],
    audit: AuditSink,
    own: OwnMachine,
) -> FrontDoor:
    """The dashboard beside the API server of the same process."""
    access = lab.access_index

    async def allows(user: User, wanted: Attributes) -> bool:
        return access.decide(user, wanted).allowed

    rights = Rights(
        authenticators=authenticators,
        allows=allows,
        object_requests=LocalObjectRequests(api),
        client_calls=LocalClientCalls(
            leases=services.leases, claims=services.claims, switchboard=services.switchboard
        ),
        audit=audit,
        target_logs=FileLogs(own.log, allows),
        own_machine=own,
        router_trust=router_trust(lab.settings.endpoint, lab.settings.ca_pem.encode()),
    )
    return FrontDoor(api, parts.dashboard(rights))


def router_trust(endpoint: str, ca_pem: bytes) -> ClientConfig:
    """The lab's authority, without a client."""
    return ClientConfig(name="", namespace="", endpoint=endpoint, token="", ca_pem=ca_pem)


def _saving(path: Path) -> Callable[[bytes], None]:
    def save(data: bytes) -> None:
        try:
            write_atomically(path, data, mode=SECRET)
        except OSError as error:
            # Figures of the past are not worth the service: it goes on without them.
            log.warning("the history of pools cannot be saved", extra={"cause": str(error)})

    return save
