"""A router in a process of its own: it takes the streams, and they outlive the controller."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pressing import shell
from support.real_service import BIN, Service, eventually, free_port_base

pytestmark = pytest.mark.real


@pytest.fixture
def fixed_service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data", "--port-base", str(free_port_base()))
    service.start()
    try:
        yield service
    finally:
        if service.process is not None:
            service.stop()


@contextlib.contextmanager
def router(service: Service, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(BIN / "bullpen"), "router", "--name", "extra", *options],
        env=service.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Routing at 127.0.0.1:")
        eventually(
            lambda: (
                "router-extra"
                in service.kubectl("get", "leases.coordination.k8s.io", "-n", "kube-system").stdout
            ),
            what="the router being known",
        )
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.quiet
def test_streams_of_a_separate_router_outlive_the_controller(fixed_service: Service) -> None:
    service = fixed_service
    client = service.create_client("alice")
    config = service.create_exporter("e1", {"board": "x"})
    with router(service), service.exporter(config), shell(service, client, "board=x") as opened:
        assert opened.press()
        assert service.stop(signal.SIGKILL) == -signal.SIGKILL
        assert opened.press(), "the stream must not need the controller"
        service.start()
        service.await_connection(opened.process)
        assert opened.press()
        assert opened.leave() == 0
    ended = ("get", "leases", "-o", "jsonpath={.items[*].status.ended}")
    eventually(lambda: service.kubectl(*ended).stdout == "true", what="the lease's end")
    assert (
        "router-extra"
        not in service.kubectl("get", "leases.coordination.k8s.io", "-n", "kube-system").stdout
    )


def test_a_router_that_drains_tells_the_leases_and_what_it_cuts(fixed_service: Service) -> None:
    """New streams go elsewhere at once, running ones have their time, and the lease goes on."""
    service = fixed_service
    client = service.create_client("alice")
    config = service.create_exporter("e1", {"board": "x"})

    def said(reason: str) -> str:
        columns = "jsonpath={.items[*].message}"
        chosen = f"reason={reason},involvedObject.kind=Lease"
        return service.kubectl("get", "events", "--field-selector", chosen, "-o", columns).stdout

    with (
        router(service, "--drain", "15") as process,
        service.exporter(config),
        shell(service, client, "board=x") as opened,
    ):
        assert opened.press()
        process.send_signal(signal.SIGTERM)
        eventually(lambda: said("RouterDraining"), what="the warning")
        assert "router extra stops; open streams may go on for 15s" in said("RouterDraining")
        assert opened.press(), "the stream goes on"
        assert not said("StreamsCut")
        eventually(lambda: said("StreamsCut"), seconds=120, what="the cut being said")
        assert "router extra stops and cuts the open streams after 15s; connect" in said(
            "StreamsCut"
        )
        ended = ("get", "leases", "-o", "jsonpath={.items[*].status.ended}")
        assert service.kubectl(*ended).stdout == "false", "the lease goes on"
        assert process.wait(120) == 0
        chosen = '.status.conditions[?(@.type=="Interrupted")]'
        cut = ("get", "leases", "-o", f"jsonpath={{.items[*]{chosen}.reason}}")
        assert service.kubectl(*cut).stdout == "StreamsCut"


def test_an_ended_lease_is_cut_at_a_separate_router_too(fixed_service: Service) -> None:
    service = fixed_service
    client = service.create_client("alice")
    config = service.create_exporter("e1", {"board": "x"})
    with router(service) as process, service.exporter(config):
        shell = subprocess.Popen(
            [
                *(str(BIN / "jmp"), "shell", "--client-config", str(client), "-l", "board=x"),
                *("--", "sleep", "60"),
            ],
            env=service.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def carried() -> str:
            path = "jsonpath={.metadata.annotations.bullpen\\.dev/load}"
            return service.kubectl(
                "get", "leases.coordination.k8s.io", "router-extra", "-n", "kube-system", "-o", path
            ).stdout

        eventually(lambda: carried() not in ("", "0"), seconds=120, what="a stream there")
        service.kubectl("delete", "leases.jumpstarter.dev", "--all")
        eventually(lambda: carried() == "0", seconds=120, what="the stream being cut")
        assert process.poll() is None
        shell.kill()
        shell.wait(120)
