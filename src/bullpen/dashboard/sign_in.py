"""Signing in and out: with a token, a one-time link, or at an outside issuer in the browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from bullpen.api.paths import Document
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.dashboard import audit_trail, protection
from bullpen.dashboard.pages import PREFIX
from bullpen.dashboard.people import People, Person
from bullpen.dashboard.recording import Recorder
from bullpen.dashboard.rows import POOL, PROVIDER
from bullpen.dashboard.sessions import Session, Sessions, random_secret
from bullpen.errors import LabError, NotFound, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.code_flow import CodeFlow, Grant

LINK_HEADER = "x-bullpen-link"
"""Carries the secret of a one-time link: a body would be read before the caller is known."""

ISSUERS = f"{PREFIX}oidc/"
"""Below it: the numbers of issuers, where a browser begins, and where it comes back to."""

BACK = "back"

PROBLEM = f"{PREFIX}#problem="
"""Where the browser is sent if an issuer or its user says no."""

PROBLEM_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    people: People
    sessions: Sessions
    recorder: Recorder
    code_flow: CodeFlow | None
    version: str
    in_cluster: bool = False
    new_secret: Callable[[], str] = random_secret

    # Who sends a request

    async def signing_in(self, request: Request) -> Person:
        """Who sends a token, or the secret of a link, to get a session or another link."""
        token: str | None
        if LINK_HEADER in request.headers:
            protection.check_origin(request.headers)
            token = self.sessions.redeem_link(request.headers[LINK_HEADER])
            if token is None:
                raise Unauthorized(
                    "the link was used or has expired; 'bullpen dashboard' prints a new one"
                )
        else:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            token = token.strip() if scheme.lower() == "bearer" else ""
        person = await self.people.identify(token) if token else None
        if person is None:
            raise Unauthorized("the token is not valid here; use one of a client or a kubeconfig")
        return person

    async def signed_in(self, request: Request) -> Person:
        """Who sends the cookie of a session, and with a write its CSRF token."""
        name = protection.cookie_name(request.headers.get("host", ""))
        session = self.sessions.find(protection.cookie(request.headers, name))
        if session is None:
            raise Unauthorized("you are not signed in, or your session has ended; sign in again")
        if request.method not in protection.SAFE_METHODS:
            protection.check_write(request.headers, session)
        person = await self._person_of(session)
        if person is None:
            self.sessions.end(session)
            raise Unauthorized("the token that you signed in with is no longer valid")
        return person

    async def still(self, person: Person) -> Person | None:
        """The person of an open stream as they are now; None once they are signed out."""
        session = session_of(person)
        if not self.sessions.is_open(session):
            return None
        return await self._person_of(self.sessions.newest(session))

    async def _person_of(self, session: Session) -> Person | None:
        person = await self.people.identify(session.token, session)
        if person is not None or session.renewal is None or self.code_flow is None:
            return person
        # Other requests of the same page may have renewed it meanwhile.
        newest = self.sessions.newest(session)
        if newest.token == session.token:
            newest = await self.sessions.renewed(session, self.code_flow.renew)
        return await self.people.identify(newest.token, newest)

    # Sessions and links

    async def start(self, request: Request, person: Person) -> Response:
        protection.check_origin(request.headers)
        secret, session = self.sessions.start(person.token)
        name = protection.cookie_name(request.headers.get("host", ""))
        response = json_response(
            await self.whoami(person, session),
            status=201,
            headers=(protection.set_cookie(name, secret),),
        )
        self.recorder.record(request, person, response)
        return response

    def link(self, request: Request, person: Person) -> Response:
        """A link for the owner of a token; for commands, which have no cookie."""
        response = json_response(
            {"path": link_path(self.sessions.issue_link(person.token))}, status=201
        )
        self.recorder.record(request, person, response)
        return response

    def sign_out(self, request: Request, person: Person) -> Response:
        self.sessions.end(session_of(person))
        name = protection.cookie_name(request.headers.get("host", ""))
        return json_response({}, headers=(protection.set_cookie(name, ""),))

    def nobody(self) -> Document:
        """What a browser is told that is not signed in: the issuers it may sign in at."""
        clients = self.code_flow.clients if self.code_flow is not None else ()
        return {
            "user": None,
            "cluster": self.in_cluster,
            "issuers": [
                {"name": urlsplit(client.issuer).netloc, "path": f"{ISSUERS}{index}"}
                for index, client in enumerate(clients)
            ],
        }

    async def whoami(self, person: Person, session: Session) -> Document:
        scope = await self.people.scope(person)
        return {
            "user": _shown_name(person),
            "csrf": session.csrf,
            "expires": session.expires.timestamp(),
            "version": self.version,
            "clients": [
                {"ns": client.metadata.namespace, "name": client.metadata.name}
                for client in await self.people.acting_clients(person)
            ],
            "own": [
                {"ns": client.metadata.namespace, "name": client.metadata.name}
                for client in person.clients
            ],
            "audit": await self.people.may(person, audit_trail.RIGHT),
            "pools": scope.sees_any(POOL),
            "providers": scope.sees_any(PROVIDER),
        }

    # At an outside issuer

    async def visit(self, request: Request) -> Response:
        """Send a browser to an issuer, or take it back from there with a session."""
        if self.code_flow is None or request.method != "GET":
            raise NotFound("no outside issuer is configured for signing in here")
        host = request.headers.get("host", "")
        where = request.path.removeprefix(ISSUERS)
        back = f"https://{host}{ISSUERS}{BACK}"
        if where == BACK:
            return await self._come_back(request, host, back, self.code_flow)
        if not where.isdigit() or len(where) > 3 or int(where) >= len(self.code_flow.clients):
            raise NotFound("there is no such issuer")
        secret = self.new_secret()
        try:
            address = await self.code_flow.begin(int(where), secret, back)
        except LabError as error:
            return _redirect(problem_path(error.message))
        return _redirect(address, protection.set_visit_cookie(host, secret))

    async def _come_back(
        self, request: Request, host: str, back: str, code_flow: CodeFlow
    ) -> Response:
        done = protection.set_visit_cookie(host, "")
        refusal = request.query.get("error", "")
        if refusal:
            said = request.query.get("error_description", "") or refusal
            return _redirect(problem_path(f"the issuer refused the sign-in: {said}"), done)
        secret = protection.cookie(request.headers, protection.visit_cookie_name(host))
        try:
            grant = await code_flow.finish(
                secret, request.query.get("state", ""), request.query.get("code", ""), back
            )
            person = await self.people.identify(grant.token)
            if person is None:
                raise Unauthorized("the issuer's token is not accepted here")
        except LabError as error:
            self.recorder.record(request, None, _redirect(PREFIX), error=error)
            return _redirect(problem_path(error.message), done)
        return self._begin_session(request, person, grant, done)

    def _begin_session(
        self, request: Request, person: Person, grant: Grant, done: tuple[str, str]
    ) -> Response:
        secret, _ = self.sessions.start(grant.token, grant.renewal)
        name = protection.cookie_name(request.headers.get("host", ""))
        response = _redirect(PREFIX, protection.set_cookie(name, secret), done)
        self.recorder.record(request, person, response)
        return response


def link_path(secret: str) -> str:
    """The path of a one-time link. Browsers do not send what follows the ``#``."""
    return f"{PREFIX}#link={secret}"


def problem_path(message: str) -> str:
    """The sign-in page with a problem, which is shown as text."""
    return f"{PROBLEM}{quote(message[:PROBLEM_LENGTH_MAX], safe='')}"


def session_of(person: Person) -> Session:
    assert person.session is not None, "only the sign-in has a person without a session"
    return person.session


def _redirect(address: str, *cookies: tuple[str, str]) -> Response:
    headers = (("location", address), ("cache-control", "no-store"), *cookies)
    return Response(status=302, content_type="text/plain", headers=headers)


def _shown_name(person: Person) -> str:
    """The user; of a Jumpstarter client its name, without the uid that its user has too."""
    if person.clients and person.user.name.startswith(subjects.PREFIX):
        return person.clients[0].metadata.name
    return person.user.name
