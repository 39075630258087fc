"""A serial line loses nothing that somebody could still want to read, and never grows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from anyio import EndOfStream

from bullpen.drivers import console
from bullpen.drivers.console import UNREAD_BYTES_MAX, ConsoleStream, SerialLine


class Machine:
    """The guest's end of a line."""

    def __init__(self) -> None:
        self.line = SerialLine()
        self._end: socket.socket | None = None

    async def switch_on(self) -> None:
        self.switch_off()
        ours, self._end = socket.socketpair()
        self._end.setblocking(False)
        await self.line.plug(ours)

    def switch_off(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None

    async def prints(self, data: bytes) -> None:
        assert self._end is not None
        await asyncio.get_running_loop().sock_sendall(self._end, data)
        await asyncio.sleep(0.01)

    async def hears(self) -> bytes:
        assert self._end is not None
        return await asyncio.get_running_loop().sock_recv(self._end, 100)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    made = Machine()
    await made.switch_on()
    yield made
    made.switch_off()
    await asyncio.sleep(0.01)


async def all_of(stream: ConsoleStream) -> bytes:
    """Everything until it is closed."""
    await stream.aclose()
    found = b""
    try:
        while True:
            found += await stream.receive()
    except EndOfStream:
        return found


async def test_what_was_printed_before_it_was_opened_is_there(machine: Machine) -> None:
    await machine.prints(b"banner\r\n")
    stream = machine.line.open()
    await machine.prints(b"prompt")

    assert await all_of(stream) == b"banner\r\nprompt"


async def test_the_end_of_the_last_run_does_not_disconnect_the_next(machine: Machine) -> None:
    stream = machine.line.open()
    # The loop has not noticed the end of the first run when the second one is connected.
    await machine.switch_on()
    await asyncio.sleep(0.01)

    await stream.send(b"boot")

    assert await asyncio.wait_for(machine.hears(), 10) == b"boot"


async def test_what_was_read_is_not_read_again(machine: Machine) -> None:
    await machine.prints(b"banner")
    assert await all_of(machine.line.open()) == b"banner"
    assert await all_of(machine.line.open()) == b""


async def test_without_a_reader_the_newest_is_kept_and_the_machine_never_waits(
    machine: Machine,
) -> None:
    await machine.prints(b"old" + bytes(4 * UNREAD_BYTES_MAX) + b"new")
    found = await all_of(machine.line.open())

    assert len(found) == UNREAD_BYTES_MAX
    assert found.endswith(b"new")


async def test_all_who_listen_hear_everything(machine: Machine) -> None:
    streams = [machine.line.open() for _ in range(2)]
    await machine.prints(b"hello")

    assert [await stream.receive() for stream in streams] == [b"hello", b"hello"]


async def test_what_is_typed_reaches_the_machine_if_it_is_on(machine: Machine) -> None:
    stream = machine.line.open()
    await stream.send(b"reset\n")
    assert await machine.hears() == b"reset\n"
    machine.switch_off()
    await asyncio.sleep(0.01)
    await stream.send(b"to nobody")


async def test_it_stays_open_over_power_and_old_words_are_not_taken_for_new(
    machine: Machine,
) -> None:
    stream = machine.line.open()
    await machine.prints(b"first ")
    await machine.switch_on()
    await machine.prints(b"second")
    assert await all_of(stream) == b"first second"
    await machine.prints(b" unread")
    await machine.switch_on()
    await machine.prints(b"third")
    assert await all_of(machine.line.open()) == b"third"


async def test_the_machine_waits_for_a_reader_that_is_far_behind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "BEHIND_BYTES_MAX", 1000)
    stream = machine.line.open()
    total = 8 << 20
    async with asyncio.TaskGroup() as tasks:
        printing = tasks.create_task(machine.prints(bytes(total)))
        await asyncio.sleep(0.05)
        assert not printing.done()
        assert stream.behind < total
        heard = 0
        while heard < total:
            heard += len(await stream.receive())
    assert heard == total


async def test_a_reader_that_leaves_frees_the_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "BEHIND_BYTES_MAX", 1000)
    stream = machine.line.open()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(machine.prints(bytes(8 << 20)))
        await asyncio.sleep(0.05)
        await stream.aclose()
        await stream.aclose()
