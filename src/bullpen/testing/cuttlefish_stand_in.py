"""A stand-in for a host of Cuttlefish: its orchestrator, and devices to which the real adb talks.

    python -m bullpen.testing.cuttlefish_stand_in --port 2080

There is no Android: a device is that of the stand-in for the Android emulator, with a shell of a
few commands. The orchestrator has what Bullpen uses of it: groups of devices, their states with
delays, and operations. It was written from the published source of the orchestrator and of cvd,
and answers as the orchestrator did that was built from that source and run with a program in the
place of cvd. Real devices were never seen: how long they take, and what cvd says when it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from bullpen.kit.clock import SystemClock
from bullpen.testing import android_emulator_stand_in as android
from bullpen.testing.fake_cuttlefish import FIRST_PORT, Cuttlefish

DEVICES_MAX = 8
BODY_BYTES_MAX = 1 << 20


class AdbDevice(android.Device):
    """What is behind the adb of a device."""

    def __init__(self, data: Path) -> None:
        data.mkdir(exist_ok=True)
        self.data = data
        self.config = {"ro.product.model": "stand-in for Cuttlefish"}
        self.booted_at = 0.0


class AdbPorts:
    """The ports of all devices that may exist, each served while its device is on."""

    def __init__(self, host: str, cuttlefish: Cuttlefish, data: Path) -> None:
        self._cuttlefish = cuttlefish
        self._data = data
        self._open: dict[int, list[socket.socket]] = {}
        self._listeners = [
            socket.create_server((host, cuttlefish.first_port + place))
            for place in range(DEVICES_MAX)
        ]
        for place, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(place + 1, listener), daemon=True).start()

    def hang_up(self) -> None:
        """End the connections of devices that are off."""
        for number, connections in self._open.items():
            if self._cuttlefish.running(number) is None:
                while connections:
                    with contextlib.suppress(OSError):
                        connections.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, number: int, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                found = self._cuttlefish.running(number)
                if found is None:
                    connection.close()
                    continue
                device = AdbDevice(self._data / f"{found.name}-{number}-{found.resets}")
                self._open.setdefault(number, []).append(connection)
                serve = android.Link(device, connection).serve
                threading.Thread(target=serve, daemon=True).start()


class Server:
    """The orchestrator over HTTP."""

    def __init__(self, cuttlefish: Cuttlefish, ports: AdbPorts) -> None:
        self._cuttlefish = cuttlefish
        self._ports = ports

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        made = self._cuttlefish.answer(
            request.method, request.path, json.loads(body) if body else None
        )
        self._ports.hang_up()
        text = "" if made.body is None else json.dumps(made.body)
        kind = "application/json" if text else None
        return web.Response(text=text, status=made.status, content_type=kind)


@contextlib.asynccontextmanager
async def stand_in(
    *, port: int = 0, host: str = "127.0.0.1", adb_port: int = FIRST_PORT
) -> AsyncIterator[tuple[Cuttlefish, str]]:
    """The stand-in, and the URL of its orchestrator."""
    made = Cuttlefish(SystemClock(), first_port=adb_port)
    application = web.Application(client_max_size=BODY_BYTES_MAX)
    with TemporaryDirectory() as data:
        ports = AdbPorts(host, made, Path(data))
        application.router.add_route("*", "/{path:.*}", Server(made, ports).answer)
        runner = web.AppRunner(application, shutdown_timeout=1)
        try:
            await runner.setup()
            await web.TCPSite(runner, host, port).start()
            yield made, f"http://{host}:{runner.addresses[0][1]}"
        finally:
            ports.close()
            await runner.cleanup()


async def _serve(options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    place = {"host": options.host, "port": options.port, "adb_port": options.adb_port}
    async with stand_in(**place) as (cuttlefish, url):
        cuttlefish.faults.boot_seconds = options.boot_seconds
        print(f"stand-in for Cuttlefish at {url}", flush=True)  # noqa: T201
        await ended.wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="cuttlefish_stand_in", description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=2080)
    options.add_argument("--adb-port", type=int, default=FIRST_PORT, help="of the first device")
    options.add_argument("--boot-seconds", type=float, default=2.0)
    asyncio.run(_serve(options.parse_args()))


if __name__ == "__main__":
    main()
