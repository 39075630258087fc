"""People without a token, against the real service: what they may cost it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml

from support.grpc_caller import calling
from support.lab_helpers import Lab
from support.real_service import running_service

pytestmark = pytest.mark.real

REFUSED_CALLS = 1_000
MESSAGE_BYTES = 900_000
"""Under what the service receives, so that only its way of refusing keeps it small."""

CALLERS = 8
HELD_BYTES_MAX = 100 << 20
"""Of 900 MB that were sent."""

METHODS = (
    "/jumpstarter.client.v1.ClientService/CreateLease",
    "/jumpstarter.v1.ControllerService/Register",
    "/jumpstarter.v1.ControllerService/Listen",
    "/grpc.health.v1.Health/Check",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_service(tmp_path_factory.mktemp("strangers")) as service:
        made = Lab(service)
        made.client("alice")
        made.exporter("board", {"board": "b"})
        yield made


def stranger(config: dict[str, Any]) -> Any:
    authority = base64.b64decode(config["tls"]["ca"])
    return grpc.secure_channel(config["endpoint"], grpc.ssl_channel_credentials(authority))


def alice_config(lab: Lab) -> dict[str, Any]:
    path: Path = lab.service.home / "client-default-alice.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("token", ["", "Bearer not.a.token"], ids=["no token", "a false token"])
def test_a_thousand_refused_grpc_calls_leave_no_memory_held(lab: Lab, token: str) -> None:
    assert lab.service.process is not None
    config = alice_config(lab)
    headers = [("jumpstarter-kind", "Client"), ("jumpstarter-namespace", "default")]
    headers += [("jumpstarter-name", "alice")] + ([("authorization", token)] if token else [])
    message = b"\x0a" + _varint(MESSAGE_BYTES) + b"x" * MESSAGE_BYTES

    def refused(number: int) -> grpc.StatusCode:
        call = channel.unary_unary(METHODS[number % len(METHODS)])
        with pytest.raises(grpc.RpcError) as error:
            call(message, metadata=headers, timeout=60)
        code: grpc.StatusCode = error.value.code()
        return code

    with stranger(config) as channel, ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(refused, range(CALLERS)))
        before = psutil.Process(lab.service.process.pid).memory_info().rss
        codes = set(threads.map(refused, range(REFUSED_CALLS)))
    held = psutil.Process(lab.service.process.pid).memory_info().rss - before
    assert grpc.StatusCode.INTERNAL not in codes
    assert held < HELD_BYTES_MAX, f"{held >> 20} MiB are held after {REFUSED_CALLS} refused calls"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def test_a_stranger_is_refused_before_its_message_is_received(lab: Lab) -> None:
    """The answer comes although the message never does."""
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield b""

    with stranger(alice_config(lab)) as channel:
        call = channel.stream_unary("/jumpstarter.v1.ControllerService/Register")
        try:
            with pytest.raises(grpc.RpcError) as error:
                call(never(), timeout=10)
        finally:
            over.set()
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_answered_without_a_token_and_cannot_be_watched(lab: Lab) -> None:
    config = lab.service.home / "client-default-alice.yaml"
    async with calling(config) as caller:
        watch = caller.channel.unary_stream("/grpc.health.v1.Health/Watch")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in watch(b""):
                pass
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        check = caller.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await check(b"\x0a\x03abc")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
