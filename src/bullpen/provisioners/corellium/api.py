"""Calls of Corellium for backends, each with one limiter: what was asked to wait, waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from bullpen.core.targets.backends import Key
from bullpen.drivers.corellium_api import CorelliumApi
from bullpen.drivers.json_api import ApiError
from bullpen.errors import Refused, TooManyRequests
from bullpen.provisioners.corellium.failures import TOO_MANY
from bullpen.provisioners.provider import Backend

TOKEN, CA = "token", "ca.crt"
"""Keys of the Secret: the API token, and certificates of an appliance, if it has its own."""

RETRY_SECONDS = 30.0
"""How long nothing is asked after a refusal that does not say it."""

RETRY_SECONDS_MAX = 600.0


class Api(Protocol):
    """The calls of one account."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """The decoded answer. Raises ``ApiError``."""


class Connect(Protocol):
    def __call__(self, backend: Backend) -> Api:
        """The calls of a backend, with its credentials as they are now."""


def http_api(backend: Backend) -> Api:
    """Over HTTP. Raises ``Refused`` if the Secret lacks the token."""
    token = credential(backend, TOKEN)
    if not token:
        raise Refused(
            f"ProviderConfig {backend.key[1]}: its Secret has no key {TOKEN!r}, an API token of"
            " Corellium"
        )
    return CorelliumApi(backend.endpoint, token, ca_pem=credential(backend, CA))


def credential(backend: Backend, name: str) -> str:
    return backend.credentials().get(name, b"").decode().strip()


class Limiter:
    """Lets no call through to a backend that has asked to wait."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._until: dict[Key, float] = {}

    async def call(self, backend: Backend, method: str, path: str, **sent: Any) -> Any:
        """Raises ``ApiError``, or ``TooManyRequests`` without asking."""
        left = self._until.get(backend.key, 0.0) - asyncio.get_running_loop().time()
        if left > 0:
            raise TooManyRequests(f"Corellium has asked to wait for another {left:.0f} s")
        try:
            return await self._connect(backend).call(method, path, **sent)
        except ApiError as error:
            if error.status == TOO_MANY:
                wait = RETRY_SECONDS if error.retry_after is None else error.retry_after
                now = asyncio.get_running_loop().time()
                self._until[backend.key] = now + min(wait, RETRY_SECONDS_MAX)
            raise
