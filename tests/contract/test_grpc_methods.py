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

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.audit.events import ANONYMOUS, AuditEvent
from bullpen.errors import BadRequest, Forbidden, NotFound, TooManyRequests, Unauthorized
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.protocol import claims_pb2
from bullpen.services.callers import Claim
from bullpen.services.grpc.controller import ControllerServicer, selector_of
from bullpen.services.grpc.methods import Admits, Methods, method
from bullpen.services.grpc.peer_watch import PeerWatch
from bullpen.services.grpc.recording import CHANGES, CLAIMED, UNCHANGING, Call, CallRecorder
from bullpen.services.grpc.server import SERVICES

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


class Audit:
    """A sink that keeps the newest event, so that refused calls leave nothing behind."""

    def __init__(self) -> None:
        self.count = 0
        self.last: AuditEvent | None = None

    def record(self, event: AuditEvent) -> None:
        self.count += 1
        self.last = event


class Servicer(ControllerServicer):
    """Refuses what it has read, as our services do for many reasons."""

    def __init__(self) -> None:
        self.read = 0
        self.audit = Audit()

    @method(Admits.CLIENT)
    async def RequestLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.RequestLeaseResponse(name="fresh")

    @method(Admits.CLIENT)
    async def Dial(self, client: Client, request: Any) -> Any:  # noqa: N802
        raise TooManyRequests("10 streams are open; the limit is 10")

    @method(Admits.EITHER)
    async def ReleaseLease(self, caller: Client | Exporter, request: Any) -> Any:  # noqa: N802
        raise NotFound(f"there is no lease {request.name}")

    @method(Admits.EXPORTER)
    async def ReportStatus(self, exporter: Exporter, request: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.ReportStatusResponse()

    @method(Admits.CLIENT)
    async def ListLeases(self, client: Client, request: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.ListLeasesResponse()

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
    recorder = CallRecorder(servicer.audit, clock=SystemClock(), ids=RandomIds())
    methods: Any = Methods(recorder)
    server = grpc.aio.server(interceptors=(methods,))
    jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(servicer, methods)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    methods.admit(Gate(), PeerWatch(port))
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


async def recorded(name: str, request: Any, token: str = "good") -> AuditEvent:
    """The audit event of one call, which must be the only one."""
    servicer = Servicer()
    async with serving(servicer) as channel:
        await refused(channel, name, request.SerializeToString(), headers(token))
    assert servicer.audit.count == 1
    assert servicer.audit.last is not None
    return servicer.audit.last


async def test_a_call_that_changes_something_is_recorded_with_who_from_where_and_what() -> None:
    event = await recorded("RequestLease", jumpstarter_pb2.RequestLeaseRequest())
    assert (event.verb, event.code, event.source) == ("create", 200, "127.0.0.1")
    assert event.user.name.startswith("internal:client:default:alice:")
    assert event.user.groups == ("jumpstarter:clients", "jumpstarter:clients:default")
    assert event.uri == "/jumpstarter.v1.ControllerService/RequestLease"
    assert event.user_agent.startswith("grpc-python")
    assert event.target is not None
    assert (event.target.resource, event.target.namespace, event.target.name) == (
        "leases",
        "default",
        "fresh",
    )


@pytest.mark.parametrize(
    ("name", "request_", "code", "reason"),
    [
        pytest.param(
            "Dial", jumpstarter_pb2.DialRequest(lease_name="l"), 429, "TooManyRequests", id="quota"
        ),
        pytest.param(
            "ReleaseLease",
            jumpstarter_pb2.ReleaseLeaseRequest(name="l"),
            404,
            "NotFound",
            id="a change that failed",
        ),
        pytest.param(
            "GetLease",
            jumpstarter_pb2.GetLeaseRequest(name="l"),
            403,
            "Forbidden",
            id="a read that was refused",
        ),
    ],
)
async def test_a_refused_call_is_recorded_with_its_reason(
    name: str, request_: Any, code: int, reason: str
) -> None:
    event = await recorded(name, request_)
    assert (event.code, event.reason) == (code, reason)
    assert event.target is None or event.target.name == "l"


async def test_a_stranger_s_call_is_recorded_as_what_it_claims_and_without_its_token() -> None:
    request = jumpstarter_pb2.RequestLeaseRequest()
    event = await recorded("RequestLease", request, token="hunter2")
    assert (event.user, event.code) == (ANONYMOUS, 401)
    assert event.annotations == {CLAIMED: "Client default alice"}
    assert "hunter2" not in repr(event)


async def test_reads_and_reports_are_not_recorded() -> None:
    servicer = Servicer()
    async with serving(servicer) as channel:
        for name, request, kind in (
            ("ListLeases", jumpstarter_pb2.ListLeasesRequest(), "Client"),
            ("ReportStatus", jumpstarter_pb2.ReportStatusRequest(), "Exporter"),
        ):
            data = request.SerializeToString()
            code = await refused(channel, name, data, headers("good", kind))
            assert code is grpc.StatusCode.OK
        assert servicer.audit.count == 0
        releasing = jumpstarter_pb2.ReportStatusRequest(release_lease=True).SerializeToString()
        await refused(channel, "ReportStatus", releasing, headers("good", "Exporter"))
    assert servicer.audit.count == 1


def test_every_method_is_known_to_change_something_or_not() -> None:
    from jumpstarter_protocol import client_pb2

    found = {
        name
        for module, service in zip((jumpstarter_pb2, client_pb2, claims_pb2), SERVICES, strict=True)
        for name in module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name
    }
    assert found == set(CHANGES) | UNCHANGING
    assert not set(CHANGES) & UNCHANGING


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("unix:/run/x", "/run/x"),
    ],
)
def test_the_source_of_a_call_is_its_address(peer: str, address: str) -> None:
    now = SystemClock().now()
    assert Call(method="/s/M", received=now, peer=peer, metadata=()).source == address
