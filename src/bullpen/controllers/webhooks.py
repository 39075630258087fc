"""Tells webhooks what happens to leases and exporters, in order, and tries again.

Each webhook has a queue of its own, in memory: what was not delivered when the process ends is
not told. A slow or broken receiver delays no other.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import encode
from bullpen.controllers.views import Views
from bullpen.core.notifications import (
    Notification,
    Webhook,
    cloud_event,
    exporter_notifications,
    lease_notifications,
    signed_headers,
    signing_key,
)
from bullpen.errors import BadRequest, Unavailable
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.runtime.loop import Outcome

log = logging.getLogger("bullpen.webhooks")

QUEUE_MAX = 1_000
"""Messages that wait for one receiver; the oldest are given up."""

AGE_MAX = timedelta(hours=1)
"""A message that could not be delivered for so long is given up."""

KEY = "key"
"""The entry of the Secret that holds the signing key."""

Post = Callable[[str, Mapping[str, str], bytes], Awaitable[int]]
"""Sends a message; returns the status code, or raises ``Unavailable``."""


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    body: bytes
    since: timedelta


class WebhookReconciler:
    """Delivers the messages of one webhook."""

    name = "webhooks"

    def __init__(
        self, webhooks: Iterable[Webhook], views: Views, *, clock: Clock, ids: Ids, post: Post
    ) -> None:
        self._webhooks = {webhook.name: webhook for webhook in webhooks}
        self._views = views
        self._clock, self._ids, self._post = clock, ids, post
        self._since = clock.now()
        self._queues: dict[str, deque[_Message]] = {name: deque() for name in self._webhooks}
        self.results: Counter[tuple[str, str]] = Counter()
        """How often a webhook was sent something, by the result."""

    def queued(self) -> dict[str, int]:
        """By webhook, how many messages wait."""
        return {name: len(queue) for name, queue in self._queues.items()}

    def watch(self, add: Callable[[str], None]) -> None:
        """Queue what happens from now on."""
        if not self._webhooks:
            return

        def lease_changed(old: Lease | None, new: Lease | None) -> None:
            self._tell(lease_notifications(old, new, since=self._since), add)

        def exporter_changed(old: Exporter | None, new: Exporter | None) -> None:
            self._tell(exporter_notifications(old, new), add)

        self._views.leases.listen(lease_changed)
        self._views.exporters.listen(exporter_changed)

    def _tell(self, found: Iterable[Notification], add: Callable[[str], None]) -> None:
        for notification in found:
            for webhook in self._webhooks.values():
                if webhook.wants(notification):
                    self._put(webhook.name, notification)
                    add(webhook.name)

    def _put(self, name: str, notification: Notification) -> None:
        id = self._ids.uid()
        event = cloud_event(notification, id=id, time=self._clock.now())
        queue = self._queues[name]
        if len(queue) == QUEUE_MAX:
            queue.popleft()
            self._given_up(name, "its queue is full")
        queue.append(_Message(id, encode(event), self._clock.steady()))

    def _given_up(self, name: str, cause: str) -> None:
        self.results[name, "given up"] += 1
        log.warning("message given up", extra={"key": name, "cause": cause})

    async def reconcile(self, key: str) -> Outcome:
        webhook, queue = self._webhooks[key], self._queues[key]
        while queue:
            message = queue[0]
            if self._clock.steady() - message.since >= AGE_MAX:
                self._given_up(key, "it could not be delivered for an hour")
            else:
                await self._deliver(webhook, message)
            # A full queue may have given up this message meanwhile.
            if queue and queue[0] is message:
                queue.popleft()
        return Outcome()

    async def _deliver(self, webhook: Webhook, message: _Message) -> None:
        """Raises ``Unavailable`` to be tried again later."""
        headers = {
            "Content-Type": "application/cloudevents+json",
            "User-Agent": "bullpen",
            **signed_headers(
                self._key(webhook), message.body, id=message.id, time=self._clock.now()
            ),
        }
        try:
            status = await self._post(webhook.url, headers, message.body)
        except Unavailable:
            self.results[webhook.name, "failed"] += 1
            raise
        if not 200 <= status < 300:
            self.results[webhook.name, "failed"] += 1
            raise Unavailable(f"webhook {webhook.name} answered {status}")
        self.results[webhook.name, "delivered"] += 1

    def _key(self, webhook: Webhook) -> bytes:
        namespace, name = webhook.secret
        found: Secret | None = self._views[Secret].get(namespace, name)
        written = found.read(KEY) if found is not None else None
        if written is None:
            raise Unavailable(
                f"webhook {webhook.name}: Secret {namespace}/{name} with the entry {KEY} is missing"
            )
        try:
            return signing_key(written)
        except BadRequest as error:
            raise Unavailable(
                f"webhook {webhook.name}: Secret {namespace}/{name}: {error.message}"
            ) from None
