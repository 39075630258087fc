"""One port, two services: the dashboard and the API server, told apart by path."""

from __future__ import annotations

from dataclasses import dataclass

from bullpen.apiserver.http import Request, Response
from bullpen.apiserver.recording import Caller
from bullpen.apiserver.service import ApiService
from bullpen.dashboard.people import Person
from bullpen.dashboard.service import Dashboard
from bullpen.errors import LabError


@dataclass(frozen=True, slots=True)
class FrontDoor:
    api: ApiService
    dashboard: Dashboard

    async def authenticate(self, request: Request) -> Caller | Person | None:
        if self.dashboard.owns(request):
            return await self.dashboard.authenticate(request)
        return await self.api.authenticate(request)

    def refuse(self, request: Request, error: LabError) -> Response:
        service = self.dashboard if self.dashboard.owns(request) else self.api
        return service.refuse(request, error)

    async def respond(self, request: Request, caller: Caller | Person | None) -> Response:
        if self.dashboard.owns(request):
            assert not isinstance(caller, Caller), "the dashboard authenticates its own callers"
            return await self.dashboard.respond(request, caller)
        assert not isinstance(caller, Person), "the API server authenticates its own callers"
        return await self.api.respond(request, caller)

    def close(self) -> None:
        """End every stream of both, so that the server can stop at once."""
        self.dashboard.close()
        self.api.close()
