"""Sends one message to a webhook over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from bullpen.errors import Unavailable

SECONDS_MAX = 15.0
"""For the whole exchange, as receivers are advised to answer at once and work later."""


async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """The status code of the answer, which is not read; redirects are not followed."""
    # Loaded on first use: most labs have no webhook.
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(url, data=body, headers=dict(headers), allow_redirects=False) as answer,
        ):
            return answer.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        cause = str(error) or type(error).__name__
        raise Unavailable(f"the webhook does not answer: {cause}") from None
