"""A program: an API server and nothing else, in the place of a cluster's control plane.

It serves our own kinds and Pods, which no node ever runs, and collects garbage. Usage:
``python api_stand_in.py DIRECTORY``; writes ``DIRECTORY/kubeconfig`` when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from bullpen.api.pod import CLUSTER_RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app.httpserver import bind, serving
from bullpen.datadir import certificates, credentials
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.registry import Registry
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
    service = ApiService(
        registry,
        resources=CLUSTER_RESOURCES,
        clock=clock,
        authenticators=(TokenTable({TOKEN: credentials.USERS[credentials.Role.ADMIN]}),),
        version="stand-in",
    )
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as tasks, serving(Asgi(service), listener, certs):
            collecting = tasks.create_task(GarbageCollector(registry).run())
            content = credentials.kubeconfig(
                server=f"https://127.0.0.1:{listener.getsockname()[1]}",
                ca_pem=certs.ca_pem(),
                user="administrator",
                token=TOKEN,
            )
            write_atomically(directory / "kubeconfig", content, mode=SECRET)
            await stop.wait()
            service.close()
            collecting.cancel()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
