"""Whatever bytes and headers are sent to the controller, it answers, and not with a bug of ours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from jumpstarter_protocol import client_pb2, jumpstarter_pb2

from support.grpc_caller import calling
from support.lab_helpers import Lab
from support.real_service import running_service

pytestmark = pytest.mark.real

SEED = 20_260_102
CALLS_PER_METHOD = 40
CALL_SECONDS = 1.0
"""Some calls wait for something to happen; that is an answer too."""

UNSENT = "Internal error from Core"
"""What a caller's own library says of a message it could not send, because its call was over."""

MEMORY_GROWTH_BYTES_MAX = 200 << 20
DEPTH_MAX = 3
METHODS = [
    method
    for service in (
        client_pb2.DESCRIPTOR.services_by_name["ClientService"],
        jumpstarter_pb2.DESCRIPTOR.services_by_name["ControllerService"],
    )
    for method in service.methods
]
WORDS = (
    *("", "default", "alice", "board", "namespaces/default", "namespaces/default/leases/x"),
    *("namespaces/default/exporters/board", "namespaces/../leases/x", "../../etc/passwd"),
    *("board=b", "a in (b", "!", "a,b,!c", "=", "\x00", "é" * 300, "x" * 70_000, "a/b/c/d/e/f"),
    *("namespaces//leases/", "leases", "%2e%2e", "*", "spec,spec.selector", "status"),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_service(tmp_path_factory.mktemp("hostile")) as service:
        made = Lab(service)
        made.client("alice")
        made.exporter("board", {"board": "b"})
        yield made


class Maker:
    """Messages nobody would send, from a seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def request(self, method: Any) -> bytes:
        kind = self._chance.random()
        if kind < 0.2:
            return self._chance.randbytes(self._chance.randrange(64))
        data = bytearray(self.message(method.input_type, DEPTH_MAX).SerializeToString())
        if kind < 0.5 and data:
            for _ in range(self._chance.randrange(1, 4)):
                data[self._chance.randrange(len(data))] = self._chance.randrange(256)
        return bytes(data)

    def message(self, descriptor: Any, depth: int) -> Any:
        message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self._chance.random() < 0.6:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: Any, depth: int) -> None:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            getattr(message, field.name)[self._word()] = self._word()
        elif entry is not None:
            if depth:
                value = self.message(entry, depth - 1)
                target = getattr(message, field.name)
                if field.is_repeated:
                    target.append(value)
                else:
                    target.CopyFrom(value)
        elif field.is_repeated:
            getattr(message, field.name).extend(self._scalar(field) for _ in range(3))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Any) -> Any:
        chance = self._chance
        numbers: dict[int, Callable[[], Any]] = {
            FieldDescriptor.TYPE_STRING: self._word,
            FieldDescriptor.TYPE_BYTES: lambda: chance.randbytes(8),
            FieldDescriptor.TYPE_BOOL: lambda: chance.random() < 0.5,
            FieldDescriptor.TYPE_INT64: lambda: chance.choice((0, -1, 60, 2**63 - 1, -(2**63))),
            FieldDescriptor.TYPE_INT32: lambda: chance.choice((0, -1, 999, 2**31 - 1, -(2**31))),
            FieldDescriptor.TYPE_ENUM: lambda: chance.choice((0, 1, 2, 77, -5)),
            FieldDescriptor.TYPE_UINT32: lambda: chance.choice((0, 1, 2**32 - 1)),
        }
        return numbers[field.type]()

    def _word(self) -> str:
        return self._chance.choice(WORDS)

    def headers(self, true: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Mostly the true ones: what is behind them shall be reached."""
        if self._chance.random() < 0.75:
            return true
        odd = {key: value for key, value in true if self._chance.random() < 0.7}
        for key, _ in true:
            if self._chance.random() < 0.3:
                word = self._word()[:200].encode("ascii", "replace").decode().replace("\x00", "0")
                odd[key] = self._chance.choice(("", "Bearer ", "Bearer x.y.z", word))
        return tuple(odd.items())


async def answer(channel: Any, method: Any, data: bytes, headers: Any) -> Any:
    """The code and text of a call with these bytes; None if it was answered well."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    options = {"metadata": headers, "timeout": CALL_SECONDS}
    try:
        if method.client_streaming:
            call = channel.stream_unary(path)(iter((data,)), **options)
            await call
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(data, **options):
                break
        else:
            await channel.unary_unary(path)(data, **options)
    except grpc.aio.AioRpcError as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["Client", "Exporter"])
async def test_no_message_makes_the_controller_fail(lab: Lab, kind: str) -> None:
    assert lab.service.process is not None
    process = psutil.Process(lab.service.process.pid)
    before = process.memory_info().rss
    home = lab.service.home
    config = home / (
        "client-default-alice.yaml" if kind == "Client" else "exporter-default-board.yaml"
    )
    maker = Maker(random.Random(f"{SEED}/{kind}"))
    async with calling(config, kind) as caller:

        async def one(method: Any) -> str:
            data = maker.request(method)
            found = await answer(caller.channel, method, data, maker.headers(caller.headers))
            return "" if found is None else wrong(found, method, data)

        for method in METHODS:
            if method.name == "RotateToken":
                # It would take the token that the other calls need; it has a test of its own.
                continue
            said = await asyncio.gather(*(one(method) for _ in range(CALLS_PER_METHOD)))
            assert not [text for text in said if text]
    assert lab.service.process.poll() is None
    assert process.memory_info().rss - before < MEMORY_GROWTH_BYTES_MAX
    assert "Traceback" not in lab.service.log.read_text()


def wrong(error: Any, method: Any, data: bytes) -> str:
    """What is wrong with a refusal; nothing if it is clear and not a bug's."""
    code, text = error.code(), str(error.details())
    if method.client_streaming and text == UNSENT:
        # It was refused before it had said anything, and the refusal is lost; other calls have it.
        return ""
    if code is grpc.StatusCode.INTERNAL or "internal error" in text or not text:
        return f"{method.name} of {data[:200]!r}: {code.name} {text}"
    return ""


async def test_a_message_over_the_limit_is_refused_and_the_next_one_is_served(lab: Lab) -> None:
    config = lab.service.home / "client-default-alice.yaml"
    async with calling(config) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.client("ListExporters", parent=caller.parent, filter="a," * (1 << 20))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError, match="more than 65536 characters"):
            await caller.client("ListExporters", parent=caller.parent, filter="a," * (1 << 18))
        assert (await caller.client("ListExporters", parent=caller.parent)).exporters


def test_the_lab_still_works(lab: Lab) -> None:
    """Last: after all of it a lease can be made and given back."""
    spec = {
        "clientRef": {"name": "alice"},
        "selector": {"matchLabels": {"board": "b"}},
        "duration": "1m",
    }
    lab.create("leases", "after-all", spec=spec)
    assert lab.get("leases", "after-all")["spec"]["duration"] == "1m"
