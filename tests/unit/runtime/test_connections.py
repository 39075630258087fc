"""Connections of a port: who is let in, who gives way, and who keeps its place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.app.config import ConnectionConfig
from bullpen.app.process import RESERVED, connection_shares
from bullpen.runtime.connections import AcceptedConnection, Bounds, PortConnections, accepting
from bullpen.services.grpc import sockets
from bullpen.services.grpc.guard import surplus
from bullpen.services.grpc.sockets import Connection


class Visitor(AcceptedConnection):
    """A accepted without a connection, that keeps whether it was sent away."""

    def __init__(self, connections: PortConnections, address: str = "a") -> None:
        nowhere: Any = None
        super().__init__(connections, nowhere, address)
        self.gone = False

    def leave(self) -> None:
        self.gone = True


def visitors(connections: PortConnections, count: int, address: str = "a") -> list[Visitor]:
    found = [Visitor(connections, address) for _ in range(count)]
    assert all(connections.admit(visitor) for visitor in found)
    return found


def test_the_one_that_has_been_idle_for_longest_gives_way_to_a_newcomer() -> None:
    connections = PortConnections("port", Bounds(total=3, per_address=3))
    first, second, third = visitors(connections, 3)
    first.busy()
    first.idle()
    assert connections.admit(Visitor(connections))
    assert [v.gone for v in (first, second, third)] == [False, True, False]
    assert (connections.open, connections.displaced, connections.refused) == (3, 1, 0)


def test_whoever_is_busy_keeps_its_place_and_the_newcomer_is_refused() -> None:
    connections = PortConnections("port", Bounds(total=2, per_address=2))
    both = visitors(connections, 2)
    for visitor in both:
        visitor.busy()
    assert not connections.admit(Visitor(connections, "b"))
    assert not any(visitor.gone for visitor in both)
    both[0].left()
    assert connections.admit(Visitor(connections, "b"))


def test_an_address_at_its_bound_displaces_its_own_and_no_other() -> None:
    connections = PortConnections("port", Bounds(total=10, per_address=2))
    (other,) = visitors(connections, 1, "b")
    mine = visitors(connections, 2)
    assert connections.admit(Visitor(connections))
    assert mine[0].gone
    assert not other.gone


def test_who_left_counts_no_more_however_often_it_is_said() -> None:
    connections = PortConnections("port", Bounds(total=2, per_address=1))
    (only,) = visitors(connections, 1)
    for _ in range(3):
        only.left()
    assert connections.open == 0
    (again,) = visitors(connections, 1)
    assert not again.gone


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 300)).map(
            lambda found: Connection(0, (found[0], 0), found[1])
        ),
        max_size=30,
    ),
    st.integers(1, 10),
    st.integers(1, 10),
)
def test_of_the_grpc_port_those_go_that_sent_least_and_the_rest_is_within_bounds(
    found: list[Connection], total: int, per_address: int
) -> None:
    numbered = [Connection(n, c.endpoint, c.received) for n, c in enumerate(found)]
    bounds = Bounds(total=total, per_address=per_address)
    gone = surplus(numbered, bounds)
    kept = [c for c in numbered if c not in gone]
    assert len(kept) <= total
    for address in "ab":
        mine = [c for c in kept if c.address == address]
        assert len(mine) <= per_address
        sent = [c.received for c in gone if c.address == address]
        if len(mine) == per_address and sent:
            assert max(sent) <= min(c.received for c in mine)
    if len(numbered) <= min(total, per_address):
        assert not gone


@pytest.mark.parametrize("limit", [64, 1_024, 65_536])
def test_the_ports_together_leave_descriptors_in_reserve(limit: int) -> None:
    found = connection_shares(limit, ConnectionConfig())
    ports = (found.api, found.controller, found.router, found.login, found.scaler)
    together = sum(p.total for p in ports)
    assert together <= max(64, limit - RESERVED)
    assert connection_shares(limit, ConnectionConfig(per_address=1)).api.per_address == 1


def test_a_socket_of_this_process_is_recognised_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            accepted, _ = listener.accept()
            with accepted:
                caller.sendall(b"12345")
                accepted.recv(5)
                (found,) = sockets.connections(port)
                assert (found.descriptor, found.received) == (accepted.fileno(), 5)
                sockets.shut_down(found.descriptor, port)
                assert caller.recv(1) == b""


def test_an_address_whose_connections_are_all_busy_gets_no_more() -> None:
    connections = PortConnections("port", Bounds(total=10, per_address=2))
    for visitor in visitors(connections, 2):
        visitor.busy()
    assert not connections.admit(Visitor(connections))
    assert connections.admit(Visitor(connections, "b"))


def test_refusals_are_logged_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    connections = PortConnections("port", Bounds(total=1, per_address=1))
    visitors(connections, 1)[0].busy()
    for _ in range(5):
        assert not connections.admit(Visitor(connections))
    assert [vars(record)["count"] for record in caplog.records] == [1, 2, 4]


class Echo(asyncio.Protocol):
    """A protocol that says when its connection is lost."""

    def __init__(self, accepted: AcceptedConnection) -> None:
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.left()


async def test_over_real_sockets_an_idle_connection_is_closed_for_a_newer_one() -> None:
    connections = PortConnections("port", Bounds(total=1, per_address=1))
    async with asyncio.timeout(30):
        listener = _listener()
        port = listener.getsockname()[1]
        async with accepting(listener, Echo, connections, tls=None):
            first, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await first.readexactly(5) == b"hello"
            second, other = await asyncio.open_connection("127.0.0.1", port)
            assert await second.readexactly(5) == b"hello"
            with contextlib.suppress(ConnectionResetError):
                assert await first.read() == b""
            for each in (writer, other):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()
    assert connections.displaced == 1


class Working(Echo):
    """A protocol whose connection is busy from its beginning."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accepted.busy()
        super().connection_made(transport)


async def test_over_real_sockets_a_newcomer_is_closed_while_all_others_are_busy() -> None:
    connections = PortConnections("port", Bounds(total=1, per_address=1))
    listener = _listener()
    port = listener.getsockname()[1]
    async with asyncio.timeout(30), accepting(listener, Working, connections, tls=None):
        first, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await first.readexactly(5) == b"hello"
        second, other = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await second.read() == b""
        for each in (writer, other):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
    assert (connections.displaced, connections.refused) == (0, 1)


def test_a_guest_that_has_not_entered_can_be_told_to_leave() -> None:
    nowhere: Any = None
    connections = PortConnections("port")
    accepted = AcceptedConnection(connections, nowhere, "a")
    assert connections.admit(accepted)
    accepted.leave()


class Watched(PortConnections):
    """A connections that says when the last accepted has left."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        super().__init__(name, bounds)
        self.emptied = asyncio.Event()

    def left(self, accepted: AcceptedConnection) -> None:
        super().left(accepted)
        if self.open:
            self.emptied.clear()
        else:
            self.emptied.set()

    def admit(self, accepted: AcceptedConnection) -> bool:
        admitted = super().admit(accepted)
        self.emptied.clear()
        return admitted


async def test_over_real_sockets_a_handshake_that_fails_or_is_pushed_out_leaves_nothing() -> None:
    connections = Watched("port", Bounds(total=1, per_address=1))
    listener = _listener()
    port = listener.getsockname()[1]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with asyncio.timeout(30), accepting(listener, Echo, connections, tls=tls):
        silent, waits = await asyncio.open_connection("127.0.0.1", port)
        garbage, speaks = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await silent.read() == b"", "it gave way during its handshake"
        speaks.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            await garbage.read()
        for each in (waits, speaks):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        await connections.emptied.wait()
    assert connections.displaced == 1


async def test_plain_http_at_a_port_with_tls_is_answered_at_once() -> None:
    connections = Watched("port", Bounds(total=1, per_address=1))
    listener = _listener()
    port = listener.getsockname()[1]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with asyncio.timeout(30), accepting(listener, Echo, connections, tls=tls):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.0 400")
        assert b"https://" in answer
        writer.close()
        await writer.wait_closed()
        await connections.emptied.wait()


def _listener() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found
