"""Calling the API server as bytes on a wire would, and judging what comes back."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from bullpen.apiserver.asgi import Asgi
from support.api_client import made_api

Message = MutableMapping[str, Any]


@dataclass(frozen=True)
class Heard:
    status: int
    body: bytes


class Wire:
    """A connection that sends one request and hangs up after the answer has begun."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Heard:
        path, _, query = target.partition("?")
        chosen = {"authorization": "Bearer secret", **(headers or {})}
        scope: Message = {
            "type": "http",
            "method": method,
            "raw_path": path.encode("utf-8", "replace"),
            "path": path,
            "query_string": query.encode("utf-8", "replace"),
            "headers": [
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in chosen.items()
            ],
        }
        incoming: list[Message] = [{"type": "http.request", "body": body}]
        heard: list[Message] = []

        async def receive() -> Message:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            heard.append(message)

        await self._app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in heard[1:])
        return Heard(int(heard[0]["status"]), content)


async def made_wire() -> Wire:
    return Wire(Asgi((await made_api()).service))


def judge(heard: Heard, what: object) -> None:
    """Whatever was asked: an answer, or a refusal in Kubernetes' own form that says why."""
    assert heard.status < 500, (what, heard)
    if heard.status >= 400 and heard.body:
        status = json.loads(heard.body)
        assert status["kind"] == "Status", (what, heard)
        assert status["code"] == heard.status, (what, heard)
        assert status["reason"], (what, heard)
        assert status["message"], (what, heard)
