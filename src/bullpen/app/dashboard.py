"""Puts the dashboard together, in a process that has a lab and the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from bullpen import __version__
from bullpen.apiserver.authentication import Authenticator
from bullpen.apiserver.service import ApiService
from bullpen.app.lab import Lab
from bullpen.app.services import Services
from bullpen.audit.events import AuditSink
from bullpen.client.config import ClientConfig
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.consoles import Consoles
from bullpen.dashboard.ended_leases import EndedLeases
from bullpen.dashboard.feed import Feed
from bullpen.dashboard.front_door import FrontDoor
from bullpen.dashboard.history import History
from bullpen.dashboard.lease_actions import LeaseActions
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.pages import Pages
from bullpen.dashboard.people import People
from bullpen.dashboard.recording import Recorder
from bullpen.dashboard.service import Dashboard, Parts
from bullpen.dashboard.sessions import Sessions
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.identity.code_flow import CodeFlow

log = logging.getLogger("bullpen.app")


class DashboardParts:
    """What the dashboard needs before the lab runs, and the rest of it."""

    def __init__(
        self,
        lab: Lab,
        history: Path | None = None,
        audit: Path | None = None,
        code_flow: CodeFlow | None = None,
    ) -> None:
        """``history``: the file in which the history of pools is kept; None to forget it.

        ``audit``: the directory of the audit log; None if nothing is recorded.
        """
        assert not lab.started, "a feed made after the start would miss what is there already"
        self._lab = lab
        self.sessions = Sessions(lab.clock)
        self._feed = Feed(
            lab.views, clock=lab.clock, epoch=lab.ids.uid(), hidden=lab.settings.labels.hidden
        )

        self.history = History(lab.views, lab.lease_counter, clock=lab.clock, save=_saving(history))
        if history is not None and history.exists():
            self.history.restore(history.read_bytes())

        self._code_flow = code_flow
        self._ended_leases = EndedLeases(
            lab.views, lab.objects, retention=lab.settings.retention, clock=lab.clock
        )
        self._audit_trail = AuditTrail(audit, lab.clock)

    def front_door(
        self,
        api: ApiService,
        services: Services,
        authenticators: tuple[Authenticator, ...],
        audit: AuditSink,
    ) -> FrontDoor:
        lab = self._lab
        recorder = Recorder(audit, clock=lab.clock, ids=lab.ids)
        requests = ObjectRequests(api)
        parts = Parts(
            views=lab.views,
            ended_leases=self._ended_leases,
            object_requests=requests,
            people=People(lab.views, lab.access_index, authenticators),
            sessions=self.sessions,
            feed=self._feed,
            leases=LeaseActions(
                leases=services.leases,
                claims=services.claims,
                object_requests=requests,
                recorder=recorder,
                clock=lab.clock,
                ids=lab.ids,
            ),
            consoles=Consoles(self._router_trust(), lab.ids),
            history=self.history,
            audit_trail=self._audit_trail,
            switchboard=services.switchboard,
            recorder=recorder,
            pages=Pages(),
            code_flow=self._code_flow,
            clock=lab.clock,
            version=__version__,
        )
        return FrontDoor(api, Dashboard(parts))

    def _router_trust(self) -> ClientConfig:
        """How consoles reach the routers: with the lab's authority, and a token for each dial."""
        settings = self._lab.settings
        return ClientConfig(
            name="",
            namespace="",
            endpoint=settings.endpoint,
            token="",
            ca_pem=settings.ca_pem.encode(),
        )


def _saving(path: Path | None) -> Callable[[bytes], None]:
    def save(data: bytes) -> None:
        if path is None:
            return
        try:
            write_atomically(path, data, mode=SECRET)
        except OSError as error:
            # Figures of the past are not worth the service: it goes on without them.
            log.warning("the history of pools cannot be saved", extra={"cause": str(error)})

    return save
