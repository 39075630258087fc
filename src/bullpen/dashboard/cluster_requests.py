"""Requests to the API server of a cluster, with the person's own token.

The API server authenticates, authorizes, admits and records them as the person. The process of
the dashboard adds no right of its own: its credentials and certificate are not used here.
"""

from __future__ import annotations

from types import TracebackType

import aiohttp

from bullpen.apiserver.http import Request, Response
from bullpen.cluster.kubeconfig import Access
from bullpen.dashboard import object_requests
from bullpen.dashboard.people import Person
from bullpen.errors import BadRequest, Forbidden, TooLarge, Unreachable
from bullpen.identity import subjects

SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 32 * 1024 * 1024
REQUESTS_MAX = 64
"""Connections to the API server."""

UNKNOWN = (
    "the API server of the cluster does not know the token that you signed in with; sign in with"
    " a token of the cluster, such as 'kubectl create token' prints"
)


class ClusterObjectRequests:
    """``dashboard.object_requests`` over HTTP. A context manager."""

    def __init__(self, access: Access) -> None:
        """``access`` has no credentials."""
        self._access = access
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ClusterObjectRequests:
        connector = aiohttp.TCPConnector(ssl=self._access.tls, limit=REQUESTS_MAX)
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=SECONDS_MAX),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def respond(self, request: Request, person: Person) -> Response:
        object_requests.check(request)
        if {".", "..", ""} & {*request.path.split("/")[1:]}:
            raise BadRequest(f"{request.path} is not the path of an object")
        if person.user.name.startswith(subjects.PREFIX):
            raise Forbidden(UNKNOWN)
        assert self._http is not None, "used outside of its context"
        try:
            async with self._http.request(
                request.method,
                f"{self._access.server.rstrip('/')}{request.path}",
                params=dict(request.query),
                data=request.body or None,
                headers=_headers(request, person),
                server_hostname=self._access.server_name,
                proxy=self._access.proxy,
                allow_redirects=False,
            ) as answer:
                return await _response(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(
                f"the API server does not answer: {str(error) or type(error).__name__}"
            ) from None


def _headers(request: Request, person: Person) -> dict[str, str]:
    found = {
        "Authorization": f"Bearer {person.token}",
        "Accept": "application/json",
        "User-Agent": "bullpen-dashboard",
    }
    if request.body:
        found["Content-Type"] = request.headers.get("content-type", "application/json")
    if request.source:
        # For the audit log of the cluster.
        found["X-Forwarded-For"] = request.source
    return found


async def _response(answer: aiohttp.ClientResponse) -> Response:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise TooLarge(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
    if answer.status == 401:
        # Not of this service: the page would take it for the end of its session.
        raise Forbidden(UNKNOWN)
    return Response(status=answer.status, body=bytes(body), content_type=answer.content_type)
