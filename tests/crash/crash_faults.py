"""What goes wrong in a round: each fault harms the lab, then stops harming it.

A fault may start the service again, as whoever runs it would; everything else must come back
without help.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from crash_lab import SHELF, CrashLab

from support.lab_helpers import read_until
from support.real_service import STOP_SECONDS_MAX, eventually

REFUSED = 9
CHUNK = bytes(1 << 20)
QEMU_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Trouble:
    """What a fault may use."""

    lab: CrashLab
    chance: random.Random
    pause_seconds: float
    """How long a stopped process stays stopped, at most."""

    disk_seconds: float = 1.0
    """How long a disk stays full or read-only."""


Fault = Callable[[Trouble], float]
"""Returns how long the service took to be ready again; 0 if it was never away."""


def kill_service(trouble: Trouble) -> float:
    return trouble.lab.restart()


def kill_service_twice(trouble: Trouble) -> float:
    """Again while it is still starting."""
    lab = trouble.lab
    lab.service.stop(signal.SIGKILL)
    command = ["bullpen", "up", "--data", str(lab.service.data), *lab.service.arguments]
    with lab.service.log.open("a") as log:
        starting = subprocess.Popen(command, stdout=log, stderr=log, env=lab.service.environment)
    time.sleep(trouble.chance.uniform(0.2, 2.0))
    starting.kill()
    starting.wait()
    return lab.start()


def stop_and_start_service(trouble: Trouble) -> float:
    """In order: its instances end with it and are made anew."""
    return trouble.lab.restart(signal.SIGTERM)


def kill_zygote(trouble: Trouble) -> float:
    pid = trouble.lab.zygote()
    if pid is not None:
        _signal(pid, signal.SIGKILL)
    return 0.0


def kill_shelf_exporter(trouble: Trouble) -> float:
    _signal(trouble.lab.shelf_child(trouble.chance.choice(SHELF)), signal.SIGKILL)
    return 0.0


def kill_pool_exporter(trouble: Trouble) -> float:
    running = [pid for pid in trouble.lab.instances().values() if pid]
    if running:
        _signal(trouble.chance.choice(running), signal.SIGKILL)
    return 0.0


def kill_service_and_zygote(trouble: Trouble) -> float:
    pid = trouble.lab.zygote()
    trouble.lab.service.stop(signal.SIGKILL)
    if pid is not None:
        _signal(pid, signal.SIGKILL)
    return trouble.lab.start()


def kill_qemu(trouble: Trouble) -> float:
    """The machine under a lease that the real ``jmp`` holds."""
    with _powered(trouble.lab):
        for process in trouble.lab.qemus():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    return 0.0


def kill_service_under_qemu(trouble: Trouble) -> float:
    with _powered(trouble.lab):
        return trouble.lab.restart()


def kill_router(trouble: Trouble) -> float:
    router = trouble.lab.router
    assert router is not None
    router.kill()
    router.wait()
    return 0.0


def pause_service(trouble: Trouble) -> float:
    process = trouble.lab.service.process
    assert process is not None
    with _stopped(process.pid):
        time.sleep(trouble.pause_seconds)
    return 0.0


def pause_exporter(trouble: Trouble) -> float:
    with _stopped(trouble.lab.shelf_child(trouble.chance.choice(SHELF))):
        time.sleep(trouble.pause_seconds)
    return 0.0


def fill_disk(trouble: Trouble) -> float:
    with _full(trouble.lab.mount):
        time.sleep(trouble.disk_seconds)
    return 0.0


def fill_disk_and_kill(trouble: Trouble) -> float:
    with _full(trouble.lab.mount):
        time.sleep(trouble.disk_seconds)
        trouble.lab.service.stop(signal.SIGKILL)
    return trouble.lab.start()


def start_on_full_disk(trouble: Trouble) -> float:
    """It may start or refuse, in a sentence; and it starts once there is room."""
    with _full(trouble.lab.mount):
        trouble.lab.service.stop(signal.SIGKILL)
        _try_to_start(trouble.lab, seconds=4.0)
    return trouble.lab.start()


def start_read_only(trouble: Trouble) -> float:
    """With nothing left that writes: a disk somebody writes to cannot be made read-only."""
    lab = trouble.lab
    pid = lab.zygote()
    lab.service.stop(signal.SIGKILL)
    if pid is not None:
        _signal(pid, signal.SIGKILL)
    with _read_only(lab.mount):
        code, said = _try_to_start(lab, seconds=STOP_SECONDS_MAX)
        assert code == REFUSED, f"on a read-only disk it ended with {code}: {said}"
    return lab.start()


FAULTS: dict[Fault, int] = {
    kill_service: 5,
    kill_service_twice: 2,
    stop_and_start_service: 1,
    kill_zygote: 2,
    kill_service_and_zygote: 2,
    kill_shelf_exporter: 2,
    kill_pool_exporter: 2,
    kill_qemu: 1,
    kill_service_under_qemu: 1,
    kill_router: 1,
    pause_service: 1,
    pause_exporter: 1,
}
"""With their weights."""

DISK_FAULTS: dict[Fault, int] = {
    fill_disk: 1,
    fill_disk_and_kill: 1,
    start_on_full_disk: 1,
    start_read_only: 1,
}
"""For a data directory on a disk of its own."""


def _try_to_start(lab: CrashLab, *, seconds: float) -> tuple[int, str]:
    """Start the service where it may not be able to; its exit code and what it said."""
    command = ["bullpen", "up", "--data", str(lab.service.data), *lab.service.arguments]
    starting = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=lab.service.environment,
        text=True,
    )
    try:
        said, _ = starting.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        starting.kill()
        said, _ = starting.communicate(timeout=STOP_SECONDS_MAX)
    assert "Traceback" not in said, f"it must say what is wrong in a sentence: {said}"
    return starting.returncode, said


@contextlib.contextmanager
def _powered(lab: CrashLab) -> Iterator[None]:
    """A real ``jmp shell`` on a QEMU target that is switched on; afterwards it is given back."""
    script = "j power on && echo =on= && sleep 60"
    with lab.lab.open_shell(lab.bob, "-l", "board=qemu", "--", "sh", "-c", script) as shell:
        read_until(shell, "=on=")
        eventually(lab.qemus, seconds=QEMU_SECONDS_MAX, what="a QEMU")
        yield
    for lease in lab.lab.open_leases("bob"):
        lab.lab.patch("leases", lease["metadata"]["name"], {"spec": {"release": True}})


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pid, signal.SIGCONT)


@contextlib.contextmanager
def _full(mount: Path) -> Iterator[None]:
    ballast = mount / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(CHUNK):
                pass
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _read_only(mount: Path) -> Iterator[None]:
    eventually(lambda: _remounted(mount, "ro"), what="the disk being read-only")
    try:
        yield
    finally:
        assert _remounted(mount, "rw")


def _remounted(mount: Path, option: str) -> bool:
    """False while somebody has a file open for writing."""
    command = ["mount", "-o", f"remount,{option}", str(mount)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
