"""The cluster home: a process joins a cluster, its API server, views and leader election.

Shared by the controller, the provisioners and the routers. Each may have several replicas;
all state is in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bullpen.api.fields import Kind
from bullpen.app.health import Health
from bullpen.app.httpserver import bind, serving
from bullpen.cluster import kubeconfig
from bullpen.cluster.kubeconfig import Access, Surroundings, Token
from bullpen.cluster.leader_label import LeaderLabel
from bullpen.cluster.leadership import Leadership
from bullpen.cluster.objects import ClusterObjects, Scope
from bullpen.errors import Refused
from bullpen.kit.clock import Clock

IDENTITY_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """Settings of every process of a cluster."""

    kubeconfig: Path | None = None
    """By default the service account of the Pod, or the kubeconfig that kubectl would use."""

    context: str = ""
    namespace: str = ""
    """Namespace of keys and coordination Leases; by default that of the Pod or the context."""

    watch_namespace: str = ""
    """The only namespace that is watched; empty for all."""

    listen: str = "0.0.0.0"
    health_port: int = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A process that is connected and answers probes."""

    objects: ClusterObjects
    namespace: str
    health: Health
    stop: asyncio.Event
    """Set when the process is asked to stop."""

    address: str
    """The address where other replicas can check that this process runs."""


@contextlib.asynccontextmanager
async def joined(
    settings: JoinSettings,
    *,
    manager: str,
    clock: Clock,
    scopes: Callable[[str, str], dict[type[Kind], Scope]] = lambda own, watched: {},
) -> AsyncIterator[Joined]:
    """Connect, answer probes and handle signals while the context is open.

    ``scopes`` limits what is watched, given our own namespace and the watched one.
    """
    stop = hear_signals()
    access = find_access(settings, clock)
    namespace = settings.namespace or access.namespace
    health = Health()
    async with (
        ClusterObjects(
            access,
            manager=manager,
            namespace=settings.watch_namespace,
            scopes=scopes(namespace, settings.watch_namespace),
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
    """The address of this process for other Pods; empty if unknown."""
    if listen not in ("0.0.0.0", "::"):
        return listen
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    # A loopback address means a different machine everywhere.
    return "" if found.startswith("127.") else found


def hear_signals() -> asyncio.Event:
    """An event that is set at SIGTERM and SIGINT."""
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
    """Bind a port to listen on; raises ``Refused`` if that fails."""
    try:
        return bind(host, port)
    except OSError as error:
        raise Refused(f"{host}:{port} cannot be used: {error.strerror}; choose another") from None


def find_access(settings: JoinSettings, clock: Clock, *, anonymous: bool = False) -> Access:
    """The API server to use; found as kubectl does, but a Pod uses its own cluster.

    ``anonymous`` leaves out our own credentials, for requests with those of others.
    """
    environment = os.environ
    surroundings = Surroundings(environment=environment, clock=clock)
    named = settings.kubeconfig or _first_file(environment)
    if named is None and kubeconfig.is_inside(environment):
        inside = kubeconfig.load_in_cluster(environment)
        return replace(inside, credentials=Token()) if anonymous else inside
    path = named or Path.home() / ".kube" / "config"
    if not path.exists():
        raise Refused(f"{path} does not exist; name a cluster with --kubeconfig or $KUBECONFIG")
    return kubeconfig.load(
        path, context=settings.context, surroundings=surroundings, anonymous=anonymous
    )


def _first_file(environment: Mapping[str, str]) -> Path | None:
    named = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0]) if named else None


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
    """Our identity among the replicas: the host, and this very start."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(IDENTITY_BYTES).hex()}"


async def lead(
    leadership: Leadership,
    joined: Joined,
    work: Callable[[], AbstractAsyncContextManager[str]],
    *,
    label: LeaderLabel | None = None,
) -> None:
    """Stand by, then work until asked to stop, or until another replica leads.

    ``work`` yields a description once it is ready. ``label`` is for leaders that a Service selects.
    """
    if label is not None:
        await before_stop(label.remove(), joined.stop)
    if not await before_stop(leadership.acquire(), joined.stop):
        return
    begun = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(leadership.keep())
        working = tasks.create_task(_work(joined, work, begun, label))
        await joined.stop.wait()
        if not begun.is_set():
            # The work waits for something that is no longer needed.
            working.cancel()
        await asyncio.wait((working,))
        keeping.cancel()
    await leadership.release()


async def _work(
    joined: Joined,
    work: Callable[[], AbstractAsyncContextManager[str]],
    begun: asyncio.Event,
    label: LeaderLabel | None,
) -> None:
    async with work() as said:
        begun.set()
        joined.health.ready = said
        if label is not None:
            await before_stop(label.move_here(), joined.stop)
        await joined.stop.wait()
        joined.health.ready = ""
        joined.health.wait_for("stopping")


async def before_stop(act: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Whether ``act`` finished before the stop; otherwise it is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        doing = tasks.create_task(act)
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
        done = doing.done()
        doing.cancel()
        stopped.cancel()
    return done
