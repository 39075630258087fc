"""The zygote's children: one exporter each, from its fork until all its processes are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from bullpen.core.targets.instances import ExitReason
from bullpen.placements.local import processes
from bullpen.placements.local.wire import (
    EVENTS,
    ChangeDisks,
    ChildState,
    DisksChanged,
    Exited,
    Frames,
    KvmFailed,
    Paused,
    Registered,
    Spawn,
    frame,
)

STOP_SECONDS_MAX = 8.0
"""An exporter that takes longer to stop is killed with all its processes."""

READ_BYTES = 1 << 16
DRAIN_READS_MAX = 64
"""Remaining output of a killed exporter is read from its pipe, up to this many reads."""

LOG_BYTES_MAX = 1 << 20

OLDER = ".1"


class Child:
    """One exporter and every process it started."""

    def __init__(
        self, spawn: Spawn, *, pid: int, log: RotatedLog, output: int, status: socket.socket
    ) -> None:
        self.key = spawn.key
        self.pid = pid
        self.token = spawn.token
        self.directory = Path(spawn.directory)
        self.runtime = Path(spawn.runtime)
        self.retain = spawn.retain
        self.groups = spawn.confinement.groups_of_limits if spawn.confinement else ()
        self.registered = False
        self.paused = ""
        self.kvm_failed: KvmFailed | None = None
        self.output = output
        self.status = status
        self.kill_at: float | None = None
        self.answers: list[DisksChanged | Paused] = []
        """What the supervisor has not been sent yet."""

        self._frames = Frames(EVENTS)
        self._log = log
        self._said: Exited | None = None
        self._wait_status: int | None = None

    @property
    def state(self) -> ChildState:
        return ChildState(key=self.key, registered=self.registered, paused=self.paused)

    @property
    def ended(self) -> bool:
        """The exporter itself has ended; processes it started may still be exiting."""
        return self._wait_status is not None

    def read_output(self) -> bool:
        """Copy its output into its log; False at the end of the output."""
        data = os.read(self.output, READ_BYTES)
        # A full disk loses log lines, but does not end the exporter.
        with contextlib.suppress(OSError):
            self._log.write(data)
        return bool(data)

    def read_status(self) -> bool:
        """Read its status reports; False at the end of the reports."""
        try:
            data = self.status.recv(READ_BYTES)
        except ConnectionResetError:
            return False
        for message in self._frames.feed(data):
            if isinstance(message, Registered):
                self.registered = True
            elif isinstance(message, DisksChanged):
                self.answers.append(message)
            elif isinstance(message, Paused):
                self.paused = message.problem
                self.answers.append(message)
            elif isinstance(message, KvmFailed):
                self.kvm_failed = message
            elif isinstance(message, Exited):
                self._said = message
        return bool(data)

    def tell(self, command: ChangeDisks) -> None:
        """Pass a command on; one that does not read gets none, and delays no other."""
        message = frame(command)
        try:
            sent = self.status.send(message, socket.MSG_DONTWAIT)
        except OSError:
            sent = 0
        if 0 < sent < len(message):
            # The rest would be read as another message. The buffer is far larger than that.
            processes.kill(self.pid, signal.SIGTERM)
        if sent < len(message):
            problem = "its exporter does not read what it is told"
            self.answers.append(DisksChanged(key=self.key, problem=problem))

    def stop(self, now: float) -> None:
        """Ask it to stop, and set the time after which it is killed."""
        if self.kill_at is None:
            self.kill_at = now + STOP_SECONDS_MAX
            processes.kill(self.pid, signal.SIGTERM)

    def kill_if_due(self, now: float) -> None:
        if self.kill_at is not None and self.kill_at <= now:
            processes.kill_group(self.pid, signal.SIGKILL)

    def reaped(self, wait_status: int) -> None:
        self._wait_status = wait_status

    def kill_rest(self, strays: tuple[int, ...]) -> bool:
        """Kill its remaining processes, in its group or escaped; returns whether there were any."""
        escaped = processes.bearing(self.token, strays)
        for pid in escaped:
            processes.kill(pid, signal.SIGKILL)
        # These may belong to another instance, and are gone in a moment in any case.
        ending = processes.exiting(strays)
        return processes.kill_group(self.pid, signal.SIGKILL) or bool(escaped or ending)

    def close(self) -> None:
        """Record its last output, then close its descriptors."""
        os.set_blocking(self.output, False)
        self.status.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.read_status()
        with contextlib.suppress(BlockingIOError):
            for _ in range(DRAIN_READS_MAX):
                if not self.read_output():
                    break
        self.forget()

    def forget(self) -> None:
        """Close our descriptors without reading from them."""
        os.close(self.output)
        self.status.close()
        self._log.close()

    def verdict(self) -> Exited:
        """Why it ended: as it reported itself, else derived from its exit."""
        if self._said is not None:
            return self._said
        assert self._wait_status is not None
        code = os.waitstatus_to_exitcode(self._wait_status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        reason = ExitReason.CRASHED if self.registered else ExitReason.START_FAILED
        return Exited(key=self.key, reason=reason, detail=f"the exporter {how}")


class RotatedLog:
    """Appends to ``path``; when that is full it becomes ``path.1`` and a new file begins."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._open()

    def write(self, data: bytes) -> None:
        if self._size + len(data) > self._bytes_max and self._size:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + OLDER))
            self._open()
        os.write(self._handle, data[-self._bytes_max :])
        self._size += len(data)

    def close(self) -> None:
        os.close(self._handle)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size
