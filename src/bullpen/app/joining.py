"""How a process joins a cluster: where the API server is, what it watches there, who leads.

Shared by the controller, the provisioners and the routers. Each is one of several
replicas, or alone; all state is in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bullpen.api.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.fields import Kind
from bullpen.api.pod import Pod
from bullpen.app.health import Health
from bullpen.app.httpserver import bind, serving
from bullpen.app.leadership import Leadership
from bullpen.cluster import incluster, kubeconfig
from bullpen.cluster.access import Access
from bullpen.cluster.objects import ClusterObjects, Scope
from bullpen.cluster.plugins import Surroundings
from bullpen.controllers import authority
from bullpen.errors import Refused
from bullpen.kit.clock import Clock
from bullpen.services.routing import ROUTER_LABEL

IDENTITY_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """What every process of a cluster is told."""

    kubeconfig: Path | None = None
    """Else the service account of the Pod, or what kubectl would use."""

    context: str = ""
    namespace: str = ""
    """Where keys and coordination Leases are; that of the Pod or of the context unless given."""

    watch_namespace: str = ""
    """The only namespace that is looked at; empty for all."""

    listen: str = "0.0.0.0"
    health_port: int = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A process that is connected and says how it is."""

    objects: ClusterObjects
    namespace: str
    health: Health
    stop: asyncio.Event
    """Set when we are told to stop."""

    address: str
    """Where other replicas can see that we are there."""


@contextlib.asynccontextmanager
async def joined(
    settings: JoinSettings, *, manager: str, clock: Clock, bundles: bool = False
) -> AsyncIterator[Joined]:
    """Connect, answer probes and hear signals while the context is open."""
    stop = hear_signals()
    access = find_access(settings, clock)
    namespace = settings.namespace or access.namespace
    health = Health()
    scopes = scopes_of(namespace, settings.watch_namespace, bundles=bundles)
    async with (
        ClusterObjects(
            access, manager=manager, namespace=settings.watch_namespace, scopes=scopes
        ) as objects,
        answering(health, settings.listen, settings.health_port) as port,
    ):
        health.count_requests(objects.requests)
        host = _own_host(settings.listen)
        yield Joined(
            objects=objects,
            namespace=namespace,
            health=health,
            stop=stop,
            address=f"{host}:{port}" if host and port else "",
        )


def _own_host(listen: str) -> str:
    """What other Pods call this one; empty if nobody knows."""
    if listen not in ("0.0.0.0", "::"):
        return listen
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    # On every machine that is somebody else.
    return "" if found.startswith("127.") else found


def hear_signals() -> asyncio.Event:
    """Set at SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextlib.asynccontextmanager
async def answering(health: Health, host: str, port: int) -> AsyncIterator[int]:
    """Answer probes while the context is open, at the port it yields.

    A negative port answers none and yields 0.
    """
    if port < 0:
        yield 0
        return
    with contextlib.closing(taken_port(host, port)) as listener:
        async with serving(health, listener, None):
            yield listener.getsockname()[1]


def taken_port(host: str, port: int) -> socket.socket:
    """A port to listen on; raises ``Refused`` if it cannot be had."""
    try:
        return bind(host, port)
    except OSError as error:
        raise Refused(f"{host}:{port} cannot be used: {error.strerror}; choose another") from None


def find_access(settings: JoinSettings, clock: Clock) -> Access:
    """The API server we belong to; as kubectl looks for it, but for a Pod's own cluster."""
    environment = os.environ
    surroundings = Surroundings(environment=environment, clock=clock)
    named = settings.kubeconfig or _first_file(environment)
    if named is None and incluster.is_inside(environment):
        return incluster.load(environment)
    path = named or Path.home() / ".kube" / "config"
    if not path.exists():
        raise Refused(f"{path} is not there; name a cluster with --kubeconfig or $KUBECONFIG")
    return kubeconfig.load(path, context=settings.context, surroundings=surroundings)


def _first_file(environment: Mapping[str, str]) -> Path | None:
    named = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0]) if named else None


def scopes_of(namespace: str, watched: str, *, bundles: bool = False) -> dict[type[Kind], Scope]:
    """What is watched of kinds that are full of other people's objects.

    ``bundles``: also ConfigMaps that classes may refer to, not only our own.
    """
    own = "" if bundles else f"metadata.name={authority.NAME}"
    scopes: dict[type[Kind], Scope] = {
        CoordinationLease: Scope(namespace=namespace, labels=ROUTER_LABEL),
        # Neither the tokens of service accounts nor what Helm keeps.
        Secret: Scope(namespace=watched, fields="type=Opaque"),
        ConfigMap: Scope(namespace=watched, fields=own),
        Pod: Scope(namespace=watched, labels=Pod.selected),
    }
    if watched:
        scopes[Namespace] = Scope(fields=f"metadata.name={watched}")
    return scopes


def leadership_of(name: str, joined: Joined, clock: Clock) -> Leadership:
    """Our claim to lead under ``name``."""
    return Leadership(
        joined.objects,
        namespace=joined.namespace,
        name=name,
        identity=identity(),
        clock=clock,
        address=joined.address,
        tell=joined.health.wait_for,
    )


def identity() -> str:
    """Who we are among replicas: where we run, and this very start."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(IDENTITY_BYTES).hex()}"


async def lead(
    leadership: Leadership,
    joined: Joined,
    work: Callable[[], AbstractAsyncContextManager[str]],
) -> None:
    """Stand by, then do the work until told to stop, or until somebody else leads.

    ``work`` yields what it says of itself once it is ready.
    """
    if not await before_stop(leadership.acquire(), joined.stop):
        return
    begun = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(leadership.keep())
        working = tasks.create_task(_work(joined, work, begun))
        await joined.stop.wait()
        if not begun.is_set():
            # It waits for something that need not come any more.
            working.cancel()
        await asyncio.wait((working,))
        keeping.cancel()
    await leadership.release()


async def _work(
    joined: Joined, work: Callable[[], AbstractAsyncContextManager[str]], begun: asyncio.Event
) -> None:
    async with work() as said:
        begun.set()
        joined.health.ready = said
        await joined.stop.wait()
        joined.health.ready, joined.health.waiting = "", "stopping"


async def before_stop(act: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Whether something was done before we were told to stop; else it is given up."""
    async with asyncio.TaskGroup() as tasks:
        doing = tasks.create_task(act)
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
        done = doing.done()
        doing.cancel()
        stopped.cancel()
    return done
