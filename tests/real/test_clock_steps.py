"""The service as a process whose wall clock is set by hours while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from exporter_fake import running_fakes

from support.grpc_caller import Caller, calling
from support.lab_helpers import Lab
from support.real_service import Service

pytestmark = pytest.mark.real

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's ``libfaketime``: a library that sets the clock of one process."""

HOUR, MINUTE, NOT_AT_ALL = timedelta(hours=1), timedelta(minutes=1), timedelta(0)

PROMPT_SECONDS = 2.0
"""The promise: an overdue lease ends within this time."""

BUSY_SECONDS = 10.0
"""Added for a machine that is busy with other tests; before the fix it took an hour."""


class SteppedService(Service):
    """A service whose wall clock is set by a test; its steady time goes on."""

    def __init__(self, data: Path) -> None:
        assert FAKETIME is not None, "libfaketime is missing; make setup installs it"
        super().__init__(data, "--port-base", "0")
        self._offset = data.parent / "clock-offset"
        self.set_clock(NOT_AT_ALL)
        self.program = [
            "env",
            f"LD_PRELOAD={FAKETIME}",
            f"FAKETIME_TIMESTAMP_FILE={self._offset}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            *self.program,
        ]

    def set_clock(self, offset: timedelta) -> None:
        """Set the clock of the service to the time of this machine plus ``offset``."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{offset.total_seconds():+.0f}s\n")
        os.replace(fresh, self._offset)


class SteppedLab(Lab):
    def __init__(self, service: SteppedService) -> None:
        super().__init__(service)
        self.set_clock = service.set_clock

    async def until_ended(self, lease: str, *, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.get("leases", lease)["status"].get("ended"):
            assert loop.time() < deadline, f"{lease} was not ended within {seconds} s"
            await asyncio.sleep(0.1)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SteppedLab]:
    service = SteppedService(tmp_path / "data")
    service.start()
    try:
        yield SteppedLab(service)
    finally:
        assert service.stop() == 0, service.log.read_text()


@contextlib.asynccontextmanager
async def alice(lab: Lab) -> AsyncIterator[Caller]:
    """A client in a lab with one exporter."""
    board, config = lab.exporter("board", {"board": "one"}), lab.client("alice")
    async with running_fakes(board), calling(config) as client:
        yield client


async def acquired(client: Caller, *, lasts: timedelta) -> str:
    lease = await client.create_lease("board=one", lasts=lasts.total_seconds())
    await client.acquired(lease)
    return lease


async def test_a_lease_that_a_clock_an_hour_ahead_makes_overdue_ends_at_once(
    lab: SteppedLab,
) -> None:
    async with alice(lab) as client:
        lease = await acquired(client, lasts=30 * MINUTE)
        lab.set_clock(HOUR)
        await lab.until_ended(lease, seconds=PROMPT_SECONDS + BUSY_SECONDS)


async def test_a_lease_ends_after_its_duration_although_the_clock_is_an_hour_back(
    lab: SteppedLab,
) -> None:
    async with alice(lab) as client:
        lease = await acquired(client, lasts=timedelta(seconds=5))
        lab.set_clock(-HOUR)
        await lab.until_ended(lease, seconds=5 + PROMPT_SECONDS + BUSY_SECONDS)


async def test_a_booked_end_is_kept_although_the_clock_was_an_hour_back_meanwhile(
    lab: SteppedLab,
) -> None:
    async with alice(lab) as client:
        end = datetime.now(UTC) + timedelta(seconds=15)
        wanted = {
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "one"}},
            "endTime": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        }
        lab.create("leases", "booked", spec=wanted)
        await client.acquired("booked")
        lab.set_clock(-HOUR)
        # Another lease is a reason for a pass, in which the service computes when to look again.
        await client.delete_lease(await client.create_lease("board=one", lasts=60))
        await asyncio.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds() - 2))
        assert not lab.get("leases", "booked")["status"].get("ended")
        lab.set_clock(NOT_AT_ALL)
        await lab.until_ended("booked", seconds=2 + PROMPT_SECONDS + BUSY_SECONDS)


async def test_a_used_stream_token_stays_used_although_the_clock_was_ahead(
    lab: SteppedLab,
) -> None:
    async with alice(lab) as client:
        lease = await acquired(client, lasts=2 * HOUR)
        first = await client.dial(lease)
        assert (await answer(client, first)).endswith(lease.encode())
        lab.set_clock(40 * MINUTE)
        assert (await answer(client, await client.dial(lease))).endswith(lease.encode())
        lab.set_clock(NOT_AT_ALL)
        with pytest.raises(grpc.aio.AioRpcError, match="already used"):
            await answer(client, first)


async def answer(client: Caller, call: Any) -> bytes:
    """The frame with which the exporter answers."""
    async with client.tunnel(call) as stream:
        found = await asyncio.wait_for(stream.read(), 20)
        return bytes(found.payload)
