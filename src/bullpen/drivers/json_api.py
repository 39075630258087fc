"""Calls of an API that speaks JSON over HTTP, of a provider or of what controls a target.

Nothing is repeated here: callers know when, and back off.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

ANSWER_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 16 << 20
MESSAGE_LENGTH_MAX = 500


class ApiError(Exception):
    """A call that failed: the HTTP status, or 0 if there was no answer."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"HTTP {status}: {message}" if status else message)
        self.status = status
        self.retry_after = retry_after
        """So many seconds nothing should be asked for, if it was said."""


class JsonApi:
    """An API below one address."""

    def __init__(
        self, base: str, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext
    ) -> None:
        self._base = base
        self._headers = headers or {}
        self._ssl = tls

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer, decoded; None if it has no body. Raises ``ApiError``."""
        limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=self._headers) as session,
                session.request(
                    method,
                    self._base + path,
                    params=query,
                    json=body,
                    ssl=self._ssl,
                    allow_redirects=False,
                ) as answer,
            ):
                text = await _read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = str(error) or type(error).__name__
            raise ApiError(0, f"no answer from {self._base}: {said}") from None
        if not answer.ok or answer.status >= 300:
            after = _seconds(answer.headers.get("Retry-After", ""))
            raise ApiError(answer.status, _message(text), retry_after=after)
        return _decoded(text, answer.status)


def trust(ca_pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_pem:
        context.load_verify_locations(cadata=ca_pem)
    return context


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for piece in answer.content.iter_any():
        text += piece
        if len(text) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(text)


def _decoded(text: bytes, status: int) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ApiError(0, f"HTTP {status} without JSON, as from something else") from None


def _message(text: bytes) -> str:
    """What is wrong and where, as far as it is said; else the beginning of the answer."""
    try:
        found = json.loads(text)
        said, name, more = str(found["error"]), found.get("field"), found.get("details")
    except (ValueError, KeyError, TypeError, AttributeError):
        return text.decode(errors="replace")[:MESSAGE_LENGTH_MAX]
    said = f"{said} (field {name})" if name else said
    return (f"{said}: {more}" if more else said)[:MESSAGE_LENGTH_MAX]


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None
