"""``bullpen dashboard serve``: the dashboard of a cluster, in a process of its own.

It reads the lab through watches, and writes nothing by itself: people write with their own
tokens, to the API server or, as Jumpstarter clients, to the controller. It holds no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import OidcTokens
from bullpen.app import process
from bullpen.app.cluster_process import JoinSettings, before_stop, find_access, joined, taken_port
from bullpen.app.config import Config
from bullpen.app.dashboard import DashboardParts, Rights, Shown, router_trust
from bullpen.app.health import Health
from bullpen.app.httpserver import serving
from bullpen.app.login import code_flow, outside_tokens
from bullpen.app.sources import Sources
from bullpen.audit.events import NoAudit
from bullpen.controllers.leases.lease_counter import LeaseCounter
from bullpen.controllers.views import Views
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.cluster_identity import ClientTokens, ClusterRights, ClusterTokens
from bullpen.dashboard.cluster_requests import ClusterObjectRequests
from bullpen.dashboard.controller_calls import ControllerCalls
from bullpen.dashboard.pages import PREFIX
from bullpen.dashboard.people import SHOWN
from bullpen.dashboard.service import Dashboard
from bullpen.dashboard.target_logs import PodLogs
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Certificates, hosts_of
from bullpen.errors import Refused
from bullpen.runtime.connections import PortConnections
from bullpen.runtime.loop import supervise

MANAGER = "bullpen-dashboard"
AUDIT_ELSEWHERE = (
    "The API server of this cluster keeps the audit log: what people do here is recorded there"
    " under their own names. Calls of Jumpstarter clients are in the log of the controller."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDashboardSettings:
    """The command line of ``bullpen dashboard serve``."""

    endpoint: str
    """Where the controller is reached, as ``host:port``."""

    service_ca: Path | None = None
    """The authority of the controller and the routers; without one, those of the system."""

    join: JoinSettings = field(default_factory=JoinSettings)
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    """The server certificate; without one, a self-signed one is made at each start."""

    config: Config = field(default_factory=Config)


async def run(settings: ClusterDashboardSettings, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    sources = Sources.real()
    clock = sources.clock
    config, ca_pem = settings.config, _read(settings.service_ca)
    async with (
        joined(settings.join, manager=MANAGER, clock=clock) as here,
        ClusterObjectRequests(find_access(settings.join, clock, anonymous=True)) as requests,
    ):
        here.health.wait_for("the first list of the lab")
        views = Views(here.objects, retry=sources.retry, kinds=(Client, DeviceClass, *SHOWN))
        outside = outside_tokens(config, clock)
        parts = DashboardParts(
            Shown(
                views=views,
                objects=here.objects,
                lease_counter=LeaseCounter(views, clock=clock),
                retention=config.leases.kept(),
                hidden_labels=frozenset(config.labels.hidden),
                clock=clock,
                ids=sources.ids,
            ),
            audit_trail=AuditTrail(None, clock, elsewhere=AUDIT_ELSEWHERE),
            code_flow=code_flow(config, outside, clock),
        )
        calls = ControllerCalls(settings.endpoint, ca_pem, requests)
        dashboard = parts.dashboard(
            Rights(
                authenticators=(
                    ClientTokens(views, calls, clock),
                    OidcTokens(outside),
                    ClusterTokens(here.objects, clock),
                ),
                allows=ClusterRights(here.objects, clock).allows,
                object_requests=requests,
                client_calls=calls,
                audit=NoAudit(),
                target_logs=PodLogs(requests),
                router_trust=router_trust(settings.endpoint, ca_pem),
                in_cluster=True,
            )
        )
        async with calls.open(), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(views.run())]
            try:
                if not await before_stop(views.synced(), here.stop):
                    return
                history = supervise("history of pools", parts.history.run, retry=sources.retry)
                running.append(tasks.create_task(history))
                await _serve(settings, dashboard, here.health, here.stop, sources, announce)
            finally:
                for task in running:
                    task.cancel()


async def _serve(
    settings: ClusterDashboardSettings,
    dashboard: Dashboard,
    health: Health,
    stop: asyncio.Event,
    sources: Sources,
    announce: Callable[[str], None],
) -> None:
    listen = settings.join.listen
    bounds = process.only_port_bounds(process.raise_descriptor_limit())
    with (
        contextlib.closing(taken_port(listen, settings.port)) as listener,
        _certificate(settings, now=sources.clock.now()) as files,
    ):
        connections = PortConnections("dashboard", bounds)
        async with serving(Asgi(dashboard), listener, files, connections=connections):
            where = f"https://{host_of(listen)}:{listener.getsockname()[1]}{PREFIX}"
            health.ready = f"serving at {where}"
            announce(where)
            await stop.wait()
            health.ready = ""
            health.wait_for("stopping")
            dashboard.close()


def host_of(listen: str) -> str:
    return "localhost" if listen in ("0.0.0.0", "::") else listen


@contextlib.contextmanager
def _certificate(settings: ClusterDashboardSettings, *, now: datetime) -> Iterator[Certificates]:
    if settings.certificate is not None and settings.key is not None:
        chain, key = settings.certificate, settings.key
        yield Certificates(ca=chain, server_chain=chain, server_key=key)
        return
    authority = certificates.make_authority(now=now)
    hosts = (*hosts_of(host_of(settings.join.listen)), "localhost")
    own = certificates.issue(authority, tuple(dict.fromkeys(hosts)), now=now)
    with certificates.as_files(own) as (chain_file, key_file):
        chain, key = Path(chain_file), Path(key_file)
        yield Certificates(ca=chain, server_chain=chain, server_key=key)


def _read(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
