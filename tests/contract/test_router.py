"""The router, spoken to by the published gRPC client."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import grpc
import pytest

from bullpen.identity.subjects import Role
from bullpen.services.router import frames
from bullpen.services.router.leg import LINGER_SECONDS
from support.router_helpers import RunningRouter, data, running_router


async def read(call: object, count: int) -> list[bytes]:
    return [(await call.read()).payload for _ in range(count)]  # type: ignore[attr-defined]


async def test_bytes_of_any_size_arrive_both_ways_in_order() -> None:
    chance = random.Random(7)
    sizes = [
        0,
        1,
        17,
        16_383,
        16_384,
        65_536,
        1_000_000,
        *(chance.randrange(200_000) for _ in range(40)),
    ]
    there = [chance.randbytes(size) for size in sizes]
    back = [chance.randbytes(size) for size in reversed(sizes)]
    async with (
        running_router() as running,
        running.leg(running.token(Role.CLIENT)) as client,
        running.leg(running.token(Role.EXPORTER)) as exporter,
    ):

        async def send(call: object, payloads: list[bytes]) -> None:
            for payload in payloads:
                await call.write(data(payload))  # type: ignore[attr-defined]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send(client, there))
            tasks.create_task(send(exporter, back))
            at_exporter = tasks.create_task(read(exporter, len(there)))
            at_client = tasks.create_task(read(client, len(back)))
        assert at_exporter.result() == there
        assert at_client.result() == back
        await client.done_writing()
        await exporter.done_writing()
        assert await client.read() is grpc.aio.EOF
        assert await client.code() is grpc.StatusCode.OK
        assert await exporter.code() is grpc.StatusCode.OK
    assert running.sessions[-1].ended is not None
    assert running.sessions[-1].from_client > sum(map(len, there))


async def test_what_is_sent_before_the_other_side_comes_is_kept() -> None:
    async with running_router() as running, running.leg(running.token(Role.CLIENT)) as client:
        await client.write(data(b"early"))
        await asyncio.sleep(0.05)
        async with running.leg(running.token(Role.EXPORTER)) as exporter:
            assert await read(exporter, 1) == [b"early"]


async def test_after_one_side_ended_the_other_goes_on() -> None:
    async with (
        running_router() as running,
        running.leg(running.token(Role.CLIENT)) as client,
        running.leg(running.token(Role.EXPORTER)) as exporter,
    ):
        await client.write(data(b"last"))
        await client.done_writing()
        assert await read(exporter, 1) == [b"last"]
        for number in range(5):
            await exporter.write(data(b"%d" % number))
        assert await read(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await exporter.done_writing()
        assert await client.code() is grpc.StatusCode.OK


async def test_when_one_side_vanishes_the_other_comes_to_its_end() -> None:
    async with (
        running_router() as running,
        running.leg(running.token(Role.CLIENT)) as client,
        running.leg(running.token(Role.EXPORTER)) as exporter,
    ):
        await client.write(data(b"x"))
        assert await read(exporter, 1) == [b"x"]
        exporter.cancel()
        assert await client.read() is grpc.aio.EOF
        assert await client.code() is grpc.StatusCode.OK


async def test_when_one_side_vanishes_with_bytes_on_their_way_the_other_is_told() -> None:
    async with running_router() as running, running.leg(running.token(Role.CLIENT)) as client:
        async with running.leg(running.token(Role.EXPORTER)) as exporter:
            await client.write(data(b"x"))
            assert await read(exporter, 1) == [b"x"]
            # Nobody reads at the client, so that the router is left holding some of this.
            big = asyncio.ensure_future(_write_all(exporter, b"y" * (1 << 20), times=4))
            await asyncio.sleep(0.3)
            exporter.cancel()
            await asyncio.gather(big, return_exceptions=True)
        with pytest.raises(grpc.aio.AioRpcError):
            await _read_all(client)
        assert await client.code() is not grpc.StatusCode.OK


async def _read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def _write_all(call: Any, payload: bytes, *, times: int) -> None:
    for _ in range(times):
        await call.write(data(payload))


async def test_an_ended_lease_cuts_its_streams_and_admits_no_more() -> None:
    async with running_router() as running:
        async with (
            running.leg(running.token(Role.CLIENT)) as client,
            running.leg(running.token(Role.EXPORTER)) as exporter,
        ):
            await client.write(data(b"x"))
            assert await read(exporter, 1) == [b"x"]
            assert running.router.fence("lease-1", 1) == 2
            await client.write(data(b"too late"))
            assert await exporter.read() is grpc.aio.EOF
            assert await client.read() is grpc.aio.EOF
            assert await client.code() is grpc.StatusCode.OK
            assert await exporter.code() is grpc.StatusCode.OK
        async with running.leg(running.token(Role.CLIENT, stream="s2")) as late:
            assert await late.code() is grpc.StatusCode.UNAUTHENTICATED
        assert running.router.load == 0


async def test_a_caller_that_ends_its_cut_stream_itself_is_done_at_once() -> None:
    async with (
        running_router() as running,
        running.leg(running.token(Role.CLIENT)) as client,
        running.leg(running.token(Role.EXPORTER)) as exporter,
    ):
        await client.write(data(b"x"))
        assert await read(exporter, 1) == [b"x"]
        running.router.fence("lease-1", 1)
        await client.done_writing()
        async with asyncio.timeout(LINGER_SECONDS / 2):
            assert await client.code() is grpc.StatusCode.OK


async def test_a_later_epoch_of_a_lease_is_not_cut_with_the_earlier_one() -> None:
    """What a transfer does: the client before is shut out, the new one is not."""
    async with running_router() as running:
        async with (
            running.leg(running.token(Role.CLIENT, epoch=2)) as client,
            running.leg(running.token(Role.EXPORTER, epoch=2)) as exporter,
        ):
            await client.write(data(b"x"))
            assert await read(exporter, 1) == [b"x"]
            assert running.router.fence("lease-1", 1) == 0
            await client.write(data(b"y"))
            assert await read(exporter, 1) == [b"y"]
        assert await refused(running, running.token(Role.CLIENT, stream="s2")) == (
            grpc.StatusCode.UNAUTHENTICATED
        )


async def refused(running: RunningRouter, token: str) -> grpc.StatusCode:
    async with running.leg(token) as call:
        code: grpc.StatusCode = await call.code()
        return code


async def test_tokens_that_are_not_ours_are_refused() -> None:
    async with running_router() as running:
        good = running.token(Role.CLIENT)
        head, payload, signature = good.split(".")
        forged = [
            "",
            "nonsense",
            good[:-4] + "AAAA",
            f"eyJhbGciOiJub25lIn0.{payload}.",
            f"{head}.{payload}.{signature[::-1]}",
            running.token(Role.CLIENT, lifetime=timedelta(seconds=-1)),
        ]
        for token in forged:
            assert await refused(running, token) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_pairs_once() -> None:
    async with running_router() as running, running.leg(running.token(Role.CLIENT)) as client:
        await client.write(data(b"x"))
        await asyncio.sleep(0.05)
        assert await refused(running, running.token(Role.CLIENT)) is grpc.StatusCode.UNAUTHENTICATED
        async with running.leg(running.token(Role.EXPORTER)) as exporter:
            assert await read(exporter, 1) == [b"x"]


@pytest.mark.parametrize(
    ("lease", "epoch"),
    [
        pytest.param("lease-2", 1, id="another lease"),
        pytest.param("lease-1", 2, id="a later epoch"),
    ],
)
async def test_sides_of_different_leases_never_meet(lease: str, epoch: int) -> None:
    async with running_router() as running, running.leg(running.token(Role.CLIENT)) as client:
        await client.write(data(b"x"))
        await asyncio.sleep(0.05)
        token = running.token(Role.EXPORTER, lease=lease, epoch=epoch)
        assert await refused(running, token) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_slow_reader_slows_its_writer_and_nothing_is_lost() -> None:
    payload = b"z" * 65_536
    async with (
        running_router() as running,
        running.leg(running.token(Role.CLIENT)) as client,
        running.leg(running.token(Role.EXPORTER)) as exporter,
    ):
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(400):
                await client.write(data(payload))
                sent += 1

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send())
            await read(exporter, 1)
            await asyncio.sleep(0.3)
            # Windows of both hops and the client's own buffers, far below what is to be sent.
            assert sent < 350
            for _ in range(399):
                assert len((await exporter.read()).payload) == len(payload)
            await sending


async def test_other_paths_are_unimplemented() -> None:
    async with (
        running_router() as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        call = channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("the lease has ended", "the lease has ended"),
        ("100 %", "100 %25"),
        ("Prüfstand\n", "Pr%C3%BCfstand%0A"),
    ],
)
def test_a_message_is_escaped_as_grpc_does_it(text: str, sent: str) -> None:
    assert frames._percent(text) == sent
