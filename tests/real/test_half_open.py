"""A machine that becomes unreachable without closing its connections is noticed soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, read_until
from support.netns import Machine, machine
from support.real_service import eventually, running_service

pytestmark = pytest.mark.real

OFFLINE_SECONDS = 5.0
STREAM_SECONDS = 10.0
BUSY_SECONDS = 12.0
"""For the observation, on a busy machine. gRPC's keepalive alone needs half a minute."""

BACK_SECONDS = 90.0
"""The published exporter pings every 20 s, and notices then that its connection is gone."""


@pytest.fixture
def board() -> Iterator[Machine]:
    with machine() as made:
        yield made


@pytest.fixture
def lab(tmp_path: Path, board: Machine) -> Iterator[Lab]:
    with running_service(tmp_path, "--listen", board.host) as service:
        yield Lab(service)


def online(lab: Lab) -> bool:
    return bool(lab.condition("exporters", "board", "Online")["status"] == "True")


def open_sessions(lab: Lab) -> int:
    (lease,) = lab.get("leases")["items"]
    return sum("endTime" not in session for session in lease["status"].get("sessions", ()))


def test_an_unreachable_exporter_is_offline_and_its_streams_are_cut(
    lab: Lab, board: Machine
) -> None:
    alice = lab.client("alice")
    config = lab.exporter("board", {"board": "b"})
    with (
        lab.service.exporter(config, wrapper=board.inside()),
        lab.open_shell(alice, "-l", "board=b", "--", "sh", "-c", "echo =in=; read go") as shell,
    ):
        read_until(shell, "=in=")
        eventually(lambda: lab.status("board") == "LeaseReady", what="the exporter being ready")
        eventually(lambda: open_sessions(lab) > 0, what="a session being recorded")
        board.unplug()
        unplugged = time.monotonic()
        eventually(
            lambda: not online(lab), seconds=OFFLINE_SECONDS + BUSY_SECONDS, what="being offline"
        )
        print(f"offline after {time.monotonic() - unplugged:.1f} s")
        left = unplugged + STREAM_SECONDS + BUSY_SECONDS - time.monotonic()
        eventually(lambda: not open_sessions(lab), seconds=left, what="its streams being cut")
        print(f"streams cut after {time.monotonic() - unplugged:.1f} s")
        assert lab.open_leases("alice"), "it keeps its lease"
        board.plug()
        eventually(lambda: online(lab), seconds=BACK_SECONDS, what="being online again")
        assert lab.status("board") == "LeaseReady"
        print(f"back after {time.monotonic() - unplugged:.1f} s")


def test_the_streams_of_an_unreachable_client_are_cut_and_its_exporter_goes_on(
    lab: Lab, board: Machine
) -> None:
    """The router drops the side that is silent, and tells the other one."""
    alice = lab.client("alice")
    with (
        lab.running(lab.exporter("board", {"board": "b"})),
        lab.open_shell(
            alice,
            *("-l", "board=b", "--", "sh", "-c", "echo =in=; read go"),
            wrapper=board.inside(),
        ) as shell,
    ):
        read_until(shell, "=in=")
        eventually(lambda: open_sessions(lab) > 0, what="a session being recorded")
        board.unplug()
        unplugged = time.monotonic()
        left = STREAM_SECONDS + BUSY_SECONDS
        eventually(lambda: not open_sessions(lab), seconds=left, what="its streams being cut")
        print(f"streams cut after {time.monotonic() - unplugged:.1f} s")
        assert online(lab)
        (lease,) = lab.open_leases("alice")
        lab.patch("leases", lease["metadata"]["name"], {"spec": {"release": True}})
        eventually(lambda: lab.status("board") == "Available", what="the exporter being free")


def test_a_short_interruption_goes_unnoticed(lab: Lab, board: Machine) -> None:
    config = lab.exporter("board", {"board": "b"})
    with lab.service.exporter(config, wrapper=board.inside()):
        revision = lab.get("exporters", "board")["metadata"]["resourceVersion"]
        board.unplug()
        time.sleep(2)
        board.plug()
        time.sleep(OFFLINE_SECONDS)
        assert lab.get("exporters", "board")["metadata"]["resourceVersion"] == revision
