"""Fetches an outside issuer's documents over HTTP, with limits on size and time."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException

from bullpen.errors import Refused, Unavailable
from bullpen.identity.oidc import Fetch

SECONDS_MAX = 5.0
BYTES_MAX = 1 << 20


def fetcher(ca_files: Iterable[str]) -> Fetch:
    """A function that fetches a document; trusts ``ca_files`` besides the system's CAs."""
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise Refused(f"{path} cannot be used as a certificate authority: {error}") from None

    async def fetch(url: str) -> bytes:
        if not url.startswith(("https://", "http://")):
            raise Unavailable(f"{url} is not an address that can be fetched")
        return await asyncio.to_thread(_get, url, context)

    return fetch


def _get(url: str, context: ssl.SSLContext) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_MAX, context=context) as answer:
            body: bytes = answer.read(BYTES_MAX + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url} cannot be read: {error}") from None
    if len(body) > BYTES_MAX:
        raise Unavailable(f"{url} is larger than {BYTES_MAX} bytes")
    return body
