"""The methods of our services: who may call each, and how its errors are answered.

The caller is authenticated before any other work on a call: gRPC looks up the method's
handler when it has read the headers, and a refused caller gets a handler that answers
without receiving the message. An unauthenticated caller therefore costs only the headers of
a call, whatever it sends.

Errors are answered by setting the status. ``context.abort`` would keep the exception, its
frames and with them the request in a reference cycle until the next run of the garbage
collector.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.errors import BadRequest, LabError
from bullpen.identity.subjects import Role
from bullpen.services.callers import Anonymous, Callers, Claim
from bullpen.services.grpc.errors import Answer, answer_to
from bullpen.services.grpc.peer_watch import PeerWatch
from bullpen.services.grpc.recording import CallRecorder

log = logging.getLogger("bullpen.grpc")

UNREADABLE = Answer(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method")
FAILED = Answer(grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause")

F = TypeVar("F", bound=Callable[..., Any])


class Admits(Enum):
    """Who may call a method."""

    CLIENT = auto()
    EXPORTER = auto()
    EITHER = auto()


@dataclass(frozen=True, slots=True)
class Terms:
    """The properties a method declares where it is defined."""

    admits: Admits
    human: bool
    """Users read its refusals, so they get the code that the client prints well."""

    watched: bool
    """Its stream ends soon after its peer became unreachable, and its function gets the peer."""


def method(admits: Admits, *, human: bool = False, watched: bool = False) -> Callable[[F], F]:
    """Serve the function, with its caller and its request, to the callers it admits."""

    def mark(function: F) -> F:
        function.terms = Terms(admits, human, watched)  # type: ignore[attr-defined]
        return function

    return mark


class Methods(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Collects the methods that the generated code adds to a server, then serves them."""

    def __init__(self, recorder: CallRecorder) -> None:
        """``recorder`` records changes and refusals in the audit log."""
        self._methods: dict[str, _Method] = {}
        self._callers: Callers | None = None
        self._peers: PeerWatch | None = None
        self._recorder = recorder

    def admit(self, callers: Callers, peers: PeerWatch) -> None:
        """Set who authenticates and watches callers; must be called before the server starts."""
        self._callers, self._peers = callers, peers

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same methods are also registered by name, and are collected there."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, handler in handlers.items():
            full_name = f"/{service}/{name}"
            self._methods[full_name] = _Method(full_name, handler, self._recorder)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The handler of one call, bound to its caller."""
        found = self._methods.get(details.method)
        if found is None:
            return await continuation(details)
        if found.terms is None:
            text = f"{found.name} is not supported"
            return refusing(Answer(grpc.StatusCode.UNIMPLEMENTED, text))
        try:
            caller = await self._caller(found.terms.admits, claim(details.invocation_metadata))
        except LabError as error:
            answer = answer_to(error, human=found.terms.human)
            return refusing(answer, self._turned_away(details, error))
        except Exception:
            log.exception("caller not identified", extra={"key": found.name})
            return refusing(FAILED)
        assert self._peers is not None
        return found.serving(caller, details.invocation_metadata, self._peers)

    def _turned_away(self, details: Any, error: LabError) -> Callable[[Any], None]:
        """Record a refusal once the context of the call is known."""
        method, metadata = details.method, details.invocation_metadata
        # The frames of the traceback would live as long as the handler.
        error = error.with_traceback(None)

        def record(context: Any) -> None:
            self._recorder.turned_away(self._recorder.call(method, metadata, context), error)

        return record

    async def _caller(self, admits: Admits, who: Claim) -> Client | Exporter:
        assert self._callers is not None, "the server starts after its callers are known"
        exporter = admits is Admits.EXPORTER
        if exporter or (admits is Admits.EITHER and who.role is Role.EXPORTER):
            return await self._callers.exporter(who)
        return await self._callers.client(who)


def claim(metadata: Iterable[tuple[str, str | bytes]] | None) -> Claim:
    """The identity that a call claims: four headers, each of which must be present exactly once.

    Raises ``BadRequest`` or ``Anonymous``.
    """
    headers: dict[str, list[str]] = {}
    for key, value in metadata or ():
        headers.setdefault(key, []).append(value if isinstance(value, str) else "")
    return Claim(
        token=_token_in(headers.get("authorization", [])),
        role=_role_named(_header(headers, "jumpstarter-kind")),
        namespace=_header(headers, "jumpstarter-namespace"),
        name=_header(headers, "jumpstarter-name"),
    )


def _token_in(found: list[str]) -> str:
    if not found:
        raise Anonymous("no token was sent; use a client or exporter config of this service")
    if len(found) > 1:
        raise BadRequest("more than one authorization header was sent")
    scheme, _, token = found[0].partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise BadRequest("the authorization header must be 'Bearer TOKEN'")
    return token


def _header(headers: dict[str, list[str]], name: str) -> str:
    found = headers.get(name, [])
    if len(found) != 1 or not found[0]:
        raise BadRequest(f"the header {name} must be sent exactly once")
    return found[0]


def _role_named(value: str) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise BadRequest(f"jumpstarter-kind is {value!r}; it must be Client or Exporter") from None


def refusing(answer: Answer, record: Callable[[Any], None] = lambda context: None) -> Any:
    """A handler that answers without receiving the message.

    It is a stream handler, whatever the method is: for a unary request gRPC receives the
    message before it calls the handler, and for a unary response it sends an empty message
    before the status of a refusal. ``record`` is called with the context of the call.
    """

    async def refuse(requests: Any, context: Any) -> AsyncGenerator[bytes, None]:
        record(context)
        answer.give(context)
        return
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)


class _Method:
    """One method as the generated code describes it, with its declared properties."""

    def __init__(self, full_name: str, handler: Any, recorder: CallRecorder) -> None:
        self.name = full_name.rpartition("/")[2]
        self._full_name = full_name
        self._recorder = recorder
        self._read = handler.request_deserializer
        self._write = handler.response_serializer
        self._streams = bool(handler.response_streaming)
        self._behaviour = (
            handler.unary_stream
            or handler.unary_unary
            or handler.stream_unary
            or handler.stream_stream
        )
        self.terms: Terms | None = getattr(self._behaviour, "terms", None)

    def serving(self, caller: Client | Exporter, metadata: Any, peers: PeerWatch) -> Any:
        """A gRPC handler for one call of this caller."""
        if self._streams:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(caller, metadata, peers), response_serializer=self._write
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(caller, metadata), response_serializer=self._write
        )

    def _unary(
        self, caller: Client | Exporter, metadata: Any
    ) -> Callable[[bytes, Any], Awaitable[Any]]:
        recorder = self._recorder

        async def serve(data: bytes, context: Any) -> Any:
            call, request = recorder.call(self._full_name, metadata, context), None
            try:
                request = self._read(data)
                response = await self._behaviour(caller, request)
            except Exception as error:
                recorder.failed(call, caller, request, error)
                self._answer(error).give(context)
                return None
            except asyncio.CancelledError as error:
                recorder.failed(call, caller, request, error)
                raise
            recorder.answered(call, caller, request, response)
            return response

        return serve

    def _stream(
        self, caller: Client | Exporter, metadata: Any, peers: PeerWatch
    ) -> Callable[[bytes, Any], AsyncGenerator[Any, None]]:
        recorder = self._recorder

        async def serve(data: bytes, context: Any) -> AsyncGenerator[Any, None]:
            call, request = recorder.call(self._full_name, metadata, context), None
            try:
                request = self._read(data)
                with self._arguments(caller, request, context, peers) as arguments:
                    # The generator is closed at once when the caller leaves.
                    async with aclosing(self._behaviour(*arguments)) as messages:
                        async for message in messages:
                            yield message
            except Exception as error:
                recorder.failed(call, caller, request, error)
                self._answer(error).give(context)

        return serve

    @contextmanager
    def _arguments(
        self, caller: Client | Exporter, request: Any, context: Any, peers: PeerWatch
    ) -> Iterator[tuple[Any, ...]]:
        """What the function of a stream is called with, while the stream is open."""
        assert self.terms is not None
        if not self.terms.watched:
            yield caller, request
            return
        with peers.watching(context.peer()) as peer:
            yield caller, request, peer

    def _answer(self, error: Exception) -> Answer:
        if isinstance(error, DecodeError):
            return UNREADABLE
        if isinstance(error, LabError):
            assert self.terms is not None
            return answer_to(error, human=self.terms.human)
        log.error("call failed", exc_info=error, extra={"key": self.name})
        return FAILED
