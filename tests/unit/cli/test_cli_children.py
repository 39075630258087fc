"""Programs that a busy service starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUSY_SERVICE = """
import asyncio, subprocess, sys
from bullpen.cli.main import leave_forks_alone
leave_forks_alone()
import grpc, uvloop

async def answer(request, context):
    return b"answer"

async def main():
    server = grpc.aio.server()
    methods = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    handler = grpc.method_handlers_generic_handler("busy.Service", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def traffic():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/busy.Service/Ask")
            while True:
                await ask(b"question")

    callers = [asyncio.create_task(traffic()) for _ in range(4)]
    codes = set()
    for _ in range(400):
        child = await asyncio.create_subprocess_exec("true", stderr=subprocess.DEVNULL)
        codes.add(await child.wait())
    print(sorted(codes))
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    await server.stop(None)

uvloop.run(main())
"""


@pytest.mark.slow
def test_programs_started_beside_grpc_calls_are_not_aborted() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BUSY_SERVICE],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.stdout == "[0]\n", ended.stderr
