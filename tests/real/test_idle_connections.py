"""Connections that do nothing, at the usual limit of descriptors: the lab goes on."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.lab_helpers import Lab
from support.real_service import BIN, Service, eventually

pytestmark = pytest.mark.real

DESCRIPTORS = 1_024
IDLE = 1_000
DEADLINE_SECONDS = 10.0
"""What the documentation promises for handshakes and heads of requests."""

PATIENCE_SECONDS = 15.0
"""For starting the program as well, on a busy machine; without bounds it takes a minute."""

PORTS = ("apiserver", "controller", "router", "login")


class LimitedService(Service):
    """A service that may have no more than the usual number of descriptors."""

    def start(self) -> None:
        (self.data / "endpoints.json").unlink(missing_ok=True)
        command = [
            "prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}",
            str(BIN / "bullpen"), "up", "--data", str(self.data), *self.arguments,
        ]  # fmt: skip
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        eventually(self._ready, seconds=120, what="bullpen up being ready")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("idle")
    service = LimitedService(directory / "data", "--port-base", "0")
    service.start()
    try:
        made = Lab(service)
        made.client("alice")
        with service.exporter(made.exporter("board", {"board": "b"})):
            yield made
    finally:
        assert service.stop() == 0, service.log.read_text()


def address_of(lab: Lab, port: str) -> tuple[str, int]:
    host, _, number = lab.service.endpoints[port].rpartition("/")[2].rpartition(":")
    return host, int(number)


@contextlib.contextmanager
def idle_connections(address: tuple[str, int], count: int = IDLE) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, held until the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, soft + 2 * count), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        held = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(address)
            held.append(connection)
        yield held


@pytest.mark.parametrize("port", PORTS)
def test_a_thousand_idle_connections_stop_neither_leases_nor_kubectl(lab: Lab, port: str) -> None:
    config = lab.service.home / "client-default-alice.yaml"
    with idle_connections(address_of(lab, port)):
        assert "board" in lab.service.kubectl("get", "exporters").stdout
        done = lab.jmp(config, "shell", "-l", "board=b", "--", "j", "power", "on")
    assert done.returncode == 0, done.stderr


def test_descriptors_are_kept_for_the_store_and_backups(lab: Lab) -> None:
    assert lab.service.process is not None
    process = psutil.Process(lab.service.process.pid)
    with contextlib.ExitStack() as stack:
        for port in PORTS:
            stack.enter_context(idle_connections(address_of(lab, port), 400))
        eventually(lambda: process.num_fds() < DESCRIPTORS - 100, what="descriptors being free")
    lab.service.kubectl("get", "namespaces")


def closed_by_the_service(connection: socket.socket) -> float:
    """Seconds until the other side closes, which it must within our patience."""
    started = time.monotonic()
    connection.settimeout(PATIENCE_SECONDS)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while connection.recv(65_536):
            pass
    return time.monotonic() - started


@pytest.mark.parametrize("port", PORTS)
def test_a_silent_connection_is_closed_at_the_deadline(lab: Lab, port: str) -> None:
    with socket.create_connection(address_of(lab, port)) as connection:
        assert closed_by_the_service(connection) < PATIENCE_SECONDS


@pytest.mark.parametrize("port", ["apiserver", "controller", "router"])
def test_half_a_tls_handshake_is_closed_at_the_deadline(lab: Lab, port: str) -> None:
    hello = client_hello()
    with socket.create_connection(address_of(lab, port)) as connection:
        connection.sendall(hello[: len(hello) // 2])
        assert closed_by_the_service(connection) < PATIENCE_SECONDS


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("port", ["apiserver", "router", "controller", "login"])
def test_a_dribbled_head_is_cut_at_the_deadline(lab: Lab, port: str) -> None:
    """A byte now and then keeps a connection no longer than saying nothing does.

    The router wants a stream by then, however much was said; gRPC wants its first frame.
    """
    head, pause = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * 100, 0.2
    if port == "router":
        head = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 20
    elif port == "controller":
        head, pause = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9, 0.8
    started = time.monotonic()
    with connected(lab, port) as connection, contextlib.suppress(OSError):
        for byte in head:
            connection.sendall(bytes((byte,)))
            time.sleep(pause)
            assert time.monotonic() - started < PATIENCE_SECONDS + 5, "it is still open"


@contextlib.contextmanager
def connected(lab: Lab, port: str) -> Iterator[socket.socket]:
    with socket.create_connection(address_of(lab, port)) as plain:
        if port == "login":
            yield plain
            return
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if port != "apiserver":
            context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            yield secured


def test_a_head_that_is_too_long_is_refused(lab: Lab) -> None:
    with connected(lab, "apiserver") as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        for _ in range(100):
            connection.sendall(b"x-filler: " + b"y" * 1_000 + b"\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 400 ")


def test_the_metrics_count_what_was_closed(lab: Lab) -> None:
    path: Path = lab.service.data / "kubeconfig"
    found = lab.service.run("kubectl", "--kubeconfig", str(path), "get", "--raw", "/metrics")
    assert 'bullpen_connections_closed_total{port="router",reason="displaced"}' in found.stdout
