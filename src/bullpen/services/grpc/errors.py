"""Errors as gRPC codes, chosen for what Jumpstarter's client and exporter do with them.

UNKNOWN is the only code whose text the 0.9 client prints as one clean line, so
refusals meant for people use it. No text may contain the word the client takes for a
stale token, except the one that means it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from bullpen import errors
from bullpen.services.callers import Anonymous
from bullpen.services.dialing import NotReady, PermissionDenied, Precondition

log = logging.getLogger("bullpen.grpc")

CODES: dict[type[errors.LabError], grpc.StatusCode] = {
    errors.LabError: grpc.StatusCode.UNKNOWN,
    errors.BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.TooManyRequests: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    NotReady: grpc.StatusCode.FAILED_PRECONDITION,
    Precondition: grpc.StatusCode.FAILED_PRECONDITION,
    PermissionDenied: grpc.StatusCode.UNKNOWN,
}

_HUMAN = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
    }
)

F = TypeVar("F", bound=Callable[..., Any])


def code(error: errors.LabError) -> grpc.StatusCode:
    """The code of an error, by the nearest class the table knows."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def answered(*, human: bool = False) -> Callable[[F], F]:
    """Turn errors of a unary call into codes; ``human`` ones into the code that prints well."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        async def call(self: Any, request: Any, context: Any) -> Any:
            try:
                return await function(self, request, context)
            except errors.LabError as error:
                await _abort(context, error, human=human)
            except Exception:
                log.exception("call failed", extra={"key": function.__name__})
                await context.abort(
                    grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause"
                )

        return call  # type: ignore[return-value]

    return decorate


def streamed(
    function: Callable[..., AsyncGenerator[Any, None]],
) -> Callable[..., AsyncGenerator[Any, None]]:
    """Turn errors of a server stream into codes; close it at once when the caller leaves."""

    @functools.wraps(function)
    async def call(self: Any, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(function(self, request, context)) as messages:
                async for message in messages:
                    yield message
        except errors.LabError as error:
            await _abort(context, error, human=False)
        except Exception:
            log.exception("stream failed", extra={"key": function.__name__})
            await context.abort(
                grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause"
            )

    return call


async def _abort(context: Any, error: errors.LabError, *, human: bool) -> None:
    found = code(error)
    if human and found in _HUMAN and not isinstance(error, Anonymous):
        found = grpc.StatusCode.UNKNOWN
    abort: Callable[..., Awaitable[None]] = context.abort
    await abort(found, error.message)
