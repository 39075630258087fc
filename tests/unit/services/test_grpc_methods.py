"""Calls over gRPC: refused before they are received, and refused without leaving anything."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import pytest
from jumpstarter_protocol import jumpstarter_pb2, jumpstarter_pb2_grpc, kubernetes_pb2

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.errors import BadRequest, Forbidden, Unauthorized
from bullpen.services.callers import Claim
from bullpen.services.grpc.controller import ControllerServicer, selector_of
from bullpen.services.grpc.methods import Admits, Methods, method

CALLS = 100
MESSAGE_BYTES = 100_000
HELD_BYTES_MAX = 2_000_000
"""Of the ten million that were sent."""


class Gate:
    """Admits those who say that their token is good."""

    async def client(self, claim: Claim) -> Client:
        _check(claim)
        return Client(metadata=ObjectMeta(name=claim.name, namespace=claim.namespace))

    async def exporter(self, claim: Claim) -> Exporter:
        _check(claim)
        return Exporter(metadata=ObjectMeta(name=claim.name, namespace=claim.namespace))


def _check(claim: Claim) -> None:
    if claim.token != "good":
        raise Unauthorized("the token is not valid here")


class Servicer(ControllerServicer):
    """Refuses what it has read, as our services do for many reasons."""

    def __init__(self) -> None:
        self.read = 0

    @method(Admits.CLIENT)
    async def GetLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        self.read += 1
        raise Forbidden(f"permission denied: {request.name[:8]} belongs to another client")

    @method(Admits.EXPORTER)
    async def Listen(  # noqa: N802
        self, exporter: Exporter, request: Any
    ) -> AsyncGenerator[Any, None]:
        self.read += 1
        yield jumpstarter_pb2.ListenResponse(router_endpoint="here")
        raise Forbidden("the lease is over")


@contextlib.asynccontextmanager
async def serving(servicer: Servicer) -> AsyncIterator[Any]:
    methods: Any = Methods()
    methods.admit(Gate())
    server = grpc.aio.server(interceptors=(methods,))
    jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(servicer, methods)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def headers(token: str, kind: str = "Client") -> tuple[tuple[str, str], ...]:
    return (
        ("authorization", f"Bearer {token}"),
        ("jumpstarter-kind", kind),
        ("jumpstarter-namespace", "default"),
        ("jumpstarter-name", "alice"),
    )


async def refused(channel: Any, name: str, data: bytes, metadata: Any) -> grpc.StatusCode:
    path = f"/jumpstarter.v1.ControllerService/{name}"
    kind = channel.unary_stream if name == "Listen" else channel.unary_unary
    call = kind(path)(data, metadata=metadata)
    if name == "Listen":
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize(
    ("name", "token", "expected"),
    [
        pytest.param("GetLease", "bad", grpc.StatusCode.UNAUTHENTICATED, id="a stranger"),
        pytest.param("GetLease", "good", grpc.StatusCode.PERMISSION_DENIED, id="a client"),
        pytest.param("Listen", "bad", grpc.StatusCode.UNAUTHENTICATED, id="a stranger's stream"),
        pytest.param("Listen", "good", grpc.StatusCode.PERMISSION_DENIED, id="a stream"),
        pytest.param("AuditStream", "good", grpc.StatusCode.UNIMPLEMENTED, id="not supported"),
    ],
)
async def test_refused_calls_leave_no_request_for_the_garbage_collector(
    name: str, token: str, expected: grpc.StatusCode
) -> None:
    data = jumpstarter_pb2.GetLeaseRequest(name="x" * MESSAGE_BYTES).SerializeToString()
    metadata = headers(token, "Exporter" if name == "Listen" else "Client")
    async with serving(Servicer()) as channel:
        await refused(channel, name, data, metadata)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(CALLS):
                assert await refused(channel, name, data, metadata) is expected
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < HELD_BYTES_MAX


async def test_a_stranger_s_message_is_never_read() -> None:
    servicer = Servicer()
    async with serving(servicer) as channel:
        code = await refused(channel, "GetLease", b"\xff no message", headers("bad"))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert servicer.read == 0


async def test_bytes_that_are_not_a_message_are_refused_once_the_caller_is_known() -> None:
    async with serving(Servicer()) as channel:
        for name in ("GetLease", "Listen"):
            metadata = headers("good", "Exporter" if name == "Listen" else "Client")
            code = await refused(channel, name, b"\xff no message", metadata)
            assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_refused_stream_has_no_message_before_its_status() -> None:
    """The stock exporter takes any message on its Status stream for news."""
    async with serving(Servicer()) as channel:
        call = channel.unary_stream("/jumpstarter.v1.ControllerService/Listen")(
            b"", metadata=headers("bad", "Exporter")
        )
        with pytest.raises(grpc.aio.AioRpcError):
            assert [message async for message in call] == []


@pytest.mark.parametrize("operator", ["Near", "", "in"])
def test_a_match_expression_that_is_not_understood_is_refused(operator: str) -> None:
    expression = kubernetes_pb2.LabelSelectorRequirement(
        key="board", operator=operator, values=["a"]
    )
    asked = kubernetes_pb2.LabelSelector(match_labels={"lab": "x"}, match_expressions=[expression])
    with pytest.raises(BadRequest, match="is not an operator"):
        selector_of(asked)


def test_match_expressions_become_requirements() -> None:
    expressions = [
        kubernetes_pb2.LabelSelectorRequirement(key="board", operator="In", values=["a", "b"]),
        kubernetes_pb2.LabelSelectorRequirement(key="broken", operator="DoesNotExist"),
    ]
    asked = kubernetes_pb2.LabelSelector(match_labels={"lab": "x"}, match_expressions=expressions)
    assert str(selector_of(asked)) == "board in (a,b),!broken,lab=x"
