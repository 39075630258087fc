"""HTTP to one API server.

Converts the errors of an API server to our own, with advice.

HTTP to one API server: authentication, timeouts, size limits and retries. A request that
the server rejected unread (429) is sent again after the delay the server asked for. A
request with an unknown outcome is not repeated, but reported as ``Unreachable``: only its
caller knows whether it may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from bullpen import errors
from bullpen.api.paths import Document, encode
from bullpen.cluster.kubeconfig import Access
from bullpen.errors import Cause

BY_STATUS: dict[int, type[errors.LabError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    429: errors.TooManyRequests,
    504: errors.TimedOut,
}
"""For responses without a known reason: those of proxies, and of kinds not installed."""

GRANT = "grant it to the service account, as 'bullpen manifests' does"
_RBAC = re.compile(r"\b[Uu]ser .* cannot \w+")
INSTALL = "install the definitions with 'bullpen crds | kubectl apply -f -'"
MESSAGE_MAX = 2_000


def refusal(status: int, body: bytes) -> errors.LabError:
    """The error for a response with status 400 or above."""
    reason, message, causes = _read_status(body)
    if status == 403:
        # Quotas and admission policies refuse with the same code; a role would not help.
        return errors.Forbidden(f"{message}; {GRANT}" if _RBAC.search(message) else message)
    if status == 404 and "the server could not find the requested resource" in message:
        return errors.NotFound(f"{message}: {INSTALL}")
    found = errors.of_reason(reason, message, causes)
    if found is not None:
        return found
    cls = BY_STATUS.get(status, errors.Unavailable if status >= 500 else errors.Rejected)
    return cls(f"the API server answered {status}: {message}")


def _read_status(body: bytes) -> tuple[str, str, tuple[Cause, ...]]:
    """Reason, message and causes; a body that is not a Status is the message itself."""
    try:
        answer: Any = msgspec.json.decode(body)
        causes = tuple(
            Cause(str(item.get("field", "")), str(item.get("message", "")), item.get("reason", ""))
            for item in (answer.get("details") or {}).get("causes") or ()
        )
        return str(answer.get("reason", "")), str(answer.get("message", ""))[:MESSAGE_MAX], causes
    except (msgspec.DecodeError, AttributeError, TypeError):
        return "", body[:200].decode(errors="replace"), ()


CONNECT_SECONDS_MAX = 5.0
REQUEST_SECONDS_MAX = 30.0
REQUESTS_MAX = 64
"""Concurrent requests, not counting watches."""

TURNED_AWAY_MAX = 4
"""Attempts of a request that the server rejects because of overload."""

PAUSE_SECONDS_MAX = 10.0
"""The longest delay before that, whatever the server asks for."""

ANSWER_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 8 * 1024 * 1024

_BODIES = {"PATCH": "application/apply-patch+yaml"}
"""Content types of bodies that are not plain JSON; the only patch we send is an apply."""

# A peer that vanished silently is detected within half a minute.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as it is counted: ``verb`` and ``resource`` are Kubernetes' terms."""

    verb: str
    resource: str
    method: str
    path: str
    query: dict[str, str] | None = None
    body: object = None


class Transport:
    """A session with one API server."""

    def __init__(self, access: Access, *, agent: str) -> None:
        self.access = access
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """Responses by verb, resource and status code; code 0 is no response at all."""

        self._agent = agent
        self._http: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(REQUESTS_MAX)

    def open(self) -> None:
        """Start the session; to be ended with ``close``."""
        self._http = aiohttp.ClientSession(
            self.access.server,
            headers={"Accept": "application/json", "User-Agent": self._agent},
            connector=aiohttp.TCPConnector(
                ssl=self.access.tls, limit=0, socket_factory=_lively_socket
            ),
            read_bufsize=LINE_BYTES_MAX,
        )

    async def close(self) -> None:
        assert self._http is not None
        await self._http.close()

    async def call(self, request: Request) -> Document:
        """The response as a document; an error response is raised as our error."""
        async with self._slots, self.opened(request, seconds=REQUEST_SECONDS_MAX) as answer:
            document: Document = msgspec.json.decode(await _read(answer))
            return document

    @contextlib.asynccontextmanager
    async def opened(
        self, request: Request, *, seconds: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response, to be read while the context is open."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                yield await self._answered(stack, request, seconds)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._count(request, 0)
                raise errors.Unreachable(
                    f"{self.access.server} does not answer: {str(error) or type(error).__name__}"
                ) from None

    async def _answered(
        self, stack: contextlib.AsyncExitStack, request: Request, seconds: float | None
    ) -> aiohttp.ClientResponse:
        for attempt in range(TURNED_AWAY_MAX):
            answer = await stack.enter_async_context(await self._send(request, seconds))
            self._count(request, answer.status)
            if answer.status < 400:
                return answer
            body = await answer.content.read(LINE_BYTES_MAX)
            last = attempt + 1 == TURNED_AWAY_MAX
            if answer.status == 429 and not last:
                await asyncio.sleep(_pause(answer))
            elif answer.status != 401 or last or not self.access.credentials.rejected():
                raise refusal(answer.status, body)
        raise AssertionError("the last attempt was refused or answered")

    async def _send(
        self, request: Request, seconds: float | None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        assert self._http is not None, "used outside of its context"
        headers = {}
        if authorization := await self.access.credentials.authorization():
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = _BODIES.get(request.method, "application/json")
        return self._http.request(
            request.method,
            request.path,
            params=request.query,
            data=None if request.body is None else encode(request.body),
            headers=headers,
            server_hostname=self.access.server_name,
            proxy=self.access.proxy,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS_MAX),
        )

    def _count(self, request: Request, code: int) -> None:
        self.requests[request.verb, request.resource, code] += 1


def _lively_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    for option in KEEPALIVE:
        made.setsockopt(*option)
    return made


def _pause(answer: aiohttp.ClientResponse) -> float:
    """The delay the server asks for."""
    try:
        seconds = float(answer.headers.get("Retry-After", "1"))
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.0), PAUSE_SECONDS_MAX)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise errors.TooLarge(f"an answer is larger than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)
