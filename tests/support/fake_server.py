"""An API server that says what a test tells it to, over a real socket."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from bullpen.cluster.kubeconfig import Access, Credentials, Token


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any


@dataclass
class FakeServer:
    """Answers from a list, one after the other; an answer that is a list is a watch."""

    answers: list[Any] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    server: str = ""

    def access(self, credentials: Credentials | None = None) -> Access:
        return Access(
            server=self.server,
            tls=ssl.create_default_context(),
            credentials=credentials or Token("secret"),
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.asked.append(
            Asked(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                authorization=request.headers.get("Authorization", ""),
                body=json.loads(text) if text else None,
            )
        )
        answer = self.answers.pop(0)
        if isinstance(answer, list):
            return await self._stream(request, answer)
        assert isinstance(answer, web.Response)
        return answer

    async def _stream(self, request: web.Request, lines: list[object]) -> web.StreamResponse:
        """The lines of a watch. Text is sent as it is, and then the connection is cut; bytes are
        sent as they are, and the connection ends as if all had been said.
        """
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            if isinstance(line, bytes):
                await response.write(line)
            else:
                text = line if isinstance(line, str) else json.dumps(line) + "\n"
                await response.write(text.encode())
        if isinstance(lines[-1], str):
            assert request.transport is not None
            request.transport.abort()
        return response


@contextlib.asynccontextmanager
async def fake_server(*answers: object) -> AsyncIterator[FakeServer]:
    fake = FakeServer(answers=list(answers))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        fake.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield fake
    finally:
        await runner.cleanup()


def answer(document: object, status: int = 200, **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(document, status=status, headers=named)


def failure(status: int, reason: str, message: str = "no", **headers: str) -> web.Response:
    """A refusal as Kubernetes words it."""
    document = {"kind": "Status", "status": "Failure", "reason": reason, "message": message}
    return answer({**document, "code": status}, status, **headers)


def client(name: str, revision: int) -> dict[str, Any]:
    meta = {"name": name, "namespace": "lab", "uid": f"u-{name}", "resourceVersion": str(revision)}
    return {"apiVersion": "jumpstarter.dev/v1alpha1", "kind": "Client", "metadata": meta}


def event(type_: str, name: str, revision: int) -> dict[str, Any]:
    return {"type": type_, "object": client(name, revision)}


def page(*items: dict[str, Any], revision: int, more: str = "") -> web.Response:
    """One page of a list; items do not repeat what they are, as Kubernetes leaves it out."""
    bare = [{"metadata": item["metadata"]} for item in items]
    meta = {"resourceVersion": str(revision), **({"continue": more} if more else {})}
    return answer({"kind": "ClientList", "metadata": meta, "items": bare})
