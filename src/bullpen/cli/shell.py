"""``bullpen shell``, ``run`` and ``console``: lease a target, use it, give it back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import termios
import time
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bullpen.cli.options import Exit, client_options
from bullpen.client.config import ClientConfig
from bullpen.errors import LabError
from bullpen.kit import durations

if TYPE_CHECKING:
    from bullpen.client.lease import HeldLease

QUIT = b"\x1d"
"""Ctrl-], as in telnet."""

QUIET_SECONDS = 1.0
"""A console whose input has ended is closed when it has been silent for so long."""

TICK_SECONDS = 1.0

F = TypeVar("F", bound=Callable[..., Any])


class Period(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            found = durations.parse(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}; write 90s, 15m or 2h", param, ctx)
        if found <= timedelta(0):
            self.fail("must be positive", param, ctx)
        return found


def leasing(function: F) -> F:
    """The options that say who leases what for how long."""
    for decorate in (
        click.option("-l", "--selector", default="", help="Labels of the target: board=rpi4."),
        click.option("-n", "--name", "exporter", default="", help="Name of the exporter."),
        click.option("--duration", type=Period(), default="30m", show_default=True),
        click.option(
            "--timeout",
            type=Period(),
            default="2h",
            show_default=True,
            help="How long to wait for a free target; then exit with 12.",
        ),
    ):
        function = decorate(function)
    return client_options(function)


def joining(function: F) -> F:
    """The options of ``leasing``, and the one that names a lease that exists."""
    option = click.option(
        "--lease", default="", help="Use this lease of yours, and keep it afterwards."
    )
    return leasing(option(function))


@click.command()
@joining
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], **options: Any) -> int:
    """Lease a target and run a shell in which j and jmp use it, or COMMAND after --."""
    line = command or (os.environ.get("SHELL") or "/bin/sh",)
    return _run(lambda session: session.child(line), **options)


@click.command()
@joining
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **options: Any) -> int:
    """Lease a target, run COMMAND (after --) with it, and exit with the command's code."""
    return _run(lambda session: session.child(command), **options)


@click.command()
@joining
@click.option("--driver", default="", help="Serial port to attach to, if there are several.")
@click.option("--power-on", is_flag=True, help="Switch the target on first.")
def console(driver: str, power_on: bool, **options: Any) -> int:
    """Lease a target and attach the terminal to its console. Ctrl-] ends it."""
    return _run(lambda session: session.console(driver, power_on=power_on), **options)


def _run(
    use: Callable[[Session], Awaitable[int]], *, client: ClientConfig, lease: str, **wanted: Any
) -> int:
    if not lease:
        checked(wanted)
    elif wanted["selector"] or wanted["exporter"]:
        raise click.UsageError("--lease names the target; leave out -l and -n")
    return asyncio.run(_used(client, lease, wanted, use))


def checked(wanted: dict[str, Any]) -> dict[str, Any]:
    """The options of ``leasing``, which must name a target."""
    if not wanted["selector"] and not wanted["exporter"]:
        raise click.UsageError("say which target: -l board=rpi4, or -n NAME")
    return wanted


async def _used(
    known: ClientConfig,
    joined: str,
    wanted: dict[str, Any],
    use: Callable[[Session], Awaitable[int]],
) -> int:
    """Use a target; ``joined`` is the name of its lease if that exists."""
    from bullpen.client.connection import Connection
    from bullpen.client.exporter import Exporter
    from bullpen.client.lease import Leases, Wanted
    from bullpen.client.tunnel import Tunnel, dialling

    progress = ProgressLine()
    with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
        socket = Path(directory) / "socket"
        async with Connection(known) as connection:
            leases = Leases(connection)
            progress.begin()
            what = Wanted(**wanted)
            getting = (
                leases.joined(joined, timeout=what.timeout, progress=progress.tell)
                if joined
                else leases.held(what, progress.tell)
            )
            async with interruptible(getting) as lease:
                progress.end()
                async with (
                    Tunnel(known, dialling(connection, lease.name)).listening(socket),
                    Exporter(socket) as exporter,
                ):
                    await exporter.ready()
                    session = Session(exporter, environment_of(known, lease, socket))
                    return await _while_held(leases, lease, exporter, use(session))


@contextlib.asynccontextmanager
async def interruptible(context: Any) -> AsyncIterator[Any]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does: the lease is given back."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    async with context as value:
        yield value


async def _while_held(leases: Any, lease: Any, exporter: Any, use: Awaitable[int]) -> int:
    """Use the target until that is done, or the lease has ended."""
    present = asyncio.ensure_future(exporter.present())
    try:
        path = f"namespaces/{leases.namespace}/leases/{lease.name}"
        return await until_ended(use, leases.ended(path), what="lease")
    finally:
        present.cancel()
        await asyncio.gather(present, return_exceptions=True)


async def until_ended(use: Awaitable[int], ended: Awaitable[str], *, what: str) -> int:
    """The exit code of ``use``, or another one if ``ended`` says first why there is no target."""
    working, ending = asyncio.ensure_future(use), asyncio.ensure_future(ended)
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        click.echo(f"bullpen: the {what} has ended: {ending.result()}", err=True)
        return Exit.LEASE_ENDED
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


def environment_of(known: ClientConfig, lease: HeldLease, socket: Path) -> dict[str, str]:
    """What Jumpstarter's tools need to use the target."""
    return {
        **os.environ,
        "JUMPSTARTER_HOST": str(socket),
        "JMP_DRIVERS_ALLOW": ",".join(known.drivers_allow) or "UNSAFE",
        "JMP_LEASE": lease.name,
        "JMP_EXPORTER": lease.exporter,
        "JMP_EXPORTER_LABELS": ",".join(f"{key}={value}" for key, value in lease.labels),
        "_JMP_SUPPRESS_DRIVER_WARNINGS": "1",
    }


async def child(line: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run a program; its exit code."""
    try:
        process = await asyncio.create_subprocess_exec(*line, env=environment)
    except OSError as error:
        raise LabError(f"{line[0]} cannot be run: {error.strerror}") from None
    loop = asyncio.get_running_loop()
    # Ctrl-C is for the program; this process stays to give the lease back.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGHUP)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return code if code >= 0 else 128 - code


class Session:
    """A leased target that is ready to be used."""

    def __init__(self, exporter: Any, environment: dict[str, str]) -> None:
        self._exporter = exporter
        self._environment = environment

    async def child(self, line: tuple[str, ...]) -> int:
        """Run a program with the target; its exit code."""
        return await child(line, self._environment)

    async def console(self, driver: str, *, power_on: bool) -> int:
        """Attach this terminal to the target's console."""
        from bullpen.client.exporter import power_of, serial_of

        drivers = await self._exporter.drivers()
        serial = serial_of(drivers, driver)
        async with self._exporter.stream(serial) as stream:
            if power_on:
                await self._exporter.call(power_of(drivers), "on")
            if sys.stdin.isatty():
                click.echo(f"Attached to {serial.path}. Ctrl-] ends it.\r", err=True)
            with _raw_terminal():
                await attached(stream)
        return Exit.OK


async def attached(stream: Any) -> None:
    """Pass the terminal's input to the stream and the stream's output to the terminal."""
    seen = [time.monotonic()]
    output = asyncio.ensure_future(_print(stream, seen))
    typing = asyncio.ensure_future(_type(stream))
    try:
        await asyncio.wait((output, typing), return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and not typing.result():
            while not output.done() and time.monotonic() - seen[0] < QUIET_SECONDS:
                await asyncio.wait((output,), timeout=QUIET_SECONDS / 4)
    finally:
        for task in (output, typing):
            task.cancel()
        await asyncio.gather(output, typing, return_exceptions=True)


async def _print(stream: Any, seen: list[float]) -> None:
    import grpc.aio
    from jumpstarter_protocol import router_pb2

    while (frame := await stream.read()) is not grpc.aio.EOF:
        if frame.frame_type == router_pb2.FRAME_TYPE_GOAWAY:
            return
        seen[0] = time.monotonic()
        await asyncio.to_thread(_write, frame.payload)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


async def _type(stream: Any) -> bool:
    """Send what is typed; whether the user asked to quit, rather than the input having ended."""
    from jumpstarter_protocol import router_pb2

    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while data := await reader.read(4096):
        before, quit_, _ = data.partition(QUIT)
        if before:
            await stream.write(router_pb2.StreamRequest(payload=before))
        if quit_:
            return True
    return False


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        click.echo(err=True)


class ProgressLine:
    """One line about what is waited for: rewritten on a terminal, else printed on change."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._reason = ""
        self._shown = ""
        self._clock: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if sys.stderr.isatty():
            self._clock = asyncio.ensure_future(self._tick())

    def tell(self, reason: str) -> None:
        if not sys.stderr.isatty() and reason != self._reason:
            click.echo(f"waiting: {reason}", err=True)
        self._reason = reason

    def end(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            click.echo(f"\r{' ' * len(self._shown)}\r", err=True, nl=False)

    async def _tick(self) -> None:
        """Rewrite the line every second, from the moment there is something to say."""
        while True:
            if self._reason:
                seconds = int(time.monotonic() - self._began)
                width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
                line = f"waiting {seconds} s: {self._reason}"[:width]
                click.echo(f"\r{line.ljust(len(self._shown))}", err=True, nl=False)
                self._shown = line
            await asyncio.sleep(TICK_SECONDS)
