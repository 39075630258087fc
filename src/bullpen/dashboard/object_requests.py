"""Requests to the API server on behalf of a person: it authorizes, admits and records them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bullpen.apiserver.http import Request, Response
from bullpen.apiserver.recording import Caller
from bullpen.apiserver.service import ApiService
from bullpen.dashboard.people import Person
from bullpen.errors import BadRequest, Forbidden


class ObjectRequests(Protocol):
    async def respond(self, request: Request, person: Person) -> Response:
        """What the API server answers to the person; raises ``LabError`` for other requests."""


@dataclass(frozen=True, slots=True)
class LocalObjectRequests:
    """To the API server of the same process."""

    api: ApiService

    async def respond(self, request: Request, person: Person) -> Response:
        check(request)
        return await self.api.respond(request, Caller(user=person.user))


def check(request: Request) -> None:
    """Refuse what is no request of a page."""
    if not request.path.startswith(("/api/", "/apis/")):
        raise Forbidden("the pages use objects of the API server only")
    if "watch" in request.query:
        raise BadRequest("the pages watch nothing here; they use the stream")
