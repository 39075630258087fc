"""Holds clients to their quotas: looks up what they have, asks core, and refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from bullpen.api.client import Client
from bullpen.controllers.labs import Labs
from bullpen.core.leases import access, quotas
from bullpen.core.leases.access import Allowance
from bullpen.core.leases.quotas import Bucket, Quotas
from bullpen.errors import Forbidden, TooManyRequests
from bullpen.runtime.informer import Key, key_of

BUCKETS_MAX = 10_000
"""Clients whose rate is remembered; those that have not asked for long are forgotten first."""


class Gatekeeper:
    def __init__(self, labs: Labs, allowed: Quotas, *, monotonic: Callable[[], float]) -> None:
        self._labs = labs
        self._quotas = allowed
        self._monotonic = monotonic
        self._buckets: dict[Key, Bucket] = {}

    @contextlib.contextmanager
    def creating(self, client: Client, name: str) -> Iterator[None]:
        """Around the creation of a lease, which counts from the start; raises ``TooManyRequests``.

        Otherwise many creations at once would each find room for one.
        """
        self._take(client)
        lab = self._labs.of(client.metadata.namespace)
        usage = lab.usage(client.metadata.name)
        problem = quotas.refusal(
            self._quotas, self._allowance(client), usage, client=client.metadata.name
        )
        if problem:
            raise TooManyRequests(problem)
        lab.expect(client.metadata.name, name)
        try:
            yield
        finally:
            lab.settle(name)

    def check_receiver(self, client: Client) -> None:
        """A client that is handed a lease needs room for it."""
        usage = self._labs.of(client.metadata.namespace).usage(client.metadata.name)
        problem = quotas.too_many_active(
            self._quotas, self._allowance(client), usage, client=client.metadata.name
        )
        if problem:
            raise TooManyRequests(problem)

    def check_duration(self, lasts: timedelta | None) -> None:
        problem = quotas.too_long(self._quotas, lasts)
        if problem:
            raise Forbidden(problem)

    def _allowance(self, client: Client) -> Allowance:
        found = self._labs.policies(client.metadata.namespace)
        return access.allowance(found, client=client.metadata.labels)

    def _take(self, client: Client) -> None:
        rate, key, now = self._quotas.rate, key_of(client), self._monotonic()
        if rate is None:
            return
        # Put back last, so that those who have not asked for long come first.
        self._buckets[key], enough = quotas.taken(rate, self._buckets.pop(key, None), now=now)
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if not enough:
            raise TooManyRequests(quotas.too_fast(rate, client=client.metadata.name))
