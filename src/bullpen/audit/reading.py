"""Reads the audit log back: the events of a directory, oldest first, filtered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from bullpen.api.document import Document
from bullpen.audit.log import CURRENT, ROTATED
from bullpen.kit import times


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
