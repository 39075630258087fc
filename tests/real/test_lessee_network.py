"""Neither an address that a lessee names nor its guest reaches the host's network."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jumpstarter.common.utils import serve

from support.linux_guest import build, root_shell, with_network
from support.qemu_machine import MIB, beginning, machine, make, prompt, refusal
from support.real_service import eventually

pytestmark = pytest.mark.real

ROOT = {"disks": [{"name": "root", "size": 8 * MIB}]}


@dataclass
class WebServer:
    """Answers with an image, or with a redirect, and counts who came."""

    location: str = ""
    asked: list[str] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/image"


@contextlib.contextmanager
def web(host: str = "127.0.0.1", location: str = "") -> Iterator[WebServer]:
    found = WebServer(location=location, host=host)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            self.send_response(302 if found.location else 200)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", "0" if found.location else str(MIB))
            self.end_headers()
            if not found.location:
                self.wfile.write(b"fetched from afar".ljust(MIB, b"."))

        def do_PUT(self) -> None:
            found.asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network besides loopback")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    "allowed",
    [
        pytest.param([], id="of a class that allows nothing"),
        pytest.param(["*"], id="of a class that allows every public address"),
        pytest.param(["127.0.0.0/8", "localhost", "::1"], id="of a class that lists it"),
    ],
)
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0"])
def test_the_loopback_of_the_host_is_never_fetched_from(allowed: list[str], name: str) -> None:
    with web() as server, machine(fetch_from=allowed, **ROOT) as client:
        with refusal("is not fetched"):
            client.flasher.flash(server.url.replace("127.0.0.1", name), target="root")
        assert server.asked == []


def test_nothing_is_written_to_the_loopback_of_the_host_either() -> None:
    with web() as server, machine(fetch_from=["*"], **ROOT) as client:
        request = {
            "kind": "presigned_request",
            "headers": {},
            "url": server.url,
            "method": "PUT",
        }
        with refusal("is not fetched"):
            client.flasher.call("dump", request, "bios")
        assert server.asked == []


@pytest.mark.parametrize(
    "source",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://169.254.169.254/latest", "http://[::1]/x"],
)
def test_other_ways_to_name_the_host_are_refused(source: str) -> None:
    request = {"kind": "presigned_request", "headers": {}, "url": source, "method": "GET"}
    with machine(fetch_from=["*", "169.254.0.0/16"], **ROOT) as client, refusal("is not fetched"):
        client.flasher.call("flash", request, "root")


def test_an_image_is_fetched_from_where_the_class_allows() -> None:
    host = own_address()
    with web(host) as server, machine(fetch_from=[host], **ROOT) as client:
        client.flasher.flash(server.url, target="root")
        with prompt(client) as console:
            assert "fetched from afa" in beginning(console)


def test_an_image_is_not_fetched_from_elsewhere() -> None:
    host = own_address()
    allowed = ["10.255.255.0/24", "example.org", "*"]
    with web(host) as server, machine(fetch_from=allowed, **ROOT) as client:
        with refusal("does not list"):
            client.flasher.flash(server.url, target="root")
        assert server.asked == []


def test_a_redirect_does_not_lead_to_the_loopback_of_the_host() -> None:
    host = own_address()
    with web() as hidden, web(host, hidden.url) as server:
        with machine(fetch_from=[host], **ROOT) as client, refusal("loopback"):
            client.flasher.flash(server.url, target="root")
        assert (server.asked, hidden.asked) == (["/image"], [])


def test_no_registry_is_fetched_from() -> None:
    with machine(fetch_from=["*"], **ROOT) as client, refusal("not fetched from registries"):
        client.flasher.flash("oci://127.0.0.1:5000/image:latest", target="root")


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build(tmp_path_factory.mktemp("linux"))


@contextlib.contextmanager
def guest(linux: dict[str, str], **config: Any) -> Iterator[tuple[Any, Any]]:
    """A guest with root's shell, and its driver."""
    driver = make(arch="x86_64", mem="256M", **linux, **config)
    with serve(driver) as client:
        client.power.on()
        with client.console.pexpect() as console, root_shell(console) as run:
            with_network(run)
            yield run, driver
    driver.close()


def ask(run: Any, address: str, server: WebServer) -> str:
    """What the guest gets from a server of the host."""
    return str(run(f"echo GET /image | nc -w 4 {address} {server.port} | head -c 20"))


def test_a_guest_reaches_nothing_of_the_host_and_is_reached_by_its_forwarded_port(
    linux: dict[str, str],
) -> None:
    own = own_address()
    with web() as local, web(own) as public, guest(linux, forwards={"hi": 7}) as (run, driver):
        run("while :; do echo hello from the guest | nc -l -p 7; done >/dev/null &")
        eventually(lambda: received(driver.children["hi"].port) == b"hello", what="its greeting")
        assert "fetched" not in ask(run, "10.0.2.2", local)
        assert "fetched" not in ask(run, own, public)
        assert (local.asked, public.asked) == ([], [])


def test_a_guest_of_a_class_that_asks_for_it_reaches_the_network(linux: dict[str, str]) -> None:
    own = own_address()
    with web(own) as public, guest(linux, network="user") as (run, _):
        eventually(lambda: "fetched" in ask(run, own, public), seconds=120, what="an answer")


def received(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        return connection.recv(5)
