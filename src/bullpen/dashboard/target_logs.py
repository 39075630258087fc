"""The end of the log of a target's exporter: in a file of this machine, or of its Pod."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from bullpen.apiserver.http import Request
from bullpen.core.rbac.authorization import Attributes
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.people import JUMPSTARTER_GROUP, Allows, Person
from bullpen.errors import Forbidden, NotFound

TAIL_BYTES = 64 << 10
TAIL_LINES = 1_000
CONTAINER = "exporter"

Key = tuple[str, str]


class TargetLogs(Protocol):
    async def tail(self, person: Person, key: Key) -> str:
        """The end of the log of an exporter. Raises ``Forbidden`` and ``NotFound``."""


@dataclass(frozen=True, slots=True)
class FileLogs:
    """Logs of instances of this machine, for people with the right ``get`` ``exporters/log``."""

    path: Callable[[Key], Path]
    allows: Allows

    async def tail(self, person: Person, key: Key) -> str:
        namespace, name = key
        wanted = Attributes(
            verb="get",
            group=JUMPSTARTER_GROUP,
            resource="exporters",
            subresource="log",
            namespace=namespace,
            name=name,
        )
        if not await self.allows(person.user, wanted):
            raise Forbidden("you may not read the logs of targets: get exporters/log")
        return _tail(self.path(key), name)


@dataclass(frozen=True, slots=True)
class PodLogs:
    """Logs of Pods, which the API server of the cluster shows to the person."""

    requests: ObjectRequests

    async def tail(self, person: Person, key: Key) -> str:
        namespace, name = key
        request = Request(
            method="GET",
            path=f"/api/v1/namespaces/{namespace}/pods/{name}/log",
            query={"container": CONTAINER, "tailLines": str(TAIL_LINES)},
            headers={},
            body=b"",
        )
        answer = await self.requests.respond(request, person)
        body = answer.body if isinstance(answer.body, bytes) else b""
        if answer.status >= 400:
            kind = Forbidden if answer.status == 403 else NotFound
            raise kind(_message(body) or f"the API server answers {answer.status}")
        return _text(body)


def _tail(path: Path, name: str) -> str:
    """The end of a log, a read of some KiB; the older half is beside it, ending in ``.1``."""
    content = b""
    for part in (path, path.with_name(f"{path.name}.1")):
        if len(content) < TAIL_BYTES:
            content = _end_of(part) + content
    if not content:
        raise NotFound(f"exporter {name} has no log on this machine; it is where its exporter runs")
    return _text(content)


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except FileNotFoundError:
        return b""


def _text(content: bytes) -> str:
    return content[-TAIL_BYTES:].decode(errors="replace")


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
