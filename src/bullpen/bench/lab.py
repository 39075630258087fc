"""A lab to measure: ``bullpen up`` in one process, exporters in another, callers in this one.

The exporters hold a Status stream each, are always available, and reconnect when the
service restarts. The callers use the published stubs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from jumpstarter_protocol import (
    client_pb2,
    client_pb2_grpc,
    jumpstarter_pb2,
    jumpstarter_pb2_grpc,
)

from bullpen.api import yaml
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.bench.processes import installed
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.core.exporters import presence
from bullpen.datadir.credentials import exporter_config
from bullpen.errors import NotFound

NAMESPACE = "default"
CLIENT = "bench"
LOOK_SECONDS = 0.05
WAIT_SECONDS_MAX = 60.0
CHANNELS = 10
RETRY_SECONDS = 0.2
POWER = {"power": {"type": "jumpstarter_driver_power.driver.MockPower"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """How to reach the service."""

    controller: str
    kubeconfig: Path
    ca_pem: bytes
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def channel(self) -> Any:
        return grpc.aio.secure_channel(self.controller, grpc.ssl_channel_credentials(self.ca_pem))


class Caller:
    """A client that behaves like ``jmp``: create a lease, then poll until it is ready."""

    def __init__(self, channel: Any, token: str) -> None:
        self._stub = client_pb2_grpc.ClientServiceStub(channel)
        self._headers = _headers("Client", CLIENT, token)

    async def lease(self, selector: str) -> Any:
        request = client_pb2.CreateLeaseRequest(
            parent=f"namespaces/{NAMESPACE}",
            lease=client_pb2.Lease(selector=selector, duration=Duration(seconds=600)),
        )
        lease = await self._stub.CreateLease(request, metadata=self._headers)
        deadline = time.perf_counter() + WAIT_SECONDS_MAX
        while time.perf_counter() < deadline:
            look = client_pb2.GetLeaseRequest(name=lease.name)
            lease = await self._stub.GetLease(look, metadata=self._headers)
            if lease.conditions and lease.conditions[-1].type == "Ready":
                return lease
            assert lease.conditions[-1].type == "Pending", lease.conditions
        raise TimeoutError(f"{lease.name} did not become ready")

    async def release(self, lease: Any) -> None:
        request = client_pb2.DeleteLeaseRequest(name=lease.name)
        await self._stub.DeleteLease(request, metadata=self._headers)


@contextlib.asynccontextmanager
async def connected(lab: Lab, token: str) -> AsyncIterator[Caller]:
    async with lab.channel() as channel:
        yield Caller(channel, token)


def _headers(kind: str, name: str, token: str) -> tuple[tuple[str, str], ...]:
    return (
        ("jumpstarter-kind", kind),
        ("jumpstarter-namespace", NAMESPACE),
        ("jumpstarter-name", name),
        ("authorization", f"Bearer {token}"),
    )


@contextlib.contextmanager
def service(directory: Path, port_base: int = 0, program: tuple[str, ...] = ()) -> Iterator[Lab]:
    """``bullpen up`` until the block ends, with default settings except the creation rate.

    A single client acts for all users here. ``program``: what runs instead of ``bullpen``.
    """
    data = directory / "lab"
    (directory / "config.yaml").write_text("leases: {createRate: 0}\n")
    config = ("--config", str(directory / "config.yaml"))
    arguments = ("up", "--data", str(data), "--port-base", str(port_base), *config)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            (*(program or (installed("bullpen"),)), *arguments),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        if not any("is up" in line for line in process.stdout):
            raise RuntimeError(f"bullpen up ended: {(directory / 'log').read_text()[-2000:]}")
        yield _lab(data, process)
    finally:
        process.terminate()
        process.communicate()


def _lab(data: Path, process: subprocess.Popen[str]) -> Lab:
    endpoints = json.loads((data / "endpoints.json").read_text())
    return Lab(
        controller=endpoints["controller"],
        kubeconfig=Path(endpoints["kubeconfig"]),
        ca_pem=Path(endpoints["ca"]).read_bytes(),
        pid=process.pid,
    )


async def populate(lab: Lab, exporters: int) -> tuple[str, dict[str, str]]:
    """Create a client and exporters; returns the client's token, and theirs by name."""
    async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="bench") as objects:
        await objects.create(Client(metadata=ObjectMeta(name=CLIENT, namespace=NAMESPACE)))
        for number in range(exporters):
            labels = {"bench": "yes", f"bench-{number}": "yes"}
            meta = ObjectMeta(name=f"e{number}", namespace=NAMESPACE, labels=labels)
            await objects.create(Exporter(metadata=meta))
        client = await token(objects, f"{CLIENT}-client")
        names = [f"e{number}" for number in range(exporters)]
        return client, {name: await token(objects, f"{name}-exporter") for name in names}


async def token(objects: ClusterObjects, name: str) -> str:
    deadline = time.perf_counter() + WAIT_SECONDS_MAX
    while time.perf_counter() < deadline:
        try:
            secret = await objects.get(Secret, NAMESPACE, name)
        except NotFound:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return base64.b64decode(secret.data["token"]).decode()
    raise TimeoutError(f"{name} was not made")


async def config_of_new_exporter(
    objects: ClusterObjects, lab: Lab, name: str, directory: Path
) -> Path:
    """A config file for ``jmp run``, with a mock power driver."""
    meta = ObjectMeta(name=name, namespace=NAMESPACE, labels={"bench": name})
    await objects.create(Exporter(metadata=meta))
    text = exporter_config(
        namespace=NAMESPACE,
        name=name,
        endpoint=lab.controller,
        ca_pem=lab.ca_pem,
        token=await token(objects, f"{name}-exporter"),
    )
    path = directory / f"{name}.yaml"
    path.write_text(yaml.dump({**yaml.load(text), "export": POWER}))
    return path


async def online(objects: ClusterObjects, name: str) -> None:
    """Return when the exporter is registered and connected."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            if presence.online(await objects.get(Exporter, NAMESPACE, name)):
                return
            await asyncio.sleep(LOOK_SECONDS)


async def export(pipe: Connection, lab: Lab, tokens: dict[str, str]) -> None:
    """Run exporters; reports whenever all of them have connected."""
    channels = [lab.channel() for _ in range(CHANNELS)]
    crowd = _Crowd(pipe, len(tokens))
    async with asyncio.TaskGroup() as tasks:
        for number, (name, secret) in enumerate(tokens.items()):
            channel = channels[number % CHANNELS]
            tasks.create_task(_stay(channel, _headers("Exporter", name, secret), crowd))


class _Crowd:
    def __init__(self, pipe: Connection, size: int) -> None:
        self._pipe = pipe
        self._size = size
        self._connected = 0

    def came(self) -> None:
        self._connected += 1
        if self._connected == self._size:
            self._pipe.send(self._size)

    def left(self) -> None:
        self._connected -= 1


async def _stay(channel: Any, headers: tuple[tuple[str, str], ...], crowd: _Crowd) -> None:
    stub = jumpstarter_pb2_grpc.ControllerServiceStub(channel)
    while True:
        # The service was killed; it will be restarted.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await _connect(stub, headers, crowd)
        await asyncio.sleep(RETRY_SECONDS)


async def _connect(stub: Any, headers: tuple[tuple[str, str], ...], crowd: _Crowd) -> None:
    await stub.Register(jumpstarter_pb2.RegisterRequest(), metadata=headers)
    available = jumpstarter_pb2.ReportStatusRequest(status=2, message="available")
    await stub.ReportStatus(available, metadata=headers)
    stream = stub.Status(jumpstarter_pb2.StatusRequest(), metadata=headers)
    await stream.read()
    crowd.came()
    try:
        while await stream.read():
            pass
    finally:
        crowd.left()
