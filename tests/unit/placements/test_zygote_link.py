"""A connection to a zygote that has just died."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import uvloop

from bullpen.placements.local import processes
from bullpen.placements.local.connection import Link
from bullpen.placements.local.layout import ZygoteState
from bullpen.placements.local.wire import Ping


def test_a_command_to_a_dead_zygote_fails_nobody_and_its_events_end(tmp_path: Path) -> None:
    """uvloop raises a RuntimeError for it, which ended the whole service."""

    async def story() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        state = ZygoteState(process=processes.identify(os.getpid()), runtime=str(tmp_path))
        link = Link(reader, writer, state, None)
        theirs.close()
        writer.transport.abort()
        await asyncio.sleep(0)
        link.send(Ping())
        assert [event async for event in link.events()] == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
