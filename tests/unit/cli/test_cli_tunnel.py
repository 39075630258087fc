"""The socket of a leased target: what is left of its connections when it closes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bullpen.client.config import ClientConfig
from bullpen.client.tunnel import Tunnel

CONFIG = ClientConfig(name="", namespace="", endpoint="", token="")


async def test_connections_that_are_open_when_the_socket_closes_end_silently(
    tmp_path: Path,
) -> None:
    """A program may leave its connection open; asyncio printed a traceback for it."""
    dialled, complaints = asyncio.Event(), list[dict[str, Any]]()

    async def dial() -> tuple[str, str]:
        dialled.set()
        await asyncio.Event().wait()
        raise AssertionError("it is never answered")

    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    path = tmp_path / "socket"
    async with Tunnel(CONFIG, dial).listening(path):
        reader, writer = await asyncio.open_unix_connection(path)
        await dialled.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left
    assert await reader.read() == b""
    writer.close()
    await asyncio.sleep(0)
    assert not complaints
