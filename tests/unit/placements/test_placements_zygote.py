"""The zygote and its supervisors, one after the other."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from bullpen.placements.local import processes
from bullpen.placements.local.children import Child, RotatedLog
from bullpen.placements.local.connection import (
    BUSY_MISSED_MAX,
    HEARTBEAT_SECONDS,
    MISSED_MAX,
    hangs,
)
from bullpen.placements.local.wire import (
    ANSWERS,
    Frames,
    Hello,
    KvmFailed,
    Registered,
    Spawn,
    frame,
)
from bullpen.placements.local.zygote import Zygote
from support.real_service import eventually


def test_news_of_a_supervisor_that_was_just_replaced_does_not_end_the_zygote(
    tmp_path: Path,
) -> None:
    """Its end and the arrival of the next are seen in one look at the sockets."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        janitor: Any = None
        zygote = Zygote(listener, janitor, orphan_seconds_max=30.0)
        first.connect(str(tmp_path / "control"))
        zygote._accept()
        second.connect(str(tmp_path / "control"))
        first.close()
        zygote._accept()
        zygote._receive()
        (hello,) = Frames(ANSWERS).feed(second.recv(4096))
        assert isinstance(hello, Hello)
        zygote._part()
        zygote._selector.close()
        for end in (zygote._wakeups, zygote._wake):
            end.close()


def test_a_failure_of_kvm_that_an_exporter_reports_reaches_the_supervisor_once(
    tmp_path: Path,
) -> None:
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as supervisor,
        (tmp_path / "output").open("wb") as output,
    ):
        status, exporter = socket.socketpair()
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        janitor: Any = None
        zygote = Zygote(listener, janitor, orphan_seconds_max=30.0)
        supervisor.connect(str(tmp_path / "control"))
        zygote._accept()
        spawn = Spawn(
            key=("lab", "a"),
            token="token",
            directory=str(tmp_path),
            runtime=str(tmp_path),
            config=msgspec.Raw(b"{}"),
            single_use=False,
            retain=False,
        )
        child = Child(
            spawn, pid=1, log=RotatedLog(tmp_path / "log"), output=output.fileno(), status=status
        )
        failed = KvmFailed(key=("lab", "a"), arch="x86_64", problem="it was silent")
        exporter.sendall(frame(failed))
        zygote._learn(child)
        exporter.sendall(frame(Registered(key=("lab", "a"))))
        zygote._learn(child)
        _, *said = Frames(ANSWERS).feed(supervisor.recv(4096))
        assert said == [failed, Registered(key=("lab", "a"))]
        exporter.close()
        status.close()
        child._log.close()
        zygote._part()
        zygote._selector.close()
        for end in (zygote._wakeups, zygote._wake):
            end.close()


def test_a_zygote_that_is_only_slow_is_given_more_time_than_one_that_hangs() -> None:
    assert not hangs(MISSED_MAX - 1, busy=False)
    assert hangs(MISSED_MAX, busy=False)
    assert not hangs(MISSED_MAX, busy=True)
    assert hangs(BUSY_MISSED_MAX, busy=True)
    noticed = (MISSED_MAX + 1) * HEARTBEAT_SECONDS
    assert noticed < 5.0, "the promise, with the interval in which it stopped answering"


def test_a_stopped_process_is_not_busy_and_a_running_one_is() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            eventually(lambda: processes.busy(process.pid))
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: not processes.busy(process.pid))
        finally:
            process.kill()
    assert not processes.busy(process.pid)
