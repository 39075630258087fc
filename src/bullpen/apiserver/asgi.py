"""The service on ASGI: bytes to ``Request``, ``Response`` to bytes.

Bodies are limited in size and read only after the caller is authenticated. A stream is
written as fast as its client reads, and ends as soon as the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any, Protocol

from bullpen.apiserver import authentication
from bullpen.apiserver.http import BODY_MAX, Request, Response, parse_query
from bullpen.apiserver.status import failure_response
from bullpen.cluster import front_proxy
from bullpen.errors import LabError, TimedOut, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_SECONDS_MAX = 30.0
"""How long a caller may take to send its body."""

LENGTH_DIGITS_MAX = 20

CLIENT_CERTIFICATE = "bullpen_client_certificate"
"""Key of the verified client certificate (DER) in the scope's ``tls`` extension."""


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


class HttpService(Protocol):
    """What answers the requests of one port."""

    async def authenticate(self, request: Request) -> Any:
        """The caller, or None for a path that needs no credentials. Raises ``LabError``."""

    def refuse(self, request: Request, error: LabError) -> Response:
        """The response to a request whose caller ``authenticate`` did not accept."""

    async def respond(self, request: Request, caller: Any) -> Response:
        """The response; never raises."""


class Asgi:
    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and websockets are switched off"
        try:
            response = await self._respond(scope, receive)
        except Disconnected:
            return
        if isinstance(response.body, bytes):
            await _send_whole(response, response.body, send, head=scope["method"] == "HEAD")
        else:
            await _send_stream(response, response.body, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        try:
            request = _head(scope)
        except LabError as error:
            return failure_response(error)
        try:
            caller = await self._service.authenticate(request)
        except LabError as error:
            return self._service.refuse(request, error)
        if caller is None:
            # A stranger's body is not read, so that strangers cannot make the service hold it.
            return await self._service.respond(request, None)
        try:
            body = await _body(request, receive)
        except LabError as error:
            return failure_response(error)
        return await self._service.respond(replace(request, body=body), caller)


def _head(scope: Scope) -> Request:
    path = scope.get("raw_path") or scope["path"].encode()
    headers = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
    ]
    client = scope.get("client")
    return Request(
        method=scope["method"],
        path=path.decode("ascii", errors="replace"),
        query=parse_query(scope["query_string"]),
        headers=dict(headers),
        impersonation=tuple(item for item in headers if item[0].startswith(authentication.PREFIX)),
        remote=tuple(item for item in headers if item[0].startswith(front_proxy.PREFIX)),
        certificate=scope.get("extensions", {}).get("tls", {}).get(CLIENT_CERTIFICATE, b""),
        source=client[0] if client else "",
    )


async def _body(request: Request, receive: Receive) -> bytes:
    declared = request.headers.get("content-length", "0")
    # Python accepts digits of other scripts, and refuses to parse very many digits.
    if declared.isascii() and declared.isdigit() and int(declared[:LENGTH_DIGITS_MAX]) > BODY_MAX:
        raise TooLarge(f"the body is over {BODY_MAX} bytes; send less at once")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > BODY_MAX:
                    raise TooLarge(f"the body is over {BODY_MAX} bytes; send less at once")
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise TimedOut(f"the body did not arrive within {BODY_SECONDS_MAX:g} s") from None


async def _send_whole(response: Response, body: bytes, send: Send, *, head: bool) -> None:
    await _send_head(response, send, extra=((b"content-length", str(len(body)).encode()),))
    await send({"type": "http.response.body", "body": b"" if head else body})


async def _send_stream(
    response: Response, body: AsyncIterator[bytes], receive: Receive, send: Send
) -> None:
    await _send_head(response, send)

    async def pump() -> None:
        async for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def leave() -> None:
        # Sending to a disconnected client does nothing, so only receiving detects it.
        while (await receive())["type"] != "http.disconnect":
            pass

    pumping, leaving = asyncio.ensure_future(pump()), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((pumping, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        pumping.cancel()
        leaving.cancel()
        results = await asyncio.gather(pumping, leaving, return_exceptions=True)
        await body.aclose()  # type: ignore[attr-defined]
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _send_head(
    response: Response, send: Send, *, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    cached = any(name == "cache-control" for name, _ in response.headers)
    headers = [
        (b"content-type", response.content_type.encode()),
        *(() if cached else ((b"cache-control", b"no-cache, private"),)),
        *((name.encode(), value.encode("latin-1", "replace")) for name, value in response.headers),
        *extra,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
