"""Every home that objects may live in, each as one namespace to work in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import Namespace
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app.httpserver import bind, serving
from bullpen.cluster import kubeconfig
from bullpen.cluster.kubeconfig import Access, Token
from bullpen.cluster.objects import ClusterObjects, Scope
from bullpen.core.rbac.authorization import MASTERS, User
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.history import Limits
from bullpen.store.journaled import MemoryStore

MANAGER = "contract"
HISTORY_MAX = 300
"""Short enough to be outlived by a test, long enough for every other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    objects: Objects
    namespace: str
    collects: bool = True
    """Whether somebody removes what lost its owner."""


@contextlib.asynccontextmanager
async def registry_home() -> AsyncIterator[tuple[Home, Registry]]:
    """In this process."""
    store = MemoryStore(limits=Limits(history_count_max=HISTORY_MAX))
    registry = Registry(store, clock=SystemClock(), ids=RandomIds(random.Random(5)))
    await registry.ensure_namespaces(("default", "lab"))
    async with asyncio.TaskGroup() as tasks:
        collecting = tasks.create_task(GarbageCollector(registry).run())
        objects = RegistryObjects(registry, manager=MANAGER)
        yield Home(objects=objects, namespace="lab"), registry
        collecting.cancel()
    await store.close()


@contextlib.asynccontextmanager
async def http_home() -> AsyncIterator[Home]:
    """Behind our own API server."""
    user = User(name="admin", groups=(MASTERS,))
    async with registry_home() as (home, registry):
        service = ApiService(
            registry,
            resources=RESOURCES,
            clock=SystemClock(),
            authenticators=(TokenTable({"secret": user}),),
            version="test",
        )
        with contextlib.closing(bind("127.0.0.1", 0)) as listener:
            access = Access(
                server=f"http://127.0.0.1:{port_of(listener)}",
                tls=ssl.create_default_context(),
                credentials=Token("secret"),
            )
            async with serving(Asgi(service), listener, None):
                async with ClusterObjects(access, manager=MANAGER) as objects:
                    yield Home(objects=objects, namespace=home.namespace)
                service.close()


@contextlib.asynccontextmanager
async def cluster_home() -> AsyncIterator[Home]:
    """In a namespace of its own in the cluster that ``KUBECONFIG`` names."""
    access = kubeconfig.load(Path(os.environ["KUBECONFIG"]))
    fresh = Namespace(metadata=ObjectMeta(generate_name="bullpen-contract-"))
    async with ClusterObjects(access, manager=MANAGER) as objects:
        namespace = await objects.create(fresh)
        name = namespace.metadata.name
        scopes: dict[type[Kind], Scope] = {Namespace: Scope(fields=f"metadata.name={name}")}
        async with ClusterObjects(access, manager=MANAGER, namespace=name, scopes=scopes) as own:
            yield Home(
                objects=own, namespace=name, collects="NO_GARBAGE_COLLECTOR" not in os.environ
            )
        await objects.delete(await objects.get(Namespace, "", name))


def install_definitions() -> None:
    """Apply our definitions to the cluster, as an administrator would."""
    bullpen = Path(sys.executable).with_name("bullpen")
    definitions = subprocess.run([bullpen, "crds"], capture_output=True, check=True, timeout=60)
    for command in (
        ["kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-"],
        ["kubectl", "wait", "--for=condition=Established", "-f", "-", "--timeout=30s"],
    ):
        subprocess.run(command, input=definitions.stdout, check=True, timeout=60)


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port
