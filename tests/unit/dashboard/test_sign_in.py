"""Signing in at the dashboard with an outside issuer: cookies, redirections and renewed tokens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bullpen.apiserver.http import Request, Response
from bullpen.core.rbac.authorization import User
from bullpen.dashboard.people import Person
from bullpen.dashboard.sessions import Session, Sessions
from bullpen.dashboard.sign_in import ISSUERS, SignIn
from bullpen.errors import NotFound, Unauthorized, Unavailable
from bullpen.identity.code_flow import BrowserClient, Grant, Renewal
from bullpen.kit.clock import VirtualClock

HOST = "lab:8080"
CLIENT = BrowserClient(issuer="https://login.example.com", client_id="bullpen")


class Issuer:
    """The code flow with one issuer, whose tokens are counted."""

    def __init__(self) -> None:
        self.clients = (CLIENT,)
        self.valid: set[str] = set()
        self.renewed: list[str] = []
        self.problem: Exception | None = None
        self.answered = asyncio.Event()
        self.answered.set()

    async def begin(self, index: int, secret: str, redirect: str) -> str:
        if self.problem is not None:
            raise self.problem
        return f"{CLIENT.issuer}/authorize?state={index}.{secret}&redirect_uri={redirect}"

    async def finish(self, secret: str, state: str, code: str, redirect: str) -> Grant:
        if not secret or state != f"0.{secret}":
            raise Unauthorized("the sign-in was not begun in this browser; begin again")
        return self._grant("first")

    async def renew(self, renewal: Renewal) -> Grant:
        self.renewed.append(renewal.refresh_token)
        await self.answered.wait()
        if self.problem is not None:
            raise self.problem
        return self._grant(f"{renewal.refresh_token}+")

    def _grant(self, token: str) -> Grant:
        self.valid.add(token)
        return Grant(token=token, renewal=Renewal(client=CLIENT, refresh_token=token))


class World:
    def __init__(self) -> None:
        self.issuer = Issuer()
        self.sessions = Sessions(VirtualClock(), new_secret=iter(map(str, range(1_000))).__next__)
        self.recorded: list[int] = []
        people: Any = SimpleNamespace(identify=self._identify)
        recorder: Any = SimpleNamespace(
            record=lambda request, person, response, error=None: self.recorded.append(
                response.status if error is None else 401
            )
        )
        flow: Any = self.issuer
        self.sign_in = SignIn(
            people=people,
            sessions=self.sessions,
            recorder=recorder,
            code_flow=flow,
            version="1",
            new_secret=lambda: "held",
        )

    async def _identify(self, token: str, session: Session | None = None) -> Person | None:
        if token not in self.issuer.valid:
            return None
        return Person(user=User(name="oidc:alice"), session=session, token=token)

    async def visit(self, path: str, cookie: str = "", **query: str) -> Response:
        headers = {"host": HOST, **({"cookie": cookie} if cookie else {})}
        return await self.sign_in.visit(
            Request(method="GET", path=f"{ISSUERS}{path}", query=query, headers=headers)
        )

    async def signed_in(self) -> Request:
        """A request of a browser that has signed in."""
        cookie = cookies(await self.visit("0"))[0].partition(";")[0]
        answer = await self.visit("back", cookie, state="0.held", code="c")
        session = cookies(answer)[0].partition(";")[0]
        return Request(method="GET", path="/", query={}, headers={"host": HOST, "cookie": session})


def cookies(response: Response) -> list[str]:
    return [value for name, value in response.headers if name == "set-cookie"]


def location(response: Response) -> str:
    return dict(response.headers)["location"]


async def test_a_browser_goes_to_the_issuer_and_comes_back_signed_in() -> None:
    world = World()
    begun = await world.visit("0")
    assert begun.status == 302
    assert location(begun).startswith("https://login.example.com/authorize?state=0.held")
    assert f"https://{HOST}/dashboard/oidc/back" in location(begun)
    (visit,) = cookies(begun)
    assert visit.startswith("__Host-bullpen-8080-visit=held; ")
    assert "SameSite=Lax" in visit
    assert "HttpOnly" in visit
    answer = await world.visit("back", visit.partition(";")[0], state="0.held", code="c")
    assert location(answer) == "/dashboard/"
    session, forgotten = cookies(answer)
    assert "SameSite=Strict" in session
    assert "visit=; " in forgotten
    assert "Max-Age=0" in forgotten
    assert world.recorded == [302]
    headers = {"host": HOST, "cookie": session.partition(";")[0]}
    request = Request(method="GET", path="/", query={}, headers=headers)
    assert (await world.sign_in.signed_in(request)).user.name == "oidc:alice"


async def test_a_code_that_another_browser_brings_signs_nobody_in() -> None:
    world = World()
    answer = await world.visit("back", state="0.held", code="c")
    assert location(answer).startswith("/dashboard/#problem=the%20sign-in%20was%20not%20begun")
    assert not any("bullpen-8080=" in cookie for cookie in cookies(answer))
    assert world.recorded == [401]


async def test_a_refusal_of_the_issuer_is_shown() -> None:
    world = World()
    answer = await world.visit("back", error="access_denied", error_description="<b>no</b>")
    assert location(answer) == (
        "/dashboard/#problem=the%20issuer%20refused%20the%20sign-in%3A%20%3Cb%3Eno%3C%2Fb%3E"
    )
    world.issuer.problem = Unavailable("it does not answer")
    assert location(await world.visit("0")) == "/dashboard/#problem=it%20does%20not%20answer"


@pytest.mark.parametrize("path", ["1", "x", "", "00000"])
async def test_there_are_no_other_issuers(path: str) -> None:
    with pytest.raises(NotFound):
        await World().visit(path)


async def test_a_page_is_told_at_which_issuers_it_can_sign_in() -> None:
    assert World().sign_in.nobody() == {
        "user": None,
        "cluster": False,
        "issuers": [{"name": "login.example.com", "path": "/dashboard/oidc/0"}],
    }


async def test_an_expired_token_is_renewed_once_for_all_requests() -> None:
    world = World()
    request = await world.signed_in()
    world.issuer.valid.clear()
    world.issuer.answered.clear()
    waiting = [asyncio.ensure_future(world.sign_in.signed_in(request)) for _ in range(5)]
    await asyncio.sleep(0)
    world.issuer.answered.set()
    people = await asyncio.gather(*waiting)
    assert {person.token for person in people} == {"first+"}
    assert world.issuer.renewed == ["first"], "a refresh token works once"
    world.issuer.valid.clear()
    still = await world.sign_in.still(people[0])
    assert still is not None
    assert still.token == "first++", "an open stream goes on with the newest token"


async def test_a_session_ends_when_its_issuer_renews_no_more() -> None:
    world = World()
    request = await world.signed_in()
    world.issuer.valid.clear()
    world.issuer.problem = Unauthorized("revoked")
    with pytest.raises(Unauthorized, match="no longer valid"):
        await world.sign_in.signed_in(request)
    world.issuer.problem = None
    with pytest.raises(Unauthorized, match="not signed in"):
        await world.sign_in.signed_in(request)


async def test_an_issuer_that_does_not_answer_ends_no_session() -> None:
    world = World()
    request = await world.signed_in()
    world.issuer.valid.clear()
    world.issuer.problem = Unavailable("it does not answer")
    with pytest.raises(Unavailable):
        await world.sign_in.signed_in(request)
    world.issuer.problem = None
    assert (await world.sign_in.signed_in(request)).token == "first+"
