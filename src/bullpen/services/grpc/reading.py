"""Bytes that are no message are the caller's mistake, and are answered as one.

Left to itself grpc calls them an error of the server, and writes a page of its log for each:
anybody who can connect could fill a disk with that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

UNREADABLE = "the request is not a message of this method"


class Registrar:
    """Stands in for a server while the generated code adds its methods."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same methods come by name as well, and are taken there."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        reading = {name: _reading(handler) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, reading)
        self._server.add_generic_rpc_handlers((generic,))


def _reading(handler: Any) -> Any:
    """The handler, answering for what its deserializer cannot read."""
    if handler.request_streaming:
        # The only one is refused before it is read.
        return handler
    if handler.response_streaming:
        method = {"unary_stream": _unary_stream(handler.unary_stream)}
    else:
        method = {"unary_unary": _unary_unary(handler.unary_unary)}
    return handler._replace(request_deserializer=_or_none(handler.request_deserializer), **method)


def _or_none(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def deserialize(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return None

    return deserialize


async def _refuse(context: Any) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)


def _unary_unary(method: Any) -> Any:
    async def call(request: Any, context: Any) -> Any:
        if request is None:
            await _refuse(context)
        return await method(request, context)

    return call


def _unary_stream(method: Any) -> Any:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        if request is None:
            await _refuse(context)
        async with aclosing(method(request, context)) as messages:
            async for message in messages:
                yield message

    return call
