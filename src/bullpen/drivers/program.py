"""A program with a console as a Jumpstarter driver: power, console, flasher and ports.

Switching the target on starts the program in its sandbox, and switching it off kills it, as
cutting the power would. Firmware that a lessee flashes is used from the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, ClassVar

from jumpstarter.driver import Driver, export
from jumpstarter_driver_power.common import PowerReading
from jumpstarter_driver_power.driver import PowerInterface
from xdg_base_dirs import xdg_runtime_dir

from bullpen.api import codec
from bullpen.drivers import sandbox
from bullpen.drivers.console import Console
from bullpen.drivers.downloads import Sources
from bullpen.drivers.flasher import FlashStore, ImageFlasher, Occupation
from bullpen.drivers.launcher_client import Launched
from bullpen.drivers.program_parameters import (
    CONSOLE,
    ConsoleKind,
    Placeholders,
    ProgramNetwork,
    ProgramParameters,
    command,
    port_names,
    uses_firmware,
)
from bullpen.drivers.qemu_command import LOOPBACK
from bullpen.drivers.qemu_ports import CONNECT_PAUSE_SECONDS, ForwardedPort
from bullpen.drivers.sandbox import LAST_LINES_MAX, LAST_WORDS_SECONDS_MAX, Access
from bullpen.drivers.target_files import MachineSite
from bullpen.drivers.terminals import bridged, opened_terminal
from bullpen.kit import quantities

FIRMWARE = "firmware"
OFF_SECONDS_MAX = 5.0
SEARCHED_BYTES_MAX = 1 << 16
"""How much of the latest output is searched for a pattern."""

LOOK_SECONDS_MAX = 1.0
"""How long it takes at most to notice that the program has ended."""


@dataclass(kw_only=True)
class Program(Driver):
    """The target. Clients see its power, console, flasher and ports."""

    target: dict[str, Any]
    """A document of ``ProgramParameters``, as they were validated."""

    site: dict[str, Any] = field(default_factory=dict)
    """A document of ``MachineSite``."""

    partition: ClassVar[str] = FIRMWARE
    """What a lessee can flash."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.parameters = self.read_parameters()
        self.machine_site = codec.decode(MachineSite, self.site)
        self.sandbox = sandbox.current()
        self.occupation = Occupation()
        self._files = TemporaryDirectory(prefix="program-")
        self._sockets = TemporaryDirectory(dir=xdg_runtime_dir(), prefix="program-")
        self._starts = 0
        self.flashed = FlashStore(lambda: Path(self._files.name), verbatim=(self.partition,))
        self.console = Console()  # type: ignore[abstract]
        self.power = self.new_power()
        children: dict[str, Any] = self.children
        children["console"] = self.console
        children["power"] = self.power
        if self.is_flashable():
            children["flasher"] = ImageFlasher(parent=self)  # type: ignore[abstract]
        for name in self.parameters.ports:
            port = ForwardedPort(host=LOOPBACK, port=0)  # type: ignore[abstract]
            port.opens_late = True
            if not self.is_connected():
                port.sandbox = self.sandbox
                port.enable_address = self.sandbox.room is None
            children[name] = port

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_composite.client.CompositeClient"

    def read_parameters(self) -> ProgramParameters:
        return codec.decode(ProgramParameters, self.target)

    def new_power(self) -> ProgramPower:
        return ProgramPower(parent=self)  # type: ignore[abstract]

    def is_flashable(self) -> bool:
        return uses_firmware(self.parameters)

    def close(self) -> None:
        self.power.off()
        super().close()  # type: ignore[no-untyped-call]
        self._sockets.cleanup()
        self._files.cleanup()

    @property
    def directory(self) -> str:
        """The program's own directory."""
        return self._files.name

    def is_on(self) -> bool:
        return self.power.is_on()

    def is_connected(self) -> bool:
        """Whether the program is in the host's network, as configured in its class."""
        return self.parameters.network is ProgramNetwork.HOST

    def sources(self) -> Sources:
        return Sources.of(self.parameters.fetch_from)

    def partition_name(self, partition: str | None) -> str:
        own = self.partition
        if partition not in (None, own):
            raise ValueError(f"invalid partition name: {partition}; this target has: {own}")
        return own

    async def granted_bytes(self, partition: str) -> int:
        return quantities.parse(self.parameters.resources.firmware).whole()

    def placeholders(self) -> Placeholders:
        """The values for the program that is started now."""
        wanted = self.parameters
        self._starts += 1
        flashed = self.flashed.get(self.partition)
        own = self.machine_site.path(wanted.firmware) if wanted.firmware else ""
        return Placeholders(
            directory=self._files.name,
            socket=str(Path(self._sockets.name) / f"{CONSOLE}-{self._starts}"),
            firmware=str(flashed.path) if flashed else own,
            files={name: self.machine_site.path(file) for name, file in wanted.files.items()},
            ports={name: self.port(name) for name in port_names(wanted)},
        )

    def line(self, values: Placeholders) -> tuple[str, ...]:
        """The command line of a program that is about to start."""
        return command(self.parameters, values)

    def has_started(self) -> bool:
        """Whether the target itself runs, and not only what starts it."""
        return True

    def access(self, values: Placeholders) -> Access:
        wanted = self.parameters
        return Access(
            readable=(
                *((wanted.program,) if wanted.program.startswith("/") else ()),
                *wanted.readable,
                *((values.firmware,) if values.firmware else ()),
                *values.files.values(),
            ),
            writable=(self._files.name, self._sockets.name),
        )

    def connect(self, values: Placeholders) -> None:
        """Connect the networks to the ports of the program."""
        children: dict[str, Any] = self.children
        for name in self.parameters.ports:
            children[name].port = values.ports[name]

    def new_socket(self) -> socket.socket:
        """A TCP socket in the network of the program."""
        outside = self.is_connected() or self.machine_site.launcher
        return sandbox.Sandbox().stream_socket() if outside else self.sandbox.stream_socket()

    def port(self, name: str) -> int:
        """A port for the program that is started now: a free one."""
        with self.new_socket() as probe:
            probe.bind((LOOPBACK, 0))
            port: int = probe.getsockname()[1]
            return port


class HeardOutput:
    """What the console has printed, as far as patterns are searched in it."""

    def __init__(self) -> None:
        self.recent = bytearray()
        self._news = asyncio.Event()

    def add(self, data: bytes) -> None:
        self.recent += data
        del self.recent[:-SEARCHED_BYTES_MAX]
        self._news.set()

    async def more(self, seconds: float) -> None:
        """Wait for output, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()


class ProgramOutput:
    """What the program prints besides its console: logged, and searched for patterns."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._recent = bytearray()
        self._lock = threading.Lock()
        self._listeners: list[threading.Thread] = []
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES_MAX)

    def last_lines(self, *, ended: bool) -> str:
        """The last lines; all of them if the program has ended."""
        for listener in self._listeners if ended else ():
            listener.join(LAST_WORDS_SECONDS_MAX)
        return " ".join(self._last_lines)

    def follow(self, stream: IO[bytes]) -> None:
        listener = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._listeners.append(listener)
        listener.start()

    def find(self, pattern: str) -> str:
        """The first group of the first match so far, or an empty text."""
        with self._lock:
            found = re.search(pattern.encode(), self._recent)
        return os.fsdecode(found[1]) if found else ""

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with self._lock:
                    self._recent += line
                    del self._recent[:-SEARCHED_BYTES_MAX]
                self.note(line.decode(errors="replace").rstrip())

    def note(self, text: str) -> None:
        """Log a line that the program has printed."""
        self._last_lines.append(text)
        self._log.info("%s", text)


@dataclass(kw_only=True)
class ProgramPower(PowerInterface, Driver):
    """Starts and kills the program."""

    parent: Program

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self._running: sandbox.Program | Launched | None = None
        self._output = ProgramOutput(self.logger)

    def is_on(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @export  # type: ignore[untyped-decorator]
    async def on(self) -> None:
        with self.parent.occupation.of("being switched on"):
            if self.is_on():
                self.logger.warning("already powered on, ignoring request")
                return
            self.off()
            try:
                await self._switch_on()
            except BaseException:
                self.off()
                raise

    @export  # type: ignore[untyped-decorator]
    def off(self) -> None:
        process, self._running = self._running, None
        if process is not None:
            process.kill()
            process.wait(timeout=OFF_SECONDS_MAX)

    @export  # type: ignore[untyped-decorator]
    async def read(self) -> AsyncIterator[PowerReading]:
        """A program draws no measurable power: 0 V if it is off, 5 V if it is on."""
        yield PowerReading(voltage=5.0 if self.is_on() else 0.0, current=0.0)

    async def _switch_on(self) -> None:
        wanted = self.parent.parameters
        values = self.parent.placeholders()
        deadline = time.monotonic() + wanted.ready_seconds
        line, heard = self.parent.console.line, HeardOutput()
        with line.overheard(heard.add):
            if wanted.console is ConsoleKind.STDIO:
                with opened_terminal() as (ours, theirs):
                    self._start(values, stdin=theirs, stdout=theirs)
                    await line.plug(bridged(os.dup(ours)))
                await self._wait_until_started(deadline)
            else:
                self._start(values)
                await line.plug(await self._connected(values, deadline))
            if wanted.ready:
                await self._wait_until_ready(heard, deadline)
        self.parent.connect(values)

    def _start(
        self, values: Placeholders, *, stdin: int | None = None, stdout: int | None = None
    ) -> None:
        argv = self.parent.line(values)
        self.logger.info("starting %s", " ".join(argv))
        self._output = ProgramOutput(self.logger)
        with contextlib.ExitStack() as stack:
            if stdout is None:
                reading, stdout = os.pipe()
                stack.callback(os.close, stdout)
                self._output.follow(os.fdopen(reading, "rb"))
            launcher = self.parent.machine_site.launcher
            if launcher:
                handed = {1: stdout} if stdin is None else {0: stdin, 1: stdout}
                self._running = Launched(launcher, argv, handed)
            else:
                self._running = self.parent.sandbox.start(
                    argv,
                    access=self.parent.access(values),
                    stdin=stdin,
                    stdout=stdout,
                    connected=self.parent.is_connected(),
                )
        self._output.follow(self._running.stderr)

    async def _wait_until_started(self, deadline: float) -> None:
        for _ in self._attempts(deadline, "it did not start"):
            if self.parent.has_started():
                return
            await asyncio.sleep(CONNECT_PAUSE_SECONDS)

    async def _connected(self, values: Placeholders, deadline: float) -> socket.socket:
        """The console of a program that has started, once it offers one."""
        kind = self.parent.parameters.console
        for _ in self._attempts(deadline, f"it offered no console ({kind})"):
            found = await self._attempt(kind, values)
            if found is not None:
                return found
            await asyncio.sleep(CONNECT_PAUSE_SECONDS)
        raise AssertionError("attempts end with an error")

    async def _attempt(self, kind: ConsoleKind, values: Placeholders) -> socket.socket | None:
        if kind is ConsoleKind.PTY:
            path = self._output.find(self.parent.parameters.pty_pattern)
            return bridged(self._terminal(path)) if path else None
        if kind is ConsoleKind.TCP:
            made = self.parent.new_socket()
            address: tuple[str, int] | str = (LOOPBACK, values.ports[CONSOLE])
        else:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            address = values.socket
        try:
            await asyncio.get_running_loop().sock_connect(made, address)
        except (ConnectionError, FileNotFoundError):
            made.close()
            return None
        return made

    def _terminal(self, path: str) -> int:
        """The program's pseudo-terminal, which exists in the program's own file system."""
        if self.parent.machine_site.launcher:
            raise RuntimeError(
                "console: pty does not work in Pods, where the program has a file system of its"
                " own; use stdio, tcp or unix"
            )
        assert isinstance(self._running, sandbox.Program)
        terminal = os.open(self._running.root + path, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(terminal, termios.TCSANOW)  # keeps what was printed already
        return terminal

    async def _wait_until_ready(self, heard: HeardOutput, deadline: float) -> None:
        pattern = re.compile(self.parent.parameters.ready.encode())
        problem = f"its console did not print {self.parent.parameters.ready!r}"
        for left in self._attempts(deadline, problem):
            if pattern.search(heard.recent):
                return
            await heard.more(min(left, LOOK_SECONDS_MAX))

    def _attempts(self, deadline: float, problem: str) -> Iterator[float]:
        """The seconds left; ends with ``RuntimeError`` when there are none or the program ended."""
        while (left := deadline - time.monotonic()) > 0 and self.is_on():
            yield left
        seconds = self.parent.parameters.ready_seconds
        ended = not self.is_on()
        what = "the program ended" if ended else f"{problem} within {seconds} s"
        said = self._output.last_lines(ended=ended)
        raise RuntimeError(f"the target did not start: {what}. {said}".strip())
