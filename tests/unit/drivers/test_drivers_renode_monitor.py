"""What Renode prints on its standard streams, taken apart: answers, failures and the log."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bullpen.drivers.renode_monitor import MonitorRefused, MonitorSilent, RenodeMonitor

RECORD = b'12:00:01.0000 [WARNING] uart0: "mark_1 done" "mark_1 end" (monitor)\n'


class Pipe(asyncio.WriteTransport):
    """Hands what is written to the monitor's answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def write(self, data: Any) -> None:
        self._answer(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""


def monitor(printed: bytes, size: int = 1) -> tuple[RenodeMonitor, list[str]]:
    """A monitor that gets this answer to its command, in pieces."""
    log: list[str] = []
    found = RenodeMonitor("mark", log.append)

    def answer(_: bytes) -> None:
        for start in range(0, len(printed), size):
            found.data_received(printed[start : start + size])

    found.attach(Pipe(answer))
    return found, log


def in_time() -> float:
    return time.monotonic() + 30


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_answer_is_found_between_and_within_records_of_the_log(size: int) -> None:
    printed = (
        b"(monitor) currentTime; string mark_1 done\r\n"
        b"Current \x1b[32mvir" + RECORD + b"tual\x1b[0m time: 1\r\n"
        b'"mark_1 d'
        + RECORD
        + b'one"\r\n(monitor) string mark_1 end\r\n"mark_1 '
        + RECORD
        + b'end"\r\n'
    )
    found, log = monitor(printed, size)
    assert await found.execute("currentTime", in_time()) == "Current virtual time: 1"
    assert log == [RECORD.decode().rstrip()] * 3


async def test_a_command_that_fails_is_told_by_what_is_not_executed_after_it() -> None:
    found, _ = monitor(
        b"(monitor) nonsense; string mark_1 done\n"
        b"No such command or device: nonsense\n"
        b'(monitor) string mark_1 end\n"mark_1 end"\n(monitor) '
    )
    with pytest.raises(MonitorRefused, match="'nonsense': No such command or device: nonsense"):
        await found.execute("nonsense", in_time())


async def test_a_renode_that_ends_or_says_nothing_is_not_waited_for() -> None:
    found, _ = monitor(b"")
    with pytest.raises(MonitorSilent, match="does not answer"):
        await found.execute("start", time.monotonic() + 0.05)
    found.connection_lost(None)
    with pytest.raises(MonitorSilent, match="has ended"):
        await found.execute("start", in_time())


async def test_the_first_prompt_has_no_end_of_line() -> None:
    found, _ = monitor(b"")
    found.data_received(RECORD + b"Renode, version 1\n\n(moni")
    waiting = asyncio.create_task(found.prompt(in_time()))
    await asyncio.sleep(0)
    assert not waiting.done()
    found.data_received(b"tor) ")
    await waiting
