"""An EC2 instance as Jumpstarter drivers: its power, the output of its console, its ports.

The provisioner creates and deletes the instance. These drivers have no credentials of the account,
but what the provisioner grants for this instance: a session that may switch it and read its
console. The granted file has the address too, which may change when the instance is switched on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import EndOfStream, connect_tcp
from anyio.abc import ObjectStream
from jumpstarter.driver import Driver, export, exportstream
from jumpstarter_driver_network.driver import TcpNetwork
from jumpstarter_driver_power.common import PowerReading
from jumpstarter_driver_power.driver import PowerInterface

from bullpen.drivers.ec2_api import ApiError, Grant, call

GRANTED = "ec2.json"
"""Name of the file that the provisioner grants: ``Grant`` as JSON."""

PLACE = f"granted/{GRANTED}"
SWITCH_SECONDS_MAX = 600.0
LOOK_SECONDS = 5.0
CONSOLE_SECONDS = 10.0
"""How often the output of the console is asked for."""

NOT_YET = frozenset({"IncorrectInstanceState", "IncorrectState"})


def grant_at(place: str) -> Grant:
    """As it is now: the provisioner replaces the file before it ends, and when it has changed."""
    return Grant(**json.loads(Path(place).read_text()))


@dataclass(kw_only=True)
class Ec2Tcp(TcpNetwork):
    """A port of the instance, wherever that is now. ``host`` is where it was at first."""

    granted: str = PLACE

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self._find()
        async with await connect_tcp(remote_host=self.host, remote_port=self.port) as stream:
            yield stream

    @export  # type: ignore[untyped-decorator]
    async def address(self) -> str:
        self._find()
        found: str = await super().address()
        return found

    def _find(self) -> None:
        self.host = grant_at(self.granted).address or self.host


@dataclass(kw_only=True)
class Ec2Power(PowerInterface, Driver):
    """Switches the instance, and waits until EC2 says that it is switched."""

    instance: str
    granted: str = PLACE

    @export  # type: ignore[untyped-decorator]
    async def on(self) -> None:
        await self._switch("StartInstances", "running")

    @export  # type: ignore[untyped-decorator]
    async def off(self) -> None:
        await self._switch("StopInstances", "stopped")

    @export  # type: ignore[untyped-decorator]
    async def read(self) -> AsyncIterator[PowerReading]:
        raise NotImplementedError("EC2 does not measure the power of an instance")
        yield  # makes it a generator, as the interface demands

    async def _switch(self, action: str, wanted: str) -> None:
        """Repeat the call until its answer has the state: the session may not list instances."""
        try:
            async with asyncio.timeout(SWITCH_SECONDS_MAX):
                await self._repeat(action, wanted)
        except TimeoutError:
            said = f"the instance was not {wanted} within {SWITCH_SECONDS_MAX:g} s"
            raise RuntimeError(said) from None
        except ApiError as error:
            raise RuntimeError(f"the instance cannot be switched: {error}") from None

    async def _repeat(self, action: str, wanted: str) -> None:
        while True:
            if wanted in await self._states(action):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _states(self, action: str) -> tuple[str, ...]:
        """The states before and after the call; none while it is changing to another one."""
        try:
            answer = await call(grant_at(self.granted), action, **{"InstanceId.1": self.instance})
        except ApiError as error:
            if error.code in NOT_YET:
                return ()
            raise
        names = ("previousState", "currentState")
        return tuple(answer.findtext(f".//{name}/name", "") for name in names)


@dataclass(kw_only=True)
class Ec2Console(Driver):
    """What the instance has written to its console. Clients see a serial port without input."""

    instance: str
    granted: str = PLACE

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_pyserial.client.PySerialClient"

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[ConsoleOutput]:
        yield ConsoleOutput(self)

    async def output(self) -> bytes:
        """The latest 64 KiB; of older types of instances, what it wrote when it started."""
        fields = {"InstanceId": self.instance, "Latest": "true"}
        try:
            answer = await call(grant_at(self.granted), "GetConsoleOutput", **fields)
        except ApiError as error:
            if error.code != "UnsupportedOperation":
                raise
            del fields["Latest"]
            answer = await call(grant_at(self.granted), "GetConsoleOutput", **fields)
        return base64.b64decode(answer.findtext(".//output", ""))


class ConsoleOutput(ObjectStream[bytes]):
    """The output so far, then what is added to it."""

    def __init__(self, console: Ec2Console) -> None:
        self._console = console
        self._seen: bytes | None = None
        self._closed = False

    async def receive(self) -> bytes:
        while not self._closed:
            if self._seen is not None:
                await asyncio.sleep(CONSOLE_SECONDS)
            before = self._seen or b""
            self._seen = await self._console.output()
            if new := added(before, self._seen):
                return new
        raise EndOfStream

    async def send(self, item: bytes) -> None:
        """The console takes no input over this interface of EC2."""

    async def send_eof(self) -> None:
        """A serial line has no end of file."""

    async def aclose(self) -> None:
        self._closed = True


def added(before: bytes, after: bytes) -> bytes:
    """What is new in ``after``, whose beginning may have been dropped."""
    tail = before
    while tail and not after.startswith(tail):
        place = tail.find(after[:64], 1)
        tail = tail[place:] if after and place > 0 else b""
    return after[len(tail) :]
