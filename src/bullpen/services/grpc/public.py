"""The two services that need no token: health, and reflection for interactive tools.

They are open to unauthenticated callers, so they keep almost no state per caller. ``Watch``
of health is not implemented, because each watcher could hold its stream for ever; by the
protocol, clients treat the missing method as healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from bullpen.services.grpc.errors import Answer
from bullpen.services.grpc.methods import UNREADABLE, refusing

HEALTH_BYTES_MAX = 1024
"""Maximum size of a health request, which contains the name of a service."""

REFLECTIONS_MAX = 16
REFLECTION_SECONDS_MAX = 10.0
"""How long a reflection stream may be silent."""

_TOO_LONG = Answer(grpc.StatusCode.INVALID_ARGUMENT, "the name of the service is too long")
_UNKNOWN = Answer(grpc.StatusCode.NOT_FOUND, "there is no such service here")
_BUSY = Answer(
    grpc.StatusCode.RESOURCE_EXHAUSTED, "too many reflection streams are open; try again later"
)


class Health(grpc.GenericRpcHandler):  # type: ignore[misc]
    """``grpc.health.v1.Health`` for the services named."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = frozenset(("", *services))
        self.serving = False

    def service(self, details: Any) -> Any:
        if details.method == f"/{health.SERVICE_NAME}/Check":
            return grpc.unary_unary_rpc_method_handler(
                self._check, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
            )
        if details.method == f"/{health.SERVICE_NAME}/Watch":
            text = "Watch is not supported; call Check"
            return refusing(Answer(grpc.StatusCode.UNIMPLEMENTED, text))
        return None

    async def _check(self, data: bytes, context: Any) -> Any:
        if len(data) > HEALTH_BYTES_MAX:
            return _TOO_LONG.give(context)
        try:
            asked = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            return UNREADABLE.give(context)
        if asked not in self._services:
            return _UNKNOWN.give(context)
        states = health_pb2.HealthCheckResponse
        return states(status=states.SERVING if self.serving else states.NOT_SERVING)


class Reflection(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Server reflection of the services named, for a few callers at a time."""

    def __init__(self, services: tuple[str, ...]) -> None:
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._answers = reflection.aio.ReflectionServicer(names)
        self._open = 0

    def service(self, details: Any) -> Any:
        if details.method != f"/{reflection.SERVICE_NAME}/ServerReflectionInfo":
            return None
        if self._open >= REFLECTIONS_MAX:
            return refusing(_BUSY)
        return grpc.stream_stream_rpc_method_handler(
            self._reflect,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )

    async def _reflect(self, requests: Any, context: Any) -> AsyncGenerator[Any, None]:
        self._open += 1
        try:
            async for answer in self._answers.ServerReflectionInfo(_read(requests), context):
                yield answer
        except DecodeError:
            UNREADABLE.give(context)
        finally:
            self._open -= 1


async def _read(requests: Any) -> AsyncGenerator[Any, None]:
    """The requests of a stream, until it ends or is silent for too long."""
    source = aiter(requests)
    while True:
        try:
            data = await asyncio.wait_for(anext(source), REFLECTION_SECONDS_MAX)
        except (StopAsyncIteration, TimeoutError):
            return
        yield reflection_pb2.ServerReflectionRequest.FromString(data)
