"""Silent machines, on real sockets: probing is inherited, and silence is measured."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from bullpen.core.exporters import presence
from bullpen.runtime import silence
from bullpen.services.grpc import sockets
from bullpen.services.grpc.peer_watch import PeerWatch


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket, PeerWatch]]:
    """The caller's side and the accepted side of a connection, and what watches the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = PeerWatch(listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()) as caller:
            accepted, _ = listener.accept()
            with accepted:
                yield caller, accepted, watch


def test_an_unreachable_exporter_is_noticed_within_the_promised_five_seconds() -> None:
    assert silence.DETECTION_SECONDS_MAX < 5
    assert silence.SILENCE_SECONDS_MAX > 3 * silence.PROBE_SECONDS, "three probes may be lost"
    assert presence.GRACE.total_seconds() < 5


def test_accepted_connections_are_probed_as_their_listener_says() -> None:
    with connected() as (_, accepted, _watch):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            assert accepted.getsockopt(socket.IPPROTO_TCP, option) == silence.PROBE_SECONDS


def test_a_machine_that_answers_probes_is_not_silent() -> None:
    """Its program says nothing all the while."""
    with connected() as (_, accepted, _watch):
        asyncio.run(asyncio.sleep(2.5 * silence.PROBE_SECONDS))
        assert not silence.unreachable(accepted)
        assert silence.silence(accepted) < 2 * silence.PROBE_SECONDS


def test_only_a_tcp_connection_can_be_silent() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(OSError):
        silence.silence(one)


def test_the_connection_of_an_unreachable_peer_is_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.01)

    async def story() -> None:
        with connected() as (caller, _accepted, watch):
            own = "{}:{}".format(*caller.getsockname())
            running = asyncio.create_task(watch.run())
            with watch.watching(f"ipv4:{own}") as peer, watch.watching("ipv4:192.0.2.1:9") as other:
                await asyncio.sleep(0.1)
                assert not peer.unreachable
                monkeypatch.setattr(silence, "SILENCE_SECONDS_MAX", -1.0)
                async with asyncio.timeout(10):
                    assert await asyncio.to_thread(caller.recv, 1) == b""
                assert peer.unreachable
                assert not other.unreachable, "it has no socket here"
                with watch.watching(f"ipv4:{own}") as later:
                    assert not later.unreachable, "a later connection has its own state"
            running.cancel()

    asyncio.run(story())


def test_a_healthy_connection_costs_one_question_to_the_kernel_in_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.01)
    asked: list[int] = []
    searched: list[int] = []
    often = asyncio.Event()
    unreachable, connections = sockets.unreachable, sockets.connections

    def counted(descriptor: int) -> bool:
        asked.append(descriptor)
        if len(asked) == 20:
            often.set()
        return unreachable(descriptor)

    def searching(port: int, *, besides: set[int]) -> list[sockets.Connection]:
        searched.append(port)
        return list(connections(port, besides=besides))

    monkeypatch.setattr(sockets, "unreachable", counted)
    monkeypatch.setattr(sockets, "connections", searching)

    async def story() -> None:
        with connected() as (caller, _accepted, watch):
            own = "{}:{}".format(*caller.getsockname())
            with watch.watching(f"ipv4:{own}"):
                running = asyncio.create_task(watch.run())
                async with asyncio.timeout(10):
                    await often.wait()
                running.cancel()

    asyncio.run(story())
    assert len(set(asked)) == 1
    assert len(searched) == 1, "the socket is searched once, not in each look"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("ipv4:192.0.2.1:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5B2001:db8::1%5D:5000", ("2001:db8::1", 5000)),
        ("ipv6:[::1]:5000", ("::1", 5000)),
        ("unix:/run/x", ("/run/x", 0)),
    ],
)
def test_a_peer_is_read_as_grpc_writes_it(text: str, endpoint: tuple[str, int]) -> None:
    assert sockets.parse_peer(text) == endpoint
