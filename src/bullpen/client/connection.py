"""The service over gRPC: channels, and its errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
from jumpstarter_protocol import client_pb2_grpc, jumpstarter_pb2_grpc

from bullpen import errors
from bullpen.client.config import ClientConfig, authorities

CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 180_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""As in the published client."""

_ERRORS: dict[grpc.StatusCode, type[errors.LabError]] = {
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthorized,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.INVALID_ARGUMENT: errors.BadRequest,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.TimedOut,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooManyRequests,
}


def secure_channel(config: ClientConfig, endpoint: str, token: str) -> grpc.aio.Channel:
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authorities(config, endpoint)),
        grpc.access_token_call_credentials(token),
    )
    return grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)


class Connection:
    """The channel to the controller, with its services. A context manager."""

    def __init__(self, config: ClientConfig, shared: grpc.aio.Channel | None = None) -> None:
        """``shared``: a channel that several clients use, each with its token in every call."""
        self.config = config
        self._channel = shared or secure_channel(config, config.endpoint, config.token)
        token = (("authorization", f"Bearer {config.token}"),) if shared is not None else ()
        self.caller = (
            ("jumpstarter-kind", "Client"),
            ("jumpstarter-namespace", config.namespace),
            ("jumpstarter-name", config.name),
            *token,
        )
        """Metadata of every call."""

        self.client: Any = client_pb2_grpc.ClientServiceStub(self._channel)
        self.controller: Any = jumpstarter_pb2_grpc.ControllerServiceStub(self._channel)

    def claims(self) -> Any:
        """The service of claims, which is imported only by those who use it."""
        from bullpen.protocol import claims_pb2_grpc

        generated: Any = claims_pb2_grpc
        return generated.ClaimServiceStub(self._channel)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


@contextlib.contextmanager
def our_errors(endpoint: str) -> Iterator[None]:
    """Raise what gRPC raises as one of our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        words = error.details() or error.code().name
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            words = f"{endpoint} does not answer ({words})"
        raise _ERRORS.get(error.code(), errors.LabError)(words) from None
