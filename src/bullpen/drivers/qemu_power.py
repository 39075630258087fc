"""Switches a QEMU machine on and off, through the part of QEMU's machine protocol it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from jumpstarter.driver import export
from jumpstarter_driver_qemu import driver as published

from bullpen.drivers import kvm_trial
from bullpen.drivers.launcher_client import Launched
from bullpen.drivers.qemu_command import Machine, command
from bullpen.drivers.sandbox import (
    LAST_LINES_MAX,
    LAST_WORDS_SECONDS_MAX,
    Access,
    Program,
)

if TYPE_CHECKING:
    from bullpen.drivers.qemu import Qemu

ANSWER_SECONDS_MAX = 10.0
EVENTS_MAX = 256
"""Events kept until a call waits for them; older ones are dropped."""

LINE_BYTES_MAX = 1 << 20
OFF_SECONDS_MAX = 5.0


class QmpError(RuntimeError):
    """QEMU rejected a command, or does not answer."""


class MachineFailed(RuntimeError):
    """QEMU did not start the machine."""

    def __init__(self, message: str, machine: Machine) -> None:
        super().__init__(message.strip())
        self.machine = machine


class Qmp:
    """A QMP session. Created by ``talking``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    async def greet(self) -> None:
        await self._message()  # the greeting of QEMU
        await self.execute("qmp_capabilities")

    async def execute(self, name: str, **arguments: object) -> Any:
        """The result of a command; raises ``QmpError`` if QEMU rejects it."""
        self._writer.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            message = await self._message()
            if "error" in message:
                raise QmpError(f"{name}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]
            self._events.append(message)

    async def until(self, event: str, **data: object) -> None:
        """Return when QEMU has reported this event; raises ``QmpError`` if it does not."""
        while True:
            message = self._events.popleft() if self._events else await self._message()
            if message.get("event") == event and data.items() <= message["data"].items():
                return

    async def _message(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                line = await self._reader.readline()
        except TimeoutError:
            raise QmpError(f"QEMU did not answer within {ANSWER_SECONDS_MAX:g} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise QmpError("QEMU ended")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.asynccontextmanager
async def talking(connection: socket.socket) -> AsyncIterator[Qmp]:
    """A session over one end of a socket pair whose other end QEMU inherited."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_BYTES_MAX)
    try:
        qmp = Qmp(reader, writer)
        await qmp.greet()
        yield qmp
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@dataclass(kw_only=True)
class QemuPower(published.QemuPower):
    """Switches the machine on and off."""

    parent: Qemu

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self._running: Program | Launched | None = None
        self._cloud_init: TemporaryDirectory[str] | None = None
        self._listener: threading.Thread | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES_MAX)
        self._trial: asyncio.Task[None] | None = None

    def is_on(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @export  # type: ignore[untyped-decorator]
    async def on(self) -> None:
        with self.parent.occupation.of("being switched on"):
            if self.is_on():
                self.logger.warning("already powered on, ignoring request")
            else:
                await self._switch_on_trusted()

    async def _switch_on_trusted(self) -> None:
        """Switch on; with emulation if QEMU fails with KVM, now or while it is watched."""
        output = kvm_trial.Output()
        try:
            machine = await self._switch_on(output)
        except MachineFailed as error:
            if not kvm_trial.is_on_trial(error.machine):
                raise
            await self._switch_on(kvm_trial.Output(), emulate=True)
            self._blame(error.machine, str(error))
            return
        if kvm_trial.is_on_trial(machine) and kvm_trial.speaks(machine):
            self._trial = asyncio.create_task(self._watch(machine, self._running, output))

    async def _watch(
        self, machine: Machine, process: Program | Launched | None, output: kvm_trial.Output
    ) -> None:
        """Start the machine again with emulation if it shows no sign of life with KVM."""
        if await output.comes() or self._running is not process:
            return
        seconds = kvm_trial.LIFE_SECONDS_MAX
        problem = f"a machine printed nothing for {seconds:g} s with KVM, and did with emulation"
        self.logger.warning("no output for %g s: starting again without KVM", seconds)
        emulated = kvm_trial.Output()
        with self.parent.occupation.of("being switched on"):
            await asyncio.to_thread(self.off)
            try:
                await self._switch_on(emulated, emulate=True)
            except MachineFailed as error:
                self.logger.warning("not started without KVM either: %s", error)
                return
        if await emulated.comes():
            self._blame(machine, problem)
        else:
            self.logger.warning("no output with emulation either: KVM is not the cause")

    def _blame(self, machine: Machine, problem: str) -> None:
        self.logger.warning("KVM is not used any more: %s", problem)
        kvm_trial.fail(machine.arch, problem)

    async def _switch_on(self, output: kvm_trial.Output, *, emulate: bool = False) -> Machine:
        self._cloud_init = self.parent.cidata()
        with contextlib.ExitStack() as stack:
            qmp, their_qmp = map(stack.enter_context, socket.socketpair())
            serial, their_serial = map(stack.enter_context, socket.socketpair())
            machine = await self.parent.machine(
                qmp=their_qmp.fileno(),
                serial=their_serial.fileno(),
                cidata=self._cloud_init.name,
            )
            if emulate:
                machine = replace(machine, site=replace(machine.site, kvm=False))
            # Each gets a duplicate, because a transport may close its socket at any time.
            await self.parent.console.line.plug(serial.dup(), output.add)
            self._running = self._start(
                command(machine), (machine.qmp, machine.serial), self.parent.access(machine)
            )
            their_qmp.close()
            their_serial.close()
            await self._let_go(qmp.dup(), machine)
            return machine

    async def _let_go(self, connection: socket.socket, machine: Machine) -> None:
        """Connect the sockets QEMU opened, then let the guest run."""
        try:
            async with talking(connection) as qmp:
                await self.parent.connect(qmp)
                await qmp.execute("cont")
        except (QmpError, OSError) as error:
            self.off()
            if self._listener is not None:
                self._listener.join(LAST_WORDS_SECONDS_MAX)
            said = " ".join(self._last_lines)
            raise MachineFailed(f"the machine did not start: {error}. {said}", machine) from None

    def _start(
        self, line: tuple[str, ...], inherited: tuple[int, ...], access: Access
    ) -> Program | Launched:
        self.logger.info("starting %s", " ".join(line))
        process: Program | Launched
        if self.parent.machine_site.launcher:
            handed = {1: 1, **{number: number for number in inherited}}
            process = Launched(self.parent.machine_site.launcher, line, handed)
        else:
            process = self.parent.sandbox.start(
                line,
                access=access,
                inherited=inherited,
                connected=self.parent.is_connected(),
            )
        self._listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        self._listener.start()
        return process

    def _listen(self, process: Program | Launched) -> None:
        with process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._last_lines.append(text)
                self.logger.info("%s", text)
        if self._running is process and self.parent.on_ended is not None:
            self.parent.on_ended(process.wait())

    @export  # type: ignore[untyped-decorator]
    def off(self) -> None:
        process, self._running = self._running, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=OFF_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._cloud_init is not None:
            self._cloud_init.cleanup()
            self._cloud_init = None
