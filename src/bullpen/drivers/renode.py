"""A board that Renode simulates as a Jumpstarter driver: power, consoles, flasher, monitor.

Renode's monitor is reached through the standard streams and its UARTs through pseudo-terminals:
the sockets that Renode opens would listen on every interface, and the monitor has no password.
Switching the target on starts Renode in its sandbox; switching it off kills it. The monitor pauses,
resets, saves and restores the simulation in between.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jumpstarter.driver import export

from bullpen.api import codec
from bullpen.drivers.console import Console, SerialLine
from bullpen.drivers.program import HeardOutput, Program, ProgramPower
from bullpen.drivers.program_parameters import (
    FirmwareMissing,
    Placeholders,
    ProgramParameters,
    ProgramPort,
    ProgramResources,
)
from bullpen.drivers.renode_monitor import RenodeMonitor
from bullpen.drivers.renode_parameters import (
    CONSOLE,
    GDB,
    START,
    RenodeParameters,
    Snapshot,
    Terminal,
    command_line,
    lessee_command,
    load_script,
    loading,
    machine_commands,
    uarts,
)
from bullpen.drivers.sandbox import Access
from bullpen.drivers.terminals import bridged

ANSWER_SECONDS_MAX = 60.0
"""How long a lessee's command may take."""

SNAPSHOTS_MAX = 4
"""Snapshots that a lessee may have at a time."""

BEGINNING_BYTES = 4

_PSEUDO_TERMINAL = re.compile(r"/dev/pts/[0-9]+")


@dataclass(kw_only=True)
class Renode(Program):
    """The target. Clients see the published driver's interface."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scripts = TemporaryDirectory(prefix="renode-")
        self.load_script = Path(self._scripts.name) / "load.resc"
        """Not in the directory of Renode, which could put a link to another file there."""

        children: dict[str, Any] = self.children
        self.lines: dict[str, SerialLine] = {CONSOLE: self.console.line}
        for name in self.renode.uarts:
            console = Console()  # type: ignore[abstract]
            children[name] = console
            self.lines[name] = console.line

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_renode.client.RenodeClient"

    def close(self) -> None:
        super().close()
        self._scripts.cleanup()

    def read_parameters(self) -> ProgramParameters:
        """Those of Renode as a program with a console."""
        wanted = self.renode = codec.decode(RenodeParameters, self.target)
        return ProgramParameters(
            program=wanted.program,
            readable=wanted.readable,
            firmware=wanted.firmware,
            ready=wanted.ready,
            ready_seconds=wanted.ready_seconds,
            ports={GDB: ProgramPort()} if wanted.gdb else {},
            fetch_from=wanted.fetch_from,
            resources=ProgramResources(firmware=wanted.resources.firmware),
        )

    def is_flashable(self) -> bool:
        return self.renode.snapshot is None

    def new_power(self) -> RenodePower:
        return RenodePower(parent=self)  # type: ignore[abstract]

    def line(self, values: Placeholders) -> tuple[str, ...]:
        self._refuse_without_sandbox()
        if self.renode.platform and not values.firmware:
            raise FirmwareMissing("the target has no firmware; flash one, then switch it on")
        return command_line(self.renode, values.directory)

    def access(self, values: Placeholders) -> Access:
        plain = super().access(values)
        named = (self.path("script"), self.path("snapshot"), self.renode.platform)
        return Access(
            readable=(
                *plain.readable,
                self._scripts.name,
                *(path for path in named if path.startswith("/")),
            ),
            writable=plain.writable,
            processes=True,
        )

    def path(self, name: str) -> str:
        """The path of a file of the class, or an empty text."""
        file = getattr(self.renode, name)
        return "" if file is None else self.machine_site.path(file)

    def firmware_beginning(self, values: Placeholders) -> bytes:
        flashed = self.flashed.get(self.partition)
        with flashed.open() if flashed else open(values.firmware, "rb") as file:
            return file.read(BEGINNING_BYTES)

    def _refuse_without_sandbox(self) -> None:
        if self.machine_site.launcher:
            raise RuntimeError(
                "Renode runs on hosts, not in Pods, where its pseudo-terminals cannot be reached;"
                " use a pool of another kind"
            )
        lacking = {
            "allowRawMonitor": self.renode.allow_raw_monitor and not self.sandbox.wrapper,
            "gdb": self.renode.gdb and self.sandbox.room is None,
        }
        for name, refused in lacking.items():
            if refused:
                raise RuntimeError(
                    f"{name} needs the sandbox of an instance, which is not available here;"
                    " bullpen doctor shows the remedy"
                )

    @export  # type: ignore[untyped-decorator]
    def get_platform(self) -> str:
        return self.renode.platform

    @export  # type: ignore[untyped-decorator]
    def get_uart(self) -> str:
        return self.renode.uart

    @export  # type: ignore[untyped-decorator]
    def get_machine_name(self) -> str:
        return self.renode.machine_name

    @export  # type: ignore[untyped-decorator]
    async def monitor_cmd(self, command: str) -> str:
        """What the monitor answers. Raises if the class does not allow the command."""
        wanted = lessee_command(command, raw=self.renode.allow_raw_monitor)
        power = self.power
        assert isinstance(power, RenodePower)
        with self.occupation.of("executing a monitor command"):
            if isinstance(wanted, Snapshot):
                return await power.snapshot(wanted)
            return await power.monitor().execute(wanted, time.monotonic() + ANSWER_SECONDS_MAX)


@dataclass(kw_only=True)
class RenodePower(ProgramPower):
    """Starts and kills Renode, and creates the machine through its monitor."""

    parent: Renode

    def __post_init__(self) -> None:
        super().__post_init__()
        self._monitor: RenodeMonitor | None = None
        self._terminals: tuple[Terminal, ...] = ()
        self._terminals_made = 0
        self._saved: dict[str, tuple[Terminal, ...]] = {}
        """The terminals in each snapshot."""

    def monitor(self) -> RenodeMonitor:
        if self._monitor is None or not self.is_on():
            raise RuntimeError("the target is off; switch it on first")
        return self._monitor

    @export  # type: ignore[untyped-decorator]
    def off(self) -> None:
        super().off()
        self._monitor = None

    async def _switch_on(self) -> None:
        wanted, target = self.parent.renode, self.parent
        values = target.placeholders()
        deadline = time.monotonic() + wanted.ready_seconds
        heard = HeardOutput()
        with target.console.line.overheard(heard.add):
            monitor = self._monitor = await self._started(values)
            try:
                await monitor.prompt(deadline)
                await self._create_machine(monitor, values, deadline)
                await monitor.execute(START, deadline)
            except RuntimeError as error:
                said = self._output.last_lines(ended=not self.is_on())
                raise RuntimeError(f"the target did not start: {error}. {said}".strip()) from None
            if wanted.ready:
                await self._wait_until_ready(heard, deadline)
        target.connect(values)

    async def _started(self, values: Placeholders) -> RenodeMonitor:
        """Start Renode with pipes to its monitor."""
        name = Path(values.directory).name.replace("-", "_")
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            theirs_in, ours_out = os.pipe()
            ours_in, theirs_out = os.pipe()
            stack.callback(os.close, theirs_in)
            stack.callback(os.close, theirs_out)
            writing = os.fdopen(ours_out, "wb", buffering=0)
            reading = os.fdopen(ours_in, "rb", buffering=0)
            monitor = RenodeMonitor(name, self._record)
            await loop.connect_read_pipe(lambda: monitor, reading)
            transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, writing)
            monitor.attach(transport)
            self._start(values, stdin=theirs_in, stdout=theirs_out)
        return monitor

    def _record(self, text: str) -> None:
        self._output.note(text)

    async def _create_machine(
        self, monitor: RenodeMonitor, values: Placeholders, deadline: float
    ) -> None:
        wanted, target = self.parent.renode, self.parent
        script, snapshot = target.path("script"), target.path("snapshot")
        for command in machine_commands(
            wanted, firmware=values.firmware, script=script, snapshot=snapshot
        ):
            await monitor.execute(command, deadline)
        await self._connect_consoles(monitor, deadline)
        for command in wanted.extra_commands:
            await monitor.execute(command, deadline)
        if wanted.platform:
            beginning = target.firmware_beginning(values)
            target.load_script.write_text(load_script(wanted, values.firmware, beginning))
            await monitor.execute(f"include @{target.load_script}", deadline)
        if wanted.gdb:
            await monitor.execute(f"machine StartGdbServer {values.ports[GDB]}", deadline)

    async def _connect_consoles(self, monitor: RenodeMonitor, deadline: float) -> None:
        """Connect every UART to its console, through new pseudo-terminals."""
        self._terminals_made += 1
        run = self._terminals_made
        place = Path(self.parent.directory)
        self._terminals = tuple(
            Terminal(name=name, uart=uart, path=str(place / f"uart-{name}-{run}"), run=run)
            for name, uart in uarts(self.parent.renode).items()
        )
        for terminal in self._terminals:
            for command in terminal.connected():
                await monitor.execute(command, deadline)
            opened = self._terminal(pseudo_terminal(Path(terminal.path)))
            await self.parent.lines[terminal.name].plug(bridged(opened))

    async def snapshot(self, wanted: Snapshot) -> str:
        """Save the state of the simulation, or go back to a saved one."""
        monitor, deadline = self.monitor(), time.monotonic() + ANSWER_SECONDS_MAX
        path = str(Path(self.parent.directory) / f"{wanted.name}.save")
        if wanted.saves:
            if wanted.name not in self._saved and len(self._saved) >= SNAPSHOTS_MAX:
                raise RuntimeError(
                    f"there are {SNAPSHOTS_MAX} snapshots, the most a target can have; use the"
                    f" name of one of them to replace it: {', '.join(self._saved)}"
                )
            said = await monitor.execute(f"Save @{path}", deadline)
            self._saved[wanted.name] = self._terminals
            return said
        if wanted.name not in self._saved:
            known = ", ".join(self._saved) or "none"
            raise RuntimeError(f"there is no snapshot {wanted.name!r}; there are: {known}")
        for command in loading(path):
            await monitor.execute(command, deadline)
        # Loading deletes the links of the terminals in the snapshot, so it gets new ones.
        for terminal in self._saved[wanted.name]:
            await monitor.execute(terminal.disconnected(), deadline)
        await self._connect_consoles(monitor, deadline)
        return await monitor.execute(START, deadline)


def pseudo_terminal(link: Path) -> str:
    """Where a link leads. Renode's directory is Renode's, so the link may lead anywhere."""
    found = str(link.readlink())
    if not _PSEUDO_TERMINAL.fullmatch(found):
        raise RuntimeError(f"Renode's terminal is not a pseudo-terminal: {found}")
    return found
