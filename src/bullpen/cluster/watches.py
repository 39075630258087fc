"""One watch, over as many connections as necessary.

A connection that ends or breaks is reopened at the last revision, with growing pauses while
the server does not answer. The watch fails only when the revision is gone (``Gone``) or the
server stays unreachable (``Unreachable``); its user then lists again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, replace
from datetime import timedelta

import aiohttp
import msgspec

from bullpen import errors
from bullpen.api.paths import Document, encode
from bullpen.cluster.transport import Request, Transport, refusal
from bullpen.kit.clock import Backoff

WATCH_SECONDS = 300
"""The requested duration of one connection."""

LATE_SECONDS_MAX = 30.0
"""How much later than requested it may end; after that the server is considered gone."""

RESUMES_MAX = 6
"""Attempts to reopen a connection before the watch fails."""

BACKOFF = Backoff(first=timedelta(milliseconds=100), cap=timedelta(seconds=5), jitter=0.5)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Document


class Watch:
    def __init__(
        self, transport: Transport, request: Request, since: int, chance: random.Random
    ) -> None:
        self._transport = transport
        self._request = request
        self._since = since
        self._chance = chance
        self._stack = contextlib.AsyncExitStack()
        self._answer: aiohttp.ClientResponse | None = None
        self._barren = 0
        """Consecutive connections that ended without an event."""

    async def next(self) -> Event:
        """The next change. Safe to cancel; a change that was not returned is delivered again."""
        while True:
            answer = self._answer or await self._resume()
            line = await _line(answer)
            if line:
                self._barren = 0
                return self._event(line)
            await self._leave()
            # The first empty connection is normal: servers end idle watches this way.
            await asyncio.sleep(BACKOFF.delay(self._barren, self._chance).total_seconds())
            self._barren += 1

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    async def _resume(self) -> aiohttp.ClientResponse:
        for failures in range(1, RESUMES_MAX):
            try:
                return await self._connect()
            except errors.Unavailable:
                await asyncio.sleep(BACKOFF.delay(failures, self._chance).total_seconds())
        return await self._connect()

    async def _connect(self) -> aiohttp.ClientResponse:
        opening = self._transport.opened(self._asked(), seconds=WATCH_SECONDS + LATE_SECONDS_MAX)
        self._answer = await self._stack.enter_async_context(opening)
        return self._answer

    def _asked(self) -> Request:
        query = {
            **(self._request.query or {}),
            "watch": "true",
            "resourceVersion": str(self._since),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        return replace(self._request, query=query)

    async def _leave(self) -> None:
        self._answer = None
        await self._stack.aclose()

    def _event(self, line: bytes) -> Event:
        event: Document = msgspec.json.decode(line)
        found: Document = event["object"]
        if event["type"] == "ERROR":
            raise refusal(int(found.get("code", 500)), encode(found))
        self._since = int(found["metadata"]["resourceVersion"])
        return Event(event["type"], found)


async def _line(answer: aiohttp.ClientResponse) -> bytes:
    """The next whole line; empty when the connection ended or broke."""
    try:
        line = await answer.content.readline()
    except (aiohttp.ClientError, OSError):
        return b""
    except ValueError:
        raise errors.TooLarge("an object in a watch is larger than a line may be") from None
    return line if line.endswith(b"\n") else b""
