"""Starts a target's programs in a sandbox with its own files, processes and network.

A process has one sandbox, ``current()``. Without a configured sandbox, programs are started
directly: in a Pod the container is the sandbox, and an exporter run by hand has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from bullpen.drivers import linux

ENVIRONMENT_KEPT = ("BULLPEN_INSTANCE", "LANG", "TZ")
SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
"""Besides ``/usr``: links into it, or directories where they are not merged."""

SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/qemu")
PROCESSES = ("--proc", "/proc")
CONTAINERS = (*PROCESSES, "--ro-bind", "/sys", "/sys")
START_SECONDS_MAX = 10.0
LAST_LINES_MAX = 5
"""Lines of a program's error output that are part of an error."""

LAST_WORDS_SECONDS_MAX = 5.0
"""How long the output of a program that has ended is waited for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The files that a program needs."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    processes: bool = False
    """``/proc``, with the program's own processes; .NET does not start without it."""

    containers: bool = False
    """What a program needs to start containers: ``/proc`` and ``/sys``."""


class NetworkRoom(threading.Thread):
    """A thread in a network namespace of its own, which contains only loopback.

    Programs started and sockets created in it belong to that network; the rest of the process
    stays outside. So the ports that QEMU forwards are reachable only through sockets created
    here, and not by other processes of the host.
    """

    def __init__(self, *, drop_rights: bool = False) -> None:
        """``drop_rights`` unless the whole process, including this thread, changes its user."""
        super().__init__(name="network-room", daemon=True)
        self._drop_rights = drop_rights
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._entered: Future[None] = Future()

    def enter(self) -> None:
        """Start the thread. Raises ``OSError`` if the host does not allow it."""
        self.start()
        self._entered.result(START_SECONDS_MAX)

    def call(self, function: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._work.put((function, answer))
        return answer.result(START_SECONDS_MAX)

    def run(self) -> None:
        try:
            linux.unshare(linux.CLONE_NEWNET)
            linux.raise_loopback()
            linux.allow_low_ports()
            if self._drop_rights:
                linux.drop_capabilities()
        except OSError as error:
            self._entered.set_exception(error)
            return
        self._entered.set_result(None)
        while True:
            function, answer = self._work.get()
            try:
                answer.set_result(function())
            except BaseException as error:  # raised in the caller
                answer.set_exception(error)


class Program:
    """A started program, with the part of ``subprocess.Popen`` that drivers use."""

    def __init__(self, outer: subprocess.Popen[bytes], inner: int | None = None) -> None:
        """``inner``: pid of the program inside its wrapper, which forwards no signals."""
        self._outer = outer
        self._inner = _opened(inner) if inner is not None else None
        self.root = f"/proc/{inner}/root" if self._inner is not None else ""
        """Prefix under which the program's own file system is seen while it runs."""

        assert outer.stderr is not None
        self.stderr: IO[bytes] = outer.stderr

    def poll(self) -> int | None:
        return self._outer.poll()

    def wait(self, timeout: float | None = None) -> int:
        code = self._outer.wait(timeout)
        if self._inner is not None:
            os.close(self._inner)
            self._inner = None
        return code

    def terminate(self) -> None:
        if self._inner is None:
            self._outer.terminate()
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._inner, signal.SIGTERM)

    def kill(self) -> None:
        self._outer.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How programs are started in this process."""

    wrapper: str = ""
    """Path of bubblewrap; empty to start programs without it."""

    room: NetworkRoom | None = None
    readable: tuple[str, ...] = ()
    """Paths that the operator lets every program read."""

    def start(
        self,
        line: Sequence[str],
        *,
        access: Access,
        inherited: tuple[int, ...] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        connected: bool = False,
    ) -> Program:
        """Start a program that ends with this process. ``connected``: in the host's network."""
        room = None if connected else self.room
        streams = (subprocess.DEVNULL if stdin is None else stdin, stdout)
        start = partial(self._start, line, access, inherited, streams)
        return room.call(start) if room else start()

    async def run(self, line: Sequence[str], *, access: Access) -> bytes:
        """The output of a program. Raises ``RuntimeError`` with its error output if it failed."""
        prefix = self._prefix(access)
        process = await asyncio.create_subprocess_exec(
            *prefix, *line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        printed, said = await process.communicate()
        if process.returncode:
            words = said.decode(errors="replace").strip()
            raise RuntimeError(f"{' '.join(line[:2])}: {words or process.returncode}")
        return printed

    def stream_socket(self) -> socket.socket:
        """A TCP socket in the network of the started programs."""
        make: Callable[[], socket.socket] = lambda: socket.socket(  # noqa: E731
            socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        )
        return self.room.call(make) if self.room else make()

    def _start(
        self,
        line: Sequence[str],
        access: Access,
        inherited: tuple[int, ...],
        streams: tuple[int, int | None],
    ) -> Program:
        if not self.wrapper:
            return Program(_guarded(line, inherited, streams))
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as told:
            try:
                process = subprocess.Popen(
                    (*self._prefix(access), "--info-fd", str(writing), "--", *line),
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=subprocess.PIPE,
                    pass_fds=(*inherited, writing),
                )
            finally:
                os.close(writing)
            return Program(process, _inner_pid(told.read()))

    def _prefix(self, access: Access) -> tuple[str, ...]:
        if not self.wrapper:
            return ()
        return (
            self.wrapper,
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--cap-drop", "ALL", "--die-with-parent", "--as-pid-1"),
            *("--hostname", "target"),
            *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
            *_environment(),
            *("--ro-bind", "/usr", "/usr"),
            *_system(),
            *("--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/"),
            *(CONTAINERS if access.containers else PROCESSES if access.processes else ()),
            *_binds("--ro-bind-try", (*self.readable, *access.readable)),
            *_binds("--bind", access.writable),
            *_binds("--dev-bind-try", access.devices),
        )


_current = Sandbox()


def current() -> Sandbox:
    return _current


def use(sandbox: Sandbox) -> None:
    """Start every program of this process in ``sandbox`` from now on."""
    global _current
    _current = sandbox


def _environment() -> tuple[str, ...]:
    found = os.environ  # noqa: TID251 - of this process, for its programs
    kept = [(name, found[name]) for name in ENVIRONMENT_KEPT if name in found]
    return tuple(part for name, value in kept for part in ("--setenv", name, value))


def _system() -> tuple[str, ...]:
    parts: list[str] = []
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            parts += ("--symlink", str(path.readlink()), str(path))
        elif path.exists():
            parts += ("--ro-bind", str(path), str(path))
    return (*parts, *_binds("--ro-bind-try", SYSTEM_FILES))


def _binds(option: str, paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for path in dict.fromkeys(paths) for part in (option, path, path))


def _inner_pid(told: bytes) -> int | None:
    """The pid of the program that bubblewrap started; None if it started none."""
    try:
        return int(json.loads(told)["child-pid"])
    except (ValueError, KeyError):
        return None


def _opened(pid: int) -> int | None:
    """A pidfd; None if the program has ended already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _guarded(
    line: Sequence[str], inherited: tuple[int, ...], streams: tuple[int, int | None]
) -> subprocess.Popen[bytes]:
    # A program must not outlive its exporter, however the exporter ends.
    guard = shutil.which("setpriv")
    prefix = (guard, "--pdeathsig", "KILL", "--") if guard else ()
    return subprocess.Popen(
        (*prefix, *line),
        stdin=streams[0],
        stdout=streams[1],
        stderr=subprocess.PIPE,
        pass_fds=inherited,
    )
