"""Removal by name in a cluster: the server behind the APIService of the subresources group.

The cluster's API server passes requests on to it and names their callers. Who calls directly
is authenticated by a TokenReview. In both cases the cluster's RBAC decides. It serves one
subresource and the discovery that aggregation needs, and stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cryptography import x509
from cryptography.x509.oid import NameOID

from bullpen.api.objects import Objects
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.apiserver import discovery, http
from bullpen.apiserver.authentication import PUBLIC_PATHS
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.apiserver.routes import (
    SCALE_DOWN_WITH,
    SUBRESOURCES,
    ObjectRoute,
    PlainRoute,
    attributes_of,
    refusal,
    route,
)
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.apiserver.status import failure_response
from bullpen.cluster import front_proxy
from bullpen.cluster.front_proxy import FrontProxy
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.errors import (
    Forbidden,
    LabError,
    MethodNotAllowed,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unauthorized,
)

log = logging.getLogger("bullpen.aggregated")

IN_FLIGHT_MAX = 100
SECONDS_MAX = 30.0


class AggregatedService:
    """An ``asgi.HttpService``."""

    def __init__(
        self,
        objects: Objects,
        *,
        proxy: FrontProxy | None,
        user_of_token: Callable[[str], Awaitable[User | None]],
        allows: Callable[[User, Attributes], Awaitable[bool]],
    ) -> None:
        """Without ``proxy`` only direct callers are known."""
        self._scale_downs = ScaleDowns(objects)
        self._proxy = proxy
        self._user_of_token = user_of_token
        self._allows = allows
        self._in_flight = 0

    async def authenticate(self, request: Request) -> User | None:
        if request.path in PUBLIC_PATHS:
            return None
        if request.certificate and self._proxy is not None:
            if not self._proxy.accepts(_common_name(request.certificate)):
                raise Unauthorized("the client certificate is not the one of the front proxy")
            return front_proxy.user_of_headers(request.remote)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = None
        if scheme.lower() == "bearer" and token.strip():
            user = await self._user_of_token(token.strip())
        if user is None:
            raise Unauthorized("call this API through the API server of the cluster")
        return user

    def refuse(self, request: Request, error: LabError) -> Response:
        return failure_response(error)

    async def respond(self, request: Request, caller: User | None) -> Response:
        if self._in_flight >= IN_FLIGHT_MAX:
            return failure_response(TooManyRequests("too many requests in flight; try again"))
        self._in_flight += 1
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return await self._answer(request, caller)
        except LabError as error:
            return failure_response(error)
        except TimeoutError:
            return failure_response(
                TimedOut(f"the request did not finish within {SECONDS_MAX:g} s")
            )
        except Exception:
            log.exception("request failed", extra={"key": request.path})
            return failure_response(LabError("internal error; the server's log has the cause"))
        finally:
            self._in_flight -= 1

    async def _answer(self, request: Request, caller: User | None) -> Response:
        if caller is None:
            return Response(body=b"ok", content_type="text/plain")
        match route(request.path, RESOURCES):
            case ObjectRoute(subresource=subresource) as target if subresource == SCALE_DOWN_WITH:
                return await self._removed(request, target, caller)
            case PlainRoute(path) if (found := _discovered(path)) is not None:
                return json_response(found)
        raise NotFound(f"{request.path} is not served here")

    async def _removed(self, request: Request, target: ObjectRoute, caller: User) -> Response:
        if request.method != "POST":
            raise MethodNotAllowed("members are removed by name with POST")
        wanted = attributes_of(target, request, "create")
        if not await self._allows(caller, wanted):
            raise Forbidden(refusal(caller, wanted))
        dry_run = request.query.get("dryRun", "") == "All"
        body = http.document(request)
        return json_response(
            await self._scale_downs.answer(target, body, dry_run=dry_run), status=201
        )


def _discovered(path: str) -> Document | None:
    """The document that kube-apiserver reads to learn that we answer, and what."""
    _, _, group, *version = path.split("/") if path.count("/") in (2, 3) else ("", "", "")
    if not group.startswith(SUBRESOURCES):
        return None
    if version:
        return discovery.api_resources(RESOURCES, group, version[0])
    return discovery.api_group(RESOURCES, group)


def _common_name(certificate: bytes) -> str:
    """The common name of a certificate (DER) that the handshake has verified."""
    subject = x509.load_der_x509_certificate(certificate).subject
    names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return names[0] if names else ""
