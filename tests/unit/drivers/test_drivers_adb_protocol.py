"""An adb server that refuses, says something else, or nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bullpen.drivers.adb_protocol import Adb, AdbFailed, AdbSession


@pytest.fixture
def pair() -> Iterator[tuple[AdbSession, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield AdbSession(ours, 0, 0.2), theirs


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"FAIL0010device not found", "device not found"),
        (b"FAILwhat", "something else than an answer"),
        (b"WHAT", "said b'WHAT'"),
    ],
)
async def test_a_refusal_has_the_reason(
    pair: tuple[AdbSession, socket.socket], answer: bytes, words: str
) -> None:
    session, theirs = pair
    theirs.sendall(answer)
    with pytest.raises(AdbFailed, match=words):
        await session.ask("host:transport:emulator-5554")
    assert theirs.recv(100) == b"001chost:transport:emulator-5554"


async def test_a_silent_server_is_not_waited_for(pair: tuple[AdbSession, socket.socket]) -> None:
    session, theirs = pair
    with pytest.raises(AdbFailed, match="does not answer"):
        await session.ask("host:version")
    theirs.close()
    with pytest.raises(AdbFailed, match=r"closed the connection|does not answer"):
        await session.ask("host:version")


async def test_what_a_device_says_is_bounded(pair: tuple[AdbSession, socket.socket]) -> None:
    session, theirs = pair
    theirs.sendall(b"x" * 80_000)
    theirs.close()
    assert 1 << 16 <= len(await session.rest()) < 1 << 17


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = socket.socket()
    made.setblocking(False)
    with pytest.raises(AdbFailed, match="the adb server does not answer"):
        await Adb(lambda: made, port).version()
