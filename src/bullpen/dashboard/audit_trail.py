"""The newest events of the audit log, for people who may read it."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from pathlib import Path

from bullpen.api.paths import Document
from bullpen.audit.log import Query, read
from bullpen.core.rbac.authorization import Attributes
from bullpen.dashboard.rows import Row
from bullpen.kit.clock import Clock

EVENTS_MAX = 500
SINCE = timedelta(days=1)

RIGHT = Attributes(verb="list", group="audit.k8s.io", resource="events")
"""What a person must be allowed at the API server, where it is not a served resource."""


class AuditTrail:
    def __init__(self, directory: Path | None, clock: Clock, *, elsewhere: str = "") -> None:
        """``directory`` is None if nothing is recorded; ``elsewhere`` says who records."""
        self._directory = directory
        self.elsewhere = elsewhere
        self._clock = clock
        self._reading = asyncio.Lock()
        """One reader at a time: the files may be large."""

    async def recent(self, who: str, what: str) -> list[Row]:
        """The last events of a day that match, newest first."""
        if self._directory is None:
            return []
        query = Query(who=who, what=what, since=self._clock.now() - SINCE)
        async with self._reading:
            found = await asyncio.to_thread(_newest, self._directory, query)
        return [_row(event) for event in reversed(found)]


def _newest(directory: Path, query: Query) -> deque[Document]:
    return deque(read(directory, query), maxlen=EVENTS_MAX)


def _row(event: Document) -> Row:
    target = event.get("objectRef") or {}
    status = event.get("responseStatus") or {}
    named = [target.get("resource"), target.get("name"), target.get("subresource")]
    return {
        "id": event.get("auditID", ""),
        "time": event.get("requestReceivedTimestamp"),
        "who": (event.get("user") or {}).get("username", ""),
        "verb": event.get("verb", ""),
        "what": "/".join(part for part in named if part) or event.get("requestURI", ""),
        "ns": target.get("namespace", ""),
        "from": ", ".join(event.get("sourceIPs") or ()),
        "code": status.get("code", 0),
        "message": status.get("message", "") or status.get("reason", ""),
    }
