"""The zygote: a process that has Jumpstarter loaded and forks exporters from itself.

It is started by exec and never opens a gRPC channel, because forking after gRPC has started
is unsafe. It has one thread and no event loop except a selector. It decides nothing: it
forks, signals, reaps, keeps logs and reports events. When it has had no supervisor for
long, it ends every exporter and itself.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bullpen import __version__
from bullpen.core.targets.instances import ExitReason
from bullpen.placements.base import Key
from bullpen.placements.local import cgroups, exporter_process, layout, processes
from bullpen.placements.local.children import Child, RotatedLog
from bullpen.placements.local.janitor import Janitor
from bullpen.placements.local.wire import (
    COMMANDS,
    Answer,
    ChangeDisks,
    Command,
    Exited,
    Frames,
    Hello,
    Noted,
    Ping,
    Pong,
    Quit,
    Registered,
    Retire,
    Spawn,
    Spawned,
    Stop,
    frame,
)

ORPHAN_SECONDS_MAX = 30.0
"""How long exporters survive without a supervisor: a restart takes a second or two."""

ENDING_POLL_SECONDS = 0.01
"""Interval of checks for killed processes that are not gone yet."""

UNSENT_BYTES_MAX = 8 << 20
"""A supervisor that leaves this much unread is disconnected."""

READ_BYTES = 1 << 16

CORE = (
    "jumpstarter.config.exporter",
    "jumpstarter.exporter",
    "jumpstarter.exporter.hooks",
    "bullpen.placements.local.exporter",
)
"""Always loaded, in addition to the drivers."""


class Zygote:
    def __init__(
        self, listener: socket.socket, janitor: Janitor, *, orphan_seconds_max: float
    ) -> None:
        self._listener = listener
        self._janitor = janitor
        self._orphan_seconds_max = orphan_seconds_max
        self._selector = selectors.DefaultSelector()
        self._children: dict[Key, Child] = {}
        self._ended: dict[Key, Child] = {}
        """Exits not acknowledged yet: a supervisor may have died before it recorded them."""

        self._supervisor: socket.socket | None = None
        self._frames = Frames(COMMANDS)
        self._unsent = bytearray()
        self._alone_since = time.monotonic()
        self._quitting = False
        self._wakeups, self._wake = socket.socketpair()

    def run(self) -> None:
        """Serve one supervisor at a time, until told to quit or abandoned."""
        self._take_signals()
        self._watch(self._listener, self._accept)
        self._watch(self._wakeups, lambda: self._wakeups.recv(READ_BYTES))
        while not (self._quitting and not self._children):
            for ready, events in self._selector.select(self._patience()):
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ:
                    ready.data()
            self._tick(time.monotonic())
        if self._supervisor is None:
            # No supervisor came, and perhaps none will ever do this.
            for child in self._ended.values():
                if not child.retain:
                    layout.wipe(child.directory)

    def _take_signals(self) -> None:
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._quit())

    def _watch(self, source: socket.socket | int, callback: Callable[[], object]) -> None:
        self._selector.register(source, selectors.EVENT_READ, callback)

    def _patience(self) -> float | None:
        """The time until the next check, if nothing happens before."""
        now = time.monotonic()
        if any(child.ended for child in self._children.values()):
            return ENDING_POLL_SECONDS
        due = [child.kill_at for child in self._children.values() if child.kill_at is not None]
        if self._supervisor is None and not self._quitting:
            due.append(self._alone_since + self._orphan_seconds_max)
        return max(0.0, min(due) - now) if due else None

    def _tick(self, now: float) -> None:
        self._reap()
        for child in tuple(self._children.values()):
            child.kill_if_due(now)
            if child.ended:
                self._finish(child)
        if self._supervisor is None and now >= self._alone_since + self._orphan_seconds_max:
            self._quit()

    # A supervisor

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._part()
        connection.setblocking(False)
        self._supervisor = connection
        self._frames = Frames(COMMANDS)
        self._watch(connection, self._receive)
        states = tuple(child.state for child in self._children.values())
        ended = tuple(child.verdict() for child in self._ended.values())
        self._send(Hello(version=__version__, children=states, ended=ended))

    def _part(self) -> None:
        """The supervisor is gone, or another one replaces it."""
        if self._supervisor is not None:
            self._selector.unregister(self._supervisor)
            self._supervisor.close()
            self._supervisor = None
            self._unsent.clear()
            self._alone_since = time.monotonic()

    def _receive(self) -> None:
        assert self._supervisor is not None
        try:
            data = self._supervisor.recv(READ_BYTES)
        except BlockingIOError:
            # The event belongs to the previous supervisor, replaced in the same moment.
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._part()
            return
        for command in self._frames.feed(data):
            self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Quit):
            self._quit()
        elif isinstance(command, Ping):
            self._send(Pong())
        elif isinstance(command, Spawn):
            self._spawn(command)
        elif isinstance(command, Noted):
            self._ended.pop(command.key, None)
        elif (child := self._children.get(command.key)) is None:
            detail = "it was not running"
            self._send(Exited(key=command.key, reason=ExitReason.LOST, detail=detail))
        elif isinstance(command, Stop):
            child.stop(time.monotonic())
        elif isinstance(command, Retire):
            processes.kill(child.pid, signal.SIGHUP)
        elif isinstance(command, ChangeDisks):
            child.tell(command)
            self._pass_on(child)

    def _send(self, answer: Answer) -> None:
        if self._supervisor is not None:
            self._unsent += frame(answer)
            self._flush()

    def _flush(self) -> None:
        if self._supervisor is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._supervisor.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._part()
            return
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self._part()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._supervisor, wanted, self._receive)

    def _quit(self) -> None:
        self._quitting = True
        for child in self._children.values():
            child.stop(time.monotonic())

    # Children

    def _spawn(self, command: Spawn) -> None:
        if command.key in self._children:
            self._refuse(command.key, "the previous instance has not exited yet")
            return
        try:
            child = self._fork(command)
        except OSError as error:
            self._refuse(command.key, f"it cannot be started: {error}")
            return
        self._children[command.key] = child
        self._watch(child.output, lambda: self._hear(child.output, child.read_output))
        self._watch(child.status, lambda: self._learn(child))
        self._send(Spawned(key=command.key, pid=child.pid))

    def _refuse(self, key: Key, detail: str) -> None:
        self._send(Exited(key=key, reason=ExitReason.START_FAILED, detail=detail))

    def _fork(self, command: Spawn) -> Child:
        log = RotatedLog(Path(command.directory) / layout.LOG)
        output, printed = os.pipe2(os.O_CLOEXEC)
        status, report = socket.socketpair()
        zygote = os.getpid()
        self._janitor.begin(command)
        pid = os.fork()
        if pid == 0:
            self._forget()
            log.close()
            os.close(output)
            status.close()
            exporter_process.become(command, printed=printed, report=report, zygote=zygote)
        os.close(printed)
        report.close()
        child = Child(command, pid=pid, log=log, output=output, status=status)
        try:
            identity = msgspec.json.encode(processes.identify(pid))
            layout.write(child.directory / layout.PROCESS, identity)
        except OSError:
            # A later process could not find it, so it must not run.
            child.stop(time.monotonic())
        return child

    def _forget(self) -> None:
        """In a fork: close everything that belongs to the zygote."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._janitor.forget()
        for source in (self._listener, self._supervisor, self._wakeups, self._wake):
            if source is not None:
                source.close()
        for child in self._children.values():
            child.forget()

    def _hear(self, source: socket.socket | int, read: Callable[[], bool]) -> None:
        if not read():
            self._selector.unregister(source)

    def _learn(self, child: Child) -> None:
        known = child.registered
        self._hear(child.status, child.read_status)
        if child.registered and not known:
            self._send(Registered(key=child.key))
        if child.kvm_failed is not None:
            self._send(child.kvm_failed)
            child.kvm_failed = None
        self._pass_on(child)

    def _pass_on(self, child: Child) -> None:
        """Send the answers of an exporter to the supervisor."""
        while child.answers:
            self._send(child.answers.pop(0))

    def _reap(self) -> None:
        leaders = {child.pid: child for child in self._children.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            child = leaders.get(found.si_pid)
            if child is not None:
                # Before the pid is free again, so that no unrelated group is killed.
                processes.kill_group(child.pid, signal.SIGKILL)
            _, wait_status = os.waitpid(found.si_pid, 0)
            if child is not None:
                child.reaped(wait_status)

    def _finish(self, child: Child) -> None:
        """Report the exit once all its processes are gone, and not before."""
        leaders = {other.pid for other in self._children.values()}
        strays = tuple(pid for pid in processes.own_children() if pid not in leaders)
        if child.kill_rest(strays):
            return
        for source in (child.output, child.status):
            with contextlib.suppress(KeyError):
                self._selector.unregister(source)
        child.close()
        del self._children[child.key]
        layout.wipe(child.runtime)
        cgroups.remove(child.groups)
        self._janitor.over(child.token)
        self._ended[child.key] = child
        self._send(child.verdict())


def main() -> None:
    """Load everything, then serve."""
    parser = argparse.ArgumentParser(prog="bullpen-zygote")
    parser.add_argument("--listener", required=True, type=int, help="an inherited socket")
    parser.add_argument("--runtime", required=True, type=Path)
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("--load", action="append", default=[])
    parser.add_argument("--orphan-seconds-max", type=float, default=ORPHAN_SECONDS_MAX)
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=chosen.listener)
    listener.set_inheritable(False)
    janitor = Janitor(listener)
    processes.adopt_orphans()
    processes.call_self("bullpen-zygote")
    _allow_many_files()
    for name in (*CORE, *chosen.load):
        importlib.import_module(name)
    # All current objects are shared with the forks; the collector must not touch them.
    gc.collect()
    gc.freeze()
    zygote = Zygote(listener, janitor, orphan_seconds_max=chosen.orphan_seconds_max)
    try:
        zygote.run()
    finally:
        chosen.state.unlink(missing_ok=True)
        layout.wipe(chosen.runtime)
    # Not after a failure: then the janitor has work to do.
    janitor.dismiss()
    # The log is useful only after a failure, which would have been raised.
    chosen.state.with_name(layout.ZYGOTE_LOG).unlink(missing_ok=True)


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
