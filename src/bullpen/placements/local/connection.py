"""The supervisor's side of the zygote: starting, finding and keeping one, and its messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bullpen import __version__
from bullpen.errors import Unreachable
from bullpen.placements.local import layout, processes
from bullpen.placements.local.layout import Layout, ZygoteState
from bullpen.placements.local.processes import ProcessId
from bullpen.placements.local.wire import (
    ANSWERS,
    Command,
    Event,
    Frames,
    Hello,
    Ping,
    Pong,
    Quit,
    frame,
)

log = logging.getLogger("bullpen.placements")

START_SECONDS_MAX = 60.0
"""Loading takes a second; on a busy machine with cold caches, many."""

ANSWER_SECONDS_MAX = 5.0
"""A zygote that finished loading answers at once."""

END_SECONDS_MAX = 5.0
READ_BYTES = 1 << 16
LOG_TAIL_BYTES = 2000
CONTROL = "control"

RESTART_SECONDS = 1.0
"""Pause between two attempts to start one."""

HEARTBEAT_SECONDS = 1.0
"""Interval of the heartbeats that a zygote must answer."""

MISSED_MAX = 3
"""A zygote that misses so many heartbeats in a row hangs. It is noticed within five seconds."""

BUSY_MISSED_MAX = 30
"""The same for one that waits for a processor or a disk: on a busy machine it is only slow."""


def hangs(missed: int, *, busy: bool) -> bool:
    """Whether a zygote that missed so many heartbeats in a row must be replaced."""
    return missed >= (BUSY_MISSED_MAX if busy else MISSED_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteSettings:
    load: tuple[str, ...] = ()
    """Modules with drivers, imported once and shared by all exporters."""

    orphan_seconds_max: float = 30.0
    runtime_base: Path = Path("/tmp")
    """Parent of the directory for sockets; its path must be short."""

    python: str = sys.executable


class Link:
    """An open connection to a zygote that has sent its hello."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        state: ZygoteState,
        process: subprocess.Popen[bytes] | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._process = process
        self.runtime = Path(state.runtime)
        self.identity = state.process
        self.hello = Hello(version="", children=(), ended=())
        self.hung = False
        self.answered = True
        """Whether anything was received since this was last reset."""

        self._events = self._receive()

    async def greet(self, seconds_max: float) -> None:
        """Wait for the hello; raises ``Unreachable`` if none comes."""
        try:
            async with asyncio.timeout(seconds_max):
                first = await anext(self._events)
        except (StopAsyncIteration, TimeoutError):
            raise Unreachable("the zygote exited or hung before it was ready") from None
        assert isinstance(first, Hello)
        self.hello = first

    def send(self, command: Command) -> None:
        """Send a command. If it cannot be delivered, ``events`` ends."""
        # Writing to a closed transport raises an error that no caller here expects.
        if not self._writer.is_closing():
            self._writer.write(frame(command))

    def events(self) -> AsyncIterator[Event]:
        """The events of the zygote from now on, until it is gone."""
        return self._events

    async def _receive(self) -> AsyncIterator[Event]:
        frames = Frames(ANSWERS)
        with contextlib.suppress(OSError):
            while data := await self._reader.read(READ_BYTES):
                self.answered = True
                for answer in frames.feed(data):
                    if not isinstance(answer, Pong):
                        yield answer

    async def heartbeats(self) -> AsyncIterator[int]:
        """Send heartbeats; yields how many in a row were missed so far, after each interval."""
        missed = 0
        while True:
            self.answered = False
            self.send(Ping())
            await asyncio.sleep(HEARTBEAT_SECONDS)
            missed = 0 if self.answered else missed + 1
            yield missed

    def kill(self) -> None:
        """Kill a process that hangs; ``events`` ends."""
        self.hung = True
        processes.kill(self.identity.pid, signal.SIGKILL)

    def close(self) -> None:
        """Disconnect; the zygote goes on."""
        self._writer.close()

    async def ended(self) -> None:
        """Ensure that the process is gone, if necessary by a kill."""
        self._writer.close()
        for _ in range(int(END_SECONDS_MAX / 0.02)):
            if not self._alive():
                break
            await asyncio.sleep(0.02)
        else:
            log.warning("zygote killed", extra={"key": self.identity.pid})
            processes.kill(self.identity.pid, signal.SIGKILL)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    def _alive(self) -> bool:
        return self.identity.alive() if self._process is None else self._process.poll() is None


async def find(places: Layout) -> Link | None:
    """The zygote that a previous process left running, if it still runs."""
    state = layout.read_zygote(places)
    if state is None or not state.process.alive():
        return None
    try:
        reader, writer = await asyncio.open_unix_connection(str(Path(state.runtime) / CONTROL))
    except OSError as error:
        _give_up(state, error)
        return None
    link = Link(reader, writer, state, None)
    try:
        await link.greet(ANSWER_SECONDS_MAX)
    except Unreachable as error:
        _give_up(state, error)
        await link.ended()
        return None
    return link


def _give_up(state: ZygoteState, error: Exception) -> None:
    """Give up a zygote: its exporters end with it, and a new one is started."""
    log.warning("zygote not adopted", extra={"key": state.process.pid, "cause": error})
    processes.kill(state.process.pid, signal.SIGKILL)


async def start(places: Layout, settings: ZygoteSettings) -> Link:
    """Start a new zygote, ready to fork. Raises ``Unreachable`` with its last output.

    If the caller is cancelled meanwhile, no zygote is left behind.
    """
    runtime = layout.make_runtime(settings.runtime_base)
    try:
        # Not in a thread: a cancellation must not lose the started process.
        process = _execute(places, settings, runtime)
    except OSError as error:
        layout.wipe(runtime)
        raise Unreachable(f"the zygote cannot be started: {error}") from None
    try:
        return await _meet(places, runtime, process)
    except BaseException as error:
        _undo(places, runtime, process)
        if isinstance(error, Unreachable):
            raise Unreachable(f"{error.message}: {_last_words(places.zygote_log)}") from None
        raise


async def _meet(places: Layout, runtime: Path, process: subprocess.Popen[bytes]) -> Link:
    state = ZygoteState(process=processes.identify(process.pid), runtime=str(runtime))
    layout.write(places.zygote, msgspec.json.encode(state))
    reader, writer = await asyncio.open_unix_connection(str(runtime / CONTROL))
    link = Link(reader, writer, state, process)
    try:
        await link.greet(START_SECONDS_MAX)
    except BaseException:
        writer.close()
        raise
    return link


def _undo(places: Layout, runtime: Path, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    places.zygote.unlink(missing_ok=True)
    layout.wipe(runtime)


def _execute(places: Layout, settings: ZygoteSettings, runtime: Path) -> subprocess.Popen[bytes]:
    """Start the program. Its socket is created first, so that clients need not wait for it."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        open(places.zygote_log, "wb", opener=_private) as output,
    ):
        listener.bind(str(runtime / CONTROL))
        listener.listen()
        command = [
            settings.python, "-m", "bullpen.placements.local.zygote",
            "--listener", str(listener.fileno()),
            "--runtime", str(runtime),
            "--state", str(places.zygote),
            "--orphan-seconds-max", str(settings.orphan_seconds_max),
            *(part for name in settings.load for part in ("--load", name)),
        ]  # fmt: skip
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            cwd="/",
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, layout.SECRET)


def _last_words(path: Path) -> str:
    text = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return text.rpartition("\n")[2] or "it printed nothing"


def is_ours(runtime: Path) -> bool:
    """Whether a path read from a file may be removed."""
    return runtime.name.startswith("bullpen-") and not runtime.is_symlink()


def forget(places: Layout, identity: ProcessId | None) -> None:
    """Remove the files that an ended zygote may have left."""
    state = layout.read_zygote(places)
    if state is not None and (identity is None or state.process == identity):
        if is_ours(Path(state.runtime)):
            layout.wipe(Path(state.runtime))
        places.zygote.unlink(missing_ok=True)


class ZygoteHandle:
    """Keeps a zygote running whenever one is needed, and passes on its events."""

    def __init__(
        self,
        places: Layout,
        settings: ZygoteSettings,
        *,
        heard: Callable[[Event], None],
        lost: Callable[[str], Awaitable[None]],
    ) -> None:
        self._places = places
        self._settings = settings
        self._heard = heard
        self._lost = lost
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        """Set when a zygote runs, or when it is known why none does."""

        self.link: Link | None = None
        self.problem = ""
        """Why no zygote starts; empty once one does."""

        self.silent = False
        """The zygote does not answer, or was lost and is not replaced yet."""

    def want(self) -> None:
        """A zygote is needed, now or soon."""
        self._wanted.set()

    async def ready(self) -> Link:
        """The zygote, once it runs. Raises ``Unreachable`` if it does not start."""
        self.want()
        while self.link is None:
            if self.problem:
                raise Unreachable(self.problem)
            self._news.clear()
            await self._news.wait()
        return self.link

    async def take_over(self) -> Hello | None:
        """Connect to a previous process's zygote if it runs and has our protocol version."""
        link = await find(self._places)
        if link is not None and link.hello.version != __version__:
            log.info("stopping the zygote of another version", extra={"key": link.hello.version})
            link.send(Quit())
            await link.ended()
            link = None
        if link is None:
            forget(self._places, None)
            return None
        self.link = link
        return link.hello

    async def run(self) -> None:
        """Start a zygote when first needed and again whenever it ends, until cancelled."""
        while True:
            if self.link is None:
                await self._wanted.wait()
                await self._start()
            if self.link is not None:
                await self._follow(self.link)
                await self._clean_up_after(self.link)

    async def _follow(self, link: Link) -> None:
        """Pass on the events of the zygote until it is gone."""
        self.silent = False
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch_heartbeats(link))
            async for event in link.events():
                self._heard(event)
            watching.cancel()

    async def _watch_heartbeats(self, link: Link) -> None:
        """Kill a zygote that hangs: its exporters end with it, and a new one is started."""
        async for missed in link.heartbeats():
            self.silent = missed > 1
            if hangs(missed, busy=processes.busy(link.identity.pid)):
                facts = {"key": link.identity.pid, "missed": missed}
                log.error("zygote hangs and is killed", extra=facts)
                link.kill()
                return

    async def _start(self) -> None:
        try:
            self.link = await start(self._places, self._settings)
        except Unreachable as error:
            facts = {"key": self._places.instances, "cause": error.message}
            log.error("zygote not started", extra=facts)  # noqa: TRY400 - its cause is said
            self.problem, self.silent = error.message, False
            self._news.set()
            await asyncio.sleep(RESTART_SECONDS)
        else:
            self.problem = ""
            self._news.set()

    async def _clean_up_after(self, link: Link) -> None:
        """The zygote ended unexpectedly, and its exporters with it."""
        log.error("zygote lost", extra={"key": link.identity.pid})
        self.link, self.silent = None, True
        await link.ended()
        what = "did not answer and was killed" if link.hung else "exited"
        await self._lost(f"the process that holds all exporters {what}")
        forget(self._places, link.identity)
        # One that was taken over from a previous process may not be needed any more.
        self.silent = self._wanted.is_set()

    def leave(self) -> None:
        """Let the zygote go on; a later process finds it, or it ends by itself."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    async def end(self) -> None:
        """Stop the zygote and remove its files."""
        link, self.link = self.link, None
        if link is not None:
            link.send(Quit())
            await link.ended()
        forget(self._places, None)
        self._places.zygote_log.unlink(missing_ok=True)
