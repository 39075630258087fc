"""KEDA's ExternalScaler: how busy pools are, for autoscalers in other systems.

KEDA can send no token, but it can present a client certificate. So this service has a port of
its own, whose TLS handshake refuses callers without a certificate of a trusted authority. The
certificate names a user as at the API server, and the user needs the right to ``get`` the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.resources import RESOURCES
from bullpen.core.pools.pool_load import TARGETS, Metric, PoolLoad
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.errors import BadRequest, Forbidden, LabError, Unauthorized
from bullpen.identity.client_certificates import RESERVED, user_of_certificate
from bullpen.protocol import externalscaler_pb2, externalscaler_pb2_grpc
from bullpen.runtime.connections import Bounds
from bullpen.services.grpc.errors import answer_to
from bullpen.services.grpc.guard import Guard
from bullpen.services.grpc.methods import FAILED
from bullpen.services.grpc.server import OPTIONS, STOP_SECONDS, Tls
from bullpen.services.pool_loads import PoolLoads

log = logging.getLogger("bullpen.scaler")

CALLS_MAX = 500
"""Calls at once; each trigger of the type external-push holds one open."""

MESSAGE_BYTES_MAX = 64 * 1024

Allows = Callable[[User, Attributes], Awaitable[bool]]
"""Whether a user may make a request."""

_KINDS: Mapping[str, type[ExporterSet | VirtualTargetPool]] = {
    kind.kind: kind for kind in (VirtualTargetPool, ExporterSet)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What a trigger of a ScaledObject asks about."""

    kind: type[ExporterSet | VirtualTargetPool]
    namespace: str
    name: str
    metric: Metric
    target: float


class ExternalScalerServicer:
    def __init__(self, loads: PoolLoads, allows: Allows) -> None:
        self._loads = loads
        self._allows = allows

    async def IsActive(self, request: Any, context: Any) -> Any:  # noqa: N802
        async with _answered(context):
            load = await self._load(trigger_of(request), context)
            return externalscaler_pb2.IsActiveResponse(result=load.active)

    async def StreamIsActive(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncGenerator[Any, None]:
        async with _answered(context):
            asked = trigger_of(request)
            await self._authorize(asked, context)
            told: bool | None = None
            watching = self._loads.watch(asked.kind, asked.namespace, asked.name)
            async with contextlib.aclosing(watching) as loads:
                async for load in loads:
                    # A right that was taken away ends the stream.
                    await self._authorize(asked, context)
                    if load.active != told:
                        told = load.active
                        yield externalscaler_pb2.IsActiveResponse(result=told)

    async def GetMetricSpec(self, request: Any, context: Any) -> Any:  # noqa: N802
        async with _answered(context):
            asked = trigger_of(request)
            await self._load(asked, context)
            spec = externalscaler_pb2.MetricSpec(
                metricName=asked.metric,
                targetSize=math.ceil(asked.target),
                targetSizeFloat=asked.target,
            )
            return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        async with _answered(context):
            asked = trigger_of(request.scaledObjectRef)
            if request.metricName != asked.metric:
                raise BadRequest(f"metricName: this trigger has the metric {asked.metric}")
            value = (await self._load(asked, context)).value(asked.metric)
            found = externalscaler_pb2.MetricValue(
                metricName=asked.metric, metricValue=math.ceil(value), metricValueFloat=value
            )
            return externalscaler_pb2.GetMetricsResponse(metricValues=[found])

    async def _load(self, asked: Trigger, context: Any) -> PoolLoad:
        await self._authorize(asked, context)
        return self._loads.of(asked.kind, asked.namespace, asked.name)

    async def _authorize(self, asked: Trigger, context: Any) -> None:
        """Raises ``Forbidden``, whether the pool exists or not."""
        user, resource = caller(context), RESOURCES.of(asked.kind)
        wanted = Attributes(
            verb="get",
            group=resource.group,
            resource=resource.plural,
            namespace=asked.namespace,
            name=asked.name,
        )
        if not await self._allows(user, wanted):
            raise Forbidden(
                f"{user.name} may not get {resource.plural} {asked.name} in namespace"
                f" {asked.namespace}; bind a role with that right to this user"
            )


def trigger_of(ref: Any) -> Trigger:
    """The pool and the metric in the metadata of a trigger. Raises ``BadRequest``."""
    given = ref.scalerMetadata
    kind = _KINDS.get(given.get("kind", VirtualTargetPool.kind))
    if kind is None:
        raise BadRequest(f"metadata.kind: must be one of {', '.join(_KINDS)}")
    name, namespace = given.get("name", ""), given.get("namespace", "") or ref.namespace
    if not name or not namespace:
        raise BadRequest("metadata.name: give the name of the pool")
    try:
        metric = Metric(given.get("metric", Metric.LEASES))
    except ValueError:
        raise BadRequest(f"metadata.metric: must be one of {', '.join(Metric)}") from None
    try:
        target = float(given.get("target", TARGETS[metric]))
    except ValueError:
        target = math.nan
    if not 0 < target < math.inf:
        raise BadRequest("metadata.target: must be a number above 0")
    return Trigger(kind=kind, namespace=namespace, name=name, metric=metric, target=target)


def caller(context: Any) -> User:
    """The user of the client certificate of a call.

    Names and groups that only an API server assigns are not taken from a certificate: an
    authority that signs for autoscalers must not be able to make an administrator.
    """
    (pem,) = context.auth_context().get("x509_pem_cert") or (b"",)
    if not pem:
        raise Unauthorized("no client certificate was presented")
    user = user_of_certificate(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    if user.name.startswith(RESERVED):
        raise Unauthorized(f"the client certificate names {user.name}, which is reserved")
    groups = tuple(group for group in user.groups if not group.startswith(RESERVED))
    return User(name=user.name, groups=groups)


@contextlib.asynccontextmanager
async def _answered(context: Any) -> AsyncIterator[None]:
    """Answer errors of the block as a gRPC status."""
    try:
        yield
    except LabError as error:
        answer = answer_to(error, human=False)
        await context.abort(answer.code, answer.text)
    except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
        raise
    except Exception:
        log.exception("call failed", extra={"key": "scaler"})
        await context.abort(FAILED.code, FAILED.text)


class ScalerServer:
    """Binds its port when constructed, so that the port is known before calls are served."""

    def __init__(
        self, *, address: str, tls: Tls, authorities: bytes, bounds: Bounds | None = None
    ) -> None:
        """``authorities`` are the CAs, in PEM, whose client certificates are accepted."""
        options = (*OPTIONS, ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX))
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.chain)], root_certificates=authorities, require_client_auth=True
        )
        self.port: int = self._server.add_secure_port(address, credentials)
        self.guard = Guard("scaler", self.port, bounds or Bounds())

    @contextlib.asynccontextmanager
    async def serving(self, servicer: ExternalScalerServicer) -> AsyncIterator[None]:
        """Serve while the context is open."""
        cast(Any, externalscaler_pb2_grpc).add_ExternalScalerServicer_to_server(
            servicer, self._server
        )
        await self._server.start()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.guard.run())
            try:
                yield
            finally:
                watching.cancel()
                await self._server.stop(STOP_SECONDS)
