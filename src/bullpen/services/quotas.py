"""Enforces the quotas of clients: looks up their usage, asks core, and refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.client import Client
from bullpen.controllers.labs import Labs
from bullpen.core.leases import access, quotas
from bullpen.core.leases.access import Allowance
from bullpen.core.leases.quotas import Bucket, Quotas
from bullpen.errors import Forbidden, TooManyRequests
from bullpen.runtime.informer import Key, key_of

REFUSAL_SECONDS = 0.5
"""How long a refusal is held back.

A client that retries in a loop and is refused each time must not cost other clients more
than a client that is served.
"""

BUCKETS_MAX = 10_000
"""Clients whose rate is tracked; those idle for longest are forgotten first."""


class Gatekeeper:
    def __init__(self, labs: Labs, allowed: Quotas, *, monotonic: Callable[[], float]) -> None:
        self._labs = labs
        self._quotas = allowed
        self._monotonic = monotonic
        self._buckets: dict[Key, Bucket] = {}

    @contextlib.asynccontextmanager
    async def creating(self, client: Client, name: str, *, waiting: int = 0) -> AsyncIterator[None]:
        """Wraps the creation of a lease, which counts from the start; raises ``TooManyRequests``.

        Otherwise many concurrent creations would each find room for one. ``waiting``: what the
        client waits for besides leases, which counts as leases do.
        """
        await self.check_rate(client)
        lab = self._labs.of(client.metadata.namespace)
        usage = lab.usage(client.metadata.name)
        usage = replace(usage, waiting=usage.waiting + waiting)
        problem = quotas.refusal(
            self._quotas, self._allowance(client), usage, client=client.metadata.name
        )
        if problem:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise TooManyRequests(problem)
        lab.expect(client.metadata.name, name)
        try:
            yield
        finally:
            lab.settle(name)

    async def check_rate(self, client: Client) -> None:
        """Count a request against the client's rate; raises ``TooManyRequests``."""
        problem = self._too_fast(client)
        if problem:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise TooManyRequests(problem)

    def check_receiver(self, client: Client, *, leases: int = 1) -> None:
        """A client that receives transferred leases needs quota for them."""
        usage = self._labs.of(client.metadata.namespace).usage(client.metadata.name)
        problem = quotas.too_many_active(
            self._quotas, self._allowance(client), usage, client=client.metadata.name, more=leases
        )
        if problem:
            raise TooManyRequests(problem)

    def check_duration(self, lasts: timedelta | None) -> None:
        problem = quotas.too_long(self._quotas, lasts)
        if problem:
            raise Forbidden(problem)

    def check_priority(self, priority: int) -> None:
        problem = quotas.too_important(self._quotas, priority)
        if problem:
            raise Forbidden(problem)

    def _allowance(self, client: Client) -> Allowance:
        found = self._labs.policies(client.metadata.namespace)
        return access.allowance(found, client=client.metadata.labels)

    def _too_fast(self, client: Client) -> str | None:
        """Count another creation against the client's rate; returns the refusal, if any."""
        rate, key, now = self._quotas.rate, key_of(client), self._monotonic()
        if rate is None:
            return None
        # Inserted last, so that clients idle for longest come first.
        self._buckets[key], enough = quotas.taken(rate, self._buckets.pop(key, None), now=now)
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return None if enough else quotas.too_fast(rate, client=client.metadata.name)
