"""Requests about the target of a lease: its console, power, screen and images. Holders only.

Everything goes over one connection to the target, which lasts as long as a page shows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.lease import Lease
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.controllers.views import Views
from bullpen.core.leases import lifecycle
from bullpen.dashboard.client_calls import ClientCalls
from bullpen.dashboard.consoles import Console, Consoles
from bullpen.dashboard.lease_actions import decoded, target_of
from bullpen.dashboard.people import People, Person
from bullpen.dashboard.recording import Recorder
from bullpen.errors import Forbidden, LabError, NotFound
from bullpen.services.dialing import Call

SCREEN_HEADER = "x-bullpen-screen"
"""Identifies the connection to a screen, for input to it."""

Key = tuple[str, str]
"""Namespace and name of a lease."""


class PowerAction(msgspec.Struct, forbid_unknown_fields=True):
    action: str


class Image(msgspec.Struct, forbid_unknown_fields=True):
    """An image that a page is about to send."""

    size: int
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleRequests:
    views: Views
    people: People
    consoles: Consoles
    client_calls: ClientCalls
    recorder: Recorder
    still: Callable[[Person], Awaitable[Person | None]]
    """The person as they are now; None once they are signed out."""

    seen_lease: Callable[[Person, str, str], Awaitable[Lease]]
    """A lease that the person may see; raises ``NotFound``."""

    async def show(self, request: Request, person: Person, key: Key) -> Response:
        """Open the console of a lease as its holder, and show it."""
        await self._holder(person, key)

        async def dial() -> Call:
            client = await self._holder(person, key)
            return await self.client_calls.dial(person, client, key[1])

        opened = self.consoles.find(key) is None
        last = request.headers.get("last-event-id", "")
        view = self.consoles.open(key, dial).view(last, self._allowed(person, key))
        response = Response(body=view, content_type="text/event-stream")
        if opened:
            self._record(replace(request, method="CONNECT"), person, response, key)
        return response

    async def show_screen(self, request: Request, person: Person, key: Key) -> Response:
        """What the target's VNC server sends, as it is."""
        await self._holder(person, key)
        console = self.consoles.get(key)
        screen = await console.open_screen()
        response = Response(
            body=screen.output(self._allowed(person, key)),
            content_type="application/octet-stream",
            headers=((SCREEN_HEADER, screen.id),),
        )
        self._record(replace(request, method="CONNECT"), person, response, key)
        return response

    async def use(self, request: Request, person: Person, key: Key, what: list[str]) -> Response:
        await self._holder(person, key)
        console = self.consoles.get(key)
        match what:
            case ["input"]:
                console.type(request.body)
            case ["power"]:
                wanted: PowerAction = decoded(request.body, PowerAction)
                await console.power(wanted.action)
                self._record(request, person, json_response({}), key)
            case ["screen", id]:
                await console.screen(id).send(request.body)
            case ["flash", *rest]:
                return await self._flash(request, person, key, console, rest)
            case _:
                raise NotFound(f"a console has no {'/'.join(what)}")
        return json_response({})

    async def _flash(
        self, request: Request, person: Person, key: Key, console: Console, what: list[str]
    ) -> Response:
        """An image comes in pieces: begin, each piece at its offset, end."""
        match what:
            case []:
                image: Image = decoded(request.body, Image)
                flash = await console.flash(image.size, image.partition)
                response = json_response({"id": flash.id}, status=201)
                self._record(request, person, response, key)
                return response
            case [id, "end"]:
                await console.flashing(id).finish()
                return json_response({})
            case [id, offset] if offset.isascii() and offset.isdigit() and len(offset) < 18:
                flash = console.flashing(id)
                await flash.add(int(offset), request.body)
                return json_response({"received": flash.received})
            case _:
                raise NotFound("an image is sent to flash/ID/OFFSET, and ended with flash/ID/end")

    def _allowed(self, person: Person, key: Key) -> Callable[[], Awaitable[bool]]:
        async def allowed() -> bool:
            try:
                current = await self.still(person)
                return current is not None and await self._holder(current, key) is not None
            except LabError:
                return False

        return allowed

    async def _holder(self, person: Person, key: Key) -> Client:
        """The client that holds the lease; raises unless the person may act as that client."""
        lease = await self.seen_lease(person, *key)
        name = lifecycle.holder(lease)
        if lease.status.ended:
            raise NotFound(f"lease {key[1]} has ended")
        client = self.views.clients.get(key[0], name)
        if client is None or not await self.people.may_act_as(person, key[0], name):
            raise Forbidden(f"lease {key[1]} belongs to {name}, and you may not act as {name}")
        return client

    def _record(self, request: Request, person: Person, response: Response, key: Key) -> None:
        self.recorder.record(request, person, response, target=target_of(Lease, *key))
