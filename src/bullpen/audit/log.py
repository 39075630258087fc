"""The audit log as files: written, rotated and read back.

The audit log as files: JSON lines, written by a thread, rotated by size, count and age.
``record`` puts an event into a bounded queue and returns. When the disk hangs or is full,
events are dropped, counted and reported in the service's own log, because a lab that stops
working when its log cannot be written would be worse.

Reads the audit log back: the events of a directory, oldest first, filtered.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from bullpen.api.paths import Document, encode
from bullpen.audit.events import SUPPRESSED, AuditEvent, document
from bullpen.kit import times
from bullpen.kit.clock import Clock

log = logging.getLogger("bullpen.audit")

CURRENT = "audit.log"
ROTATED = "audit-*.log"
QUEUE_MAX = 10_000
BATCH_MAX = 500
GATHER_SECONDS = 0.05
"""How long the thread waits for more events after the first, so that it wakes rarely."""

CLOSE_SECONDS_MAX = 5.0
REPORT_PAUSE = timedelta(minutes=1)
"""At most one log line about dropped events in this time."""

ANONYMOUS_PER_MINUTE_MAX = 60
"""Refusals of unauthenticated callers that are recorded per minute.

A flood of them must not displace all other events from the log.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """When a file is closed, and how long closed files are kept."""

    bytes_max: int
    keep: int
    age_max: timedelta


class AuditLog:
    """An ``AuditSink`` that writes to a directory."""

    def __init__(self, directory: Path, rotation: Rotation, *, clock: Clock) -> None:
        self._directory = directory
        self._rotation = rotation
        self._clock = clock
        self._queue: queue.Queue[AuditEvent | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._budget = _AnonymousBudget()
        self._closing = threading.Event()
        self.recorded = 0
        """Events accepted so far."""

        self.dropped = 0
        """Events lost because the queue was full or a write failed."""

        self._reported = 0
        self._report_after: datetime | None = None

    def start(self) -> None:
        self._thread.start()

    def record(self, event: AuditEvent) -> None:
        """Record ``event``; never blocks and never fails."""
        allowed = self._budget.take(event)
        if allowed is None:
            return
        try:
            self._queue.put_nowait(allowed)
            self.recorded += 1
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write the queued events and stop, within ``CLOSE_SECONDS_MAX``."""
        self._closing.set()
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS_MAX)
        except queue.Full:
            self._report()
            return
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = self._next_batch()
            ended = batch[-1] is None
            events = [event for event in batch if event is not None]
            try:
                self._write(events)
            except OSError as error:
                self.dropped += len(events)
                log.warning(
                    "audit events not written",
                    extra={"key": str(self._directory), "cause": error.strerror},
                )
            self._report()

    def _next_batch(self) -> list[AuditEvent | None]:
        batch = [self._queue.get()]
        self._closing.wait(GATHER_SECONDS)
        while batch[-1] is not None and len(batch) < BATCH_MAX:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _write(self, events: list[AuditEvent]) -> None:
        if not events:
            return
        data = b"".join(encode(document(event)) + b"\n" for event in events)
        path = self._directory / CURRENT
        if path.exists() and path.stat().st_size + len(data) > self._rotation.bytes_max:
            self._rotate(path)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)

    def _rotate(self, path: Path) -> None:
        now = self._clock.now()
        path.rename(path.with_name(f"audit-{now:%Y%m%dT%H%M%S.%fZ}.log"))
        closed = sorted(self._directory.glob(ROTATED))
        old = closed[: max(0, len(closed) - self._rotation.keep)]
        limit = (now - self._rotation.age_max).timestamp()
        old += [found for found in closed if found.stat().st_mtime < limit]
        for found in dict.fromkeys(old):
            found.unlink(missing_ok=True)

    def _report(self) -> None:
        if self.dropped == self._reported:
            return
        now = self._clock.now()
        if self._report_after is None or now >= self._report_after:
            self._report_after = now + REPORT_PAUSE
            log.error(
                "audit events dropped",
                extra={"key": str(self._directory), "count": self.dropped - self._reported},
            )
            self._reported = self.dropped


class _AnonymousBudget:
    """Limits the events of unauthenticated callers per minute."""

    def __init__(self) -> None:
        self._minute: datetime | None = None
        self._taken = 0
        self._suppressed = 0

    def take(self, event: AuditEvent) -> AuditEvent | None:
        """The event to record, with the number omitted before it; None to omit it."""
        if not event.anonymous:
            return event
        minute = event.completed.replace(second=0, microsecond=0)
        if minute != self._minute:
            self._minute, self._taken = minute, 0
        self._taken += 1
        if self._taken > ANONYMOUS_PER_MINUTE_MAX:
            self._suppressed += 1
            return None
        if not self._suppressed:
            return event
        noted = {**event.annotations, SUPPRESSED: str(self._suppressed)}
        self._suppressed = 0
        return replace(event, annotations=noted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A filter of events; all conditions must hold."""

    who: str = ""
    """Pattern for the user or the impersonated user."""

    what: str = ""
    """A verb, a resource, or RESOURCE/NAME, each with patterns."""

    since: datetime | None = None

    def matches(self, event: Document) -> bool:
        return (
            self._is_recent(event)
            and (not self.who or any(fnmatchcase(name, self.who) for name in users(event)))
            and (not self.what or any(fnmatchcase(name, self.what) for name in _names(event)))
        )

    def _is_recent(self, event: Document) -> bool:
        if self.since is None:
            return True
        try:
            return times.parse(str(event.get("stageTimestamp"))) >= self.since
        except ValueError:
            return False


def users(event: Document) -> tuple[str, ...]:
    """The authenticated user, then the impersonated one."""
    found = (event.get("user") or {}, event.get("impersonatedUser") or {})
    return tuple(str(user["username"]) for user in found if user.get("username"))


def what(event: Document) -> str:
    """The object of an event as RESOURCE/NAME, or its path."""
    reference = event.get("objectRef") or {}
    if not reference:
        return str(event.get("requestURI", ""))
    resource = "/".join(
        part for part in (reference.get("resource"), reference.get("subresource")) if part
    )
    return f"{resource} {reference['name']}" if reference.get("name") else resource


def _names(event: Document) -> Iterator[str]:
    yield str(event.get("verb", ""))
    reference = event.get("objectRef") or {}
    resource = str(reference.get("resource", ""))
    yield resource
    yield f"{resource}/{reference.get('name', '')}"


def read(directory: Path, query: Query) -> Iterator[Document]:
    """The matching events; a line that was truncated by a crash is skipped."""
    for path in (*sorted(directory.glob(ROTATED)), directory / CURRENT):
        try:
            with path.open("rb") as file:
                for line in file:
                    event = _event(line)
                    if event is not None and query.matches(event):
                        yield event
        except FileNotFoundError:
            continue


def _event(line: bytes) -> Document | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
