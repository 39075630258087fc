"""A virtual device of Corellium as a Jumpstarter driver: power and console.

The provisioner creates and deletes the instance; this driver only switches it and connects to its
console. It has no credentials of the account, but what the provisioner grants it for this instance:
a session, or without one, the addresses of the consoles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ObjectStream
from jumpstarter.driver import Driver, export, exportstream
from jumpstarter_driver_power.common import PowerReading
from jumpstarter_driver_power.driver import PowerInterface

from bullpen.drivers.corellium_api import CorelliumApi
from bullpen.drivers.json_api import ApiError, trust

GRANTED = "corellium.json"
"""Name of the file that the provisioner grants: ``Grant`` as JSON."""

SNAPSHOT = "bullpen"
"""The snapshot that the provisioner has taken before the first lease."""

RESTORE_SECONDS_MAX = 25.0
"""How long the restoration may take to begin; a lease waits 30 s for its drivers to close."""

SETTLE_SECONDS_MAX = 900.0
"""How long the next lessee waits at most until the device is restored."""

SWITCH_SECONDS_MAX = 300.0
LOOK_SECONDS = 2.0
RETRY_SECONDS_MAX = 60.0
CONNECT_SECONDS_MAX = 30.0
MESSAGE_BYTES_MAX = 1 << 20
PING_SECONDS = 30.0
"""A console whose other end does not answer a ping within this time is closed."""

NO_SESSION = (
    "this Corellium account has no sessions for single devices (Webplayer), so the device cannot be"
    " switched from here; restart it from its console"
)


IDLE = frozenset({"", "none"})
"""The tasks of an instance with which nothing is being done."""


def task(described: Mapping[str, Any]) -> str:
    """What is being done with an instance, besides running it; empty for nothing."""
    found = str(described.get("taskState") or described.get("userTask") or "")
    return "" if found in IDLE else found


def is_idle(described: Mapping[str, Any]) -> bool:
    return not task(described) and described["state"] not in ("restoring", "creating")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What lets an exporter reach one instance. A secret."""

    endpoint: str
    ca: str = ""
    session: str = ""
    """A token for this instance alone; empty if the account has no such sessions."""

    consoles: dict[str, str]
    """Without a session, addresses of the consoles by name; the empty name is the default one."""


@dataclass(kw_only=True)
class Corellium(Driver):
    """The target. Clients see its power and its console."""

    instance: str
    """The id of the instance."""

    console_name: str = ""
    """The console, by the name that Corellium shows; the default one if empty."""

    snapshot: str = ""
    """Restored when a lease has used the device; empty if nobody uses the device afterwards."""

    granted: str = f"granted/{GRANTED}"

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self._used = False
        children: dict[str, Any] = self.children
        children["power"] = CorelliumPower(parent=self)  # type: ignore[abstract]
        children["console"] = CorelliumConsole(parent=self)  # type: ignore[abstract]

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_composite.client.CompositeClient"

    def close(self) -> None:
        """The end of a lease. Raises if the device cannot be restored for the next one."""
        super().close()  # type: ignore[no-untyped-call]
        if self._used and self.snapshot:
            self._used = False
            # The caller may be the thread of an event loop.
            with ThreadPoolExecutor(1) as threads:
                threads.submit(asyncio.run, self._restore()).result()

    async def _restore(self) -> None:
        if not self.grant().session:
            raise RuntimeError("without a session, the device cannot be restored")
        try:
            async with asyncio.timeout(RESTORE_SECONDS_MAX):
                shown = await self.call("GET", "/snapshots")
                found = [each["id"] for each in shown if each.get("name") == self.snapshot]
                if not found:
                    raise RuntimeError(f"the device has no snapshot {self.snapshot!r}")
                await self.call("POST", f"/snapshots/{found[0]}/restore")
        except TimeoutError:
            said = f"its restoration did not begin within {RESTORE_SECONDS_MAX:g} s"
            raise RuntimeError(said) from None

    async def settled(self) -> None:
        """Returns when nothing is being done with the device. What follows uses it."""
        self._used = True
        if not self.snapshot or not self.grant().session:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await self._wait_until_idle()
        except TimeoutError:
            said = f"the device was not restored within {SETTLE_SECONDS_MAX:g} s"
            raise RuntimeError(said) from None

    async def _wait_until_idle(self) -> None:
        while True:
            if is_idle(await self.call("GET", "")):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def grant(self) -> Grant:
        """As it is now: the provisioner replaces the file before it ends."""
        return Grant(**json.loads(Path(self.granted).read_text()))

    async def call(self, method: str, path: str, **sent: Any) -> Any:
        """A call for this instance. Waits, once, if there were too many."""
        grant = self.grant()
        api = CorelliumApi(grant.endpoint, grant.session, ca_pem=grant.ca)
        path = f"/instances/{self.instance}{path}"
        try:
            return await api.call(method, path, **sent)
        except ApiError as error:
            if error.retry_after is None:
                raise
            await asyncio.sleep(min(error.retry_after, RETRY_SECONDS_MAX))
        return await api.call(method, path, **sent)

    async def console_url(self) -> str:
        """The address of the console, which is a secret too."""
        grant = self.grant()
        if not grant.session:
            return self._chosen(grant.consoles)
        if not self.console_name:
            return str((await self.call("GET", "/console"))["url"])
        shown = (await self.call("GET", "")).get("consoles") or []
        found = self._chosen({each["name"]: each["id"] for each in shown})
        kind = found.removeprefix("port-")
        return str((await self.call("GET", "/console", query={"type": kind}))["url"])

    def _chosen(self, consoles: dict[str, str]) -> str:
        if self.console_name not in consoles:
            known = ", ".join(sorted(filter(None, consoles))) or "none"
            raise ValueError(f"there is no console {self.console_name!r}; available: {known}")
        return consoles[self.console_name]


@dataclass(kw_only=True)
class CorelliumPower(PowerInterface, Driver):
    """Switches the device, and waits until it is switched."""

    parent: Corellium

    @export  # type: ignore[untyped-decorator]
    async def on(self) -> None:
        await self._switch("on")

    @export  # type: ignore[untyped-decorator]
    async def off(self) -> None:
        await self._switch("off")

    @export  # type: ignore[untyped-decorator]
    async def read(self) -> AsyncIterator[PowerReading]:
        """A virtual device draws no measurable power: 0 V if it is off, 5 V if it is on."""
        self._require_session()
        state = (await self.parent.call("GET", ""))["state"]
        yield PowerReading(voltage=0.0 if state == "off" else 5.0, current=0.0)

    async def _switch(self, wanted: str) -> None:
        self._require_session()
        await self.parent.settled()
        if (await self.parent.call("GET", ""))["state"] == wanted:
            return
        await self.parent.call("PUT", "/state", body={"state": wanted})
        try:
            async with asyncio.timeout(SWITCH_SECONDS_MAX):
                await self._wait_until(wanted)
        except TimeoutError:
            raise RuntimeError(
                f"the device was not {wanted} within {SWITCH_SECONDS_MAX:g} s"
            ) from None

    async def _wait_until(self, wanted: str) -> None:
        while True:
            found = await self.parent.call("GET", "")
            if found["state"] == wanted:
                return
            if found["state"] == "error":
                raise RuntimeError(f"the device failed: {found.get('error') or 'no reason given'}")
            await asyncio.sleep(LOOK_SECONDS)

    def _require_session(self) -> None:
        if not self.parent.grant().session:
            raise RuntimeError(NO_SESSION)


@dataclass(kw_only=True)
class CorelliumConsole(Driver):
    """A console of the device over its web socket. Clients see a serial port."""

    parent: Corellium

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_pyserial.client.PySerialClient"

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[ConsoleStream]:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            await self._socket(session) as socket,
        ):
            yield ConsoleStream(socket)

    async def _socket(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        await self.parent.settled()
        url = await self.parent.console_url()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                return await session.ws_connect(
                    url,
                    protocols=("binary",),
                    ssl=trust(self.parent.grant().ca),
                    heartbeat=PING_SECONDS,
                    max_msg_size=MESSAGE_BYTES_MAX,
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            # Its text would have the address, which is a secret.
            said = getattr(error, "status", "") or type(error).__name__
            raise RuntimeError(f"the console cannot be connected to: {said}") from None


class ConsoleStream(ObjectStream[bytes]):
    """The bytes of a console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def receive(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                return bytes(message.data)
            if message.type is aiohttp.WSMsgType.TEXT:
                return str(message.data).encode()
            raise EndOfStream

    async def send(self, item: bytes) -> None:
        try:
            await self._socket.send_bytes(item)
        except ConnectionError as error:
            raise BrokenResourceError from error

    async def send_eof(self) -> None:
        """A serial line has no end of file."""

    async def aclose(self) -> None:
        await self._socket.close()
