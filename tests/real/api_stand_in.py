"""A program: an API server and nothing else, in the place of a cluster's control plane.

It serves our own kinds and Pods, which no node ever runs, collects garbage, and authorizes with
RBAC; service accounts get tokens. Unlike in a cluster, ClusterRoles are not aggregated. Usage:
``python api_stand_in.py DIRECTORY``; writes ``DIRECTORY/kubeconfig`` when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from datetime import timedelta
from pathlib import Path

from joserfc.jwk import ECKey

from bullpen.api.kinds.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from bullpen.api.pod import CLUSTER_RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import ServiceAccountTokens, TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app.httpserver import bind, serving
from bullpen.app.initial_objects import ensure_policy
from bullpen.core.rbac.authorization import AccessIndex
from bullpen.datadir import certificates, credentials
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.identity.serviceaccounts import AccountTokens
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.informer import Informers
from bullpen.store.sqlite import SqliteStore

TOKEN = "administrator"


async def main(directory: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock = SystemClock()
    certs = certificates.ensure(directory / "pki", ("127.0.0.1",), now=clock.now())
    store = await SqliteStore.open(directory / "state.db")
    registry = Registry(store, clock=clock, ids=RandomIds(), resources=CLUSTER_RESOURCES)
    await registry.ensure_namespaces(("default", "kube-system"))
    objects = RegistryObjects(registry, manager="stand-in")
    await ensure_policy(objects)
    informers, access = Informers(objects, retry=lambda _: timedelta(seconds=1)), AccessIndex()
    informers[Role].listen(access.observe_role)
    informers[ClusterRole].listen(access.observe_role)
    informers[RoleBinding].listen(access.observe_binding)
    informers[ClusterRoleBinding].listen(access.observe_binding)
    tokens = AccountTokens((ECKey.generate_key("P-256", {"kid": "stand-in"}, private=True),))
    service = ApiService(
        registry,
        resources=CLUSTER_RESOURCES,
        clock=clock,
        authenticators=(
            TokenTable({TOKEN: credentials.USERS[credentials.Role.ADMIN]}),
            ServiceAccountTokens(tokens, objects, clock),
        ),
        version="stand-in",
        access=access,
        tokens=tokens,
    )
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as tasks, serving(Asgi(service), listener, certs):
            running = [
                tasks.create_task(run()) for run in (GarbageCollector(registry).run, informers.run)
            ]
            await informers.synced()
            content = credentials.kubeconfig(
                server=f"https://127.0.0.1:{listener.getsockname()[1]}",
                ca_pem=certs.ca_pem(),
                user="administrator",
                token=TOKEN,
            )
            write_atomically(directory / "kubeconfig", content, mode=SECRET)
            await stop.wait()
            service.close()
            for task in running:
                task.cancel()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
