"""A stand-in for Corellium: its API in memory, and a console for each device.

    python -m bullpen.testing.corellium_stand_in --port 5160

No device exists: a console greets, and repeats what is typed. Instances have states with delays,
projects have quotas, calls are throttled and answers lost. It was checked with three published
clients (``tests/real/test_corellium_clients.py``): what they send is understood here, and they
understand what is answered. Corellium itself was never seen by it: how it says that a quota is
exceeded, what else a session for one device may do, and all delays are guesses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import WSMsgType, web

from bullpen.kit.clock import SystemClock
from bullpen.testing.fake_corellium import API_TOKEN, PROJECT, Corellium

BODY_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 4096
PATIENCE_SECONDS = 0.2
"""How soon a console notices that its device was switched off."""


class Server:
    """The stand-in over HTTP."""

    def __init__(self, corellium: Corellium) -> None:
        self._corellium = corellium

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        made = self._corellium.answer(
            request.method,
            request.path.removeprefix("/api/v1"),
            token=request.headers.get("Authorization", ""),
            query=dict(request.query),
            body=json.loads(body) if body else None,
        )
        if self._corellium.calls[-1] == self._corellium.lost:
            self._corellium.lost = ""
            assert request.transport is not None
            request.transport.abort()
        text = "" if made.body is None else json.dumps(made.body)
        kind = "application/json" if text else None
        return web.Response(text=text, status=made.status, headers=made.headers, content_type=kind)

    async def console(self, request: web.Request) -> web.WebSocketResponse:
        """Greets, and repeats what is typed; closed when the device is switched off."""
        instance = self._corellium.tickets.get(request.match_info["ticket"], "")
        if not self._corellium.is_on(instance):
            raise web.HTTPNotFound
        socket = web.WebSocketResponse(protocols=("binary",), max_msg_size=BODY_BYTES_MAX)
        await socket.prepare(request)
        await socket.send_bytes(f"stand-in for the device {instance}\r\n$ ".encode())
        line = bytearray()
        while self._corellium.is_on(instance):
            try:
                message = await socket.receive(timeout=PATIENCE_SECONDS)
            except TimeoutError:
                continue
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                break
            data = message.data if isinstance(message.data, bytes) else message.data.encode()
            line = (line + data)[-LINE_BYTES_MAX:]
            *whole, rest = bytes(line).replace(b"\r", b"\n").split(b"\n")
            line = bytearray(rest)
            for each in whole:
                said = self._corellium.say(instance, each.decode(errors="replace"))
                await socket.send_bytes(f"you said: {said}\r\n$ ".encode())
        await socket.close()
        return socket


@contextlib.asynccontextmanager
async def stand_in(
    *, port: int = 0, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Corellium, str]]:
    """The stand-in, and the URL of its API."""
    made = Corellium(SystemClock())
    server = Server(made)
    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_get("/console/{ticket}", server.console)
    application.router.add_route("*", "/api/v1/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=1)
    try:
        await runner.setup()
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        place = f"{host}:{runner.addresses[0][1]}"
        secure = "s" if tls else ""
        made.sockets = f"ws{secure}://{place}"
        yield made, f"http{secure}://{place}"
    finally:
        await runner.cleanup()


async def _serve(options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tls = None
    if options.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate)
    async with stand_in(port=options.port, tls=tls, host=options.host) as (corellium, url):
        corellium.faults.boot_seconds = options.boot_seconds
        said = f"stand-in for Corellium at {url}; token {API_TOKEN}, project {PROJECT}"
        print(said, flush=True)  # noqa: T201
        await ended.wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="corellium_stand_in", description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--certificate", type=Path, help="PEM with key and certificate, for TLS")
    options.add_argument("--boot-seconds", type=float, default=2.0)
    asyncio.run(_serve(options.parse_args()))


if __name__ == "__main__":
    main()
