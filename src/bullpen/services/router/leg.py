"""One side of a joined stream: received bytes not yet sent on, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from bullpen.services.router import frames

if TYPE_CHECKING:
    from bullpen.services.router.connection import Connection

OK, CANCELLED = 0, 1

LINGER_SECONDS = 1.5
"""How long a caller that receives nothing any more may take to end its call itself."""


class Leg:
    def __init__(self, connection: Connection, stream: int, *, window: int) -> None:
        self._connection = connection
        self._stream = stream
        self._window = window
        self._credit = 0
        """Bytes to credit to the sender with the next WINDOW_UPDATE."""

        self._fresh: list[memoryview] = []
        """Bytes just received, as views of the read buffer."""

        self._held = bytearray()
        """Bytes the other side has no room for, at most a window.

        Copied, so that a few held bytes do not keep a large read buffer alive.
        """

        self._owed = 0
        """Bytes received and not credited back, including padding."""

        self._answered = False
        self._winding_down = False
        self._over = False
        self.ended = False
        """This side has sent everything."""

        self.peer: Leg | None = None
        self.send_window = connection.send_window_initial
        self.passed = 0
        """Payload bytes from this side to the other."""

        self.on_first: Callable[[], None] | None = None
        """Called once, when the first bytes from this side were passed on."""

        self.on_over: Callable[[], None] | None = None

    @property
    def over(self) -> bool:
        return self._over

    def accept(self) -> None:
        """Admit the caller: answer with headers at once."""
        self._answered = True
        self._connection.admitted()
        self._connection.write(frames.response_head(self._stream))

    def join(self, peer: Leg) -> None:
        """From now on, each side's bytes go to the other."""
        self.peer, peer.peer = peer, self
        self.pass_on()
        peer.pass_on()
        self.flush()
        peer.flush()

    def flush(self) -> None:
        self._connection.flush()

    def received(self, payload: memoryview, size: int, *, ended: bool) -> None:
        """Bytes from this side; ``size`` is their cost in the window."""
        self._owed += size
        if self._winding_down:
            self._repay(size)
            self.ended = ended
            if ended:
                self.finish(OK, "")
            return
        if self._owed > self._window or self.ended:
            self._connection.write(frames.rst_stream(self._stream, frames.FLOW_CONTROL_ERROR))
            self.lost()
            return
        if payload:
            self._fresh.append(payload)
        # Padding is not passed on, so it is credited at once.
        self._repay(size - len(payload))
        self.ended = ended

    def pass_on(self) -> None:
        """Send received bytes to the other side as far as it has room; hold the rest."""
        peer = self.peer
        fresh, self._fresh = self._fresh, []
        if peer is None or self._held:
            for piece in fresh:
                self._held += piece
            fresh = []
        if self._over or peer is None or peer.over:
            return
        if self._held:
            self._pass_held(peer)
        elif fresh:
            self._pass_fresh(peer, fresh)
        if self.ended and peer.ended and not self._held and not peer._held:
            self.finish(OK, "")
            peer.finish(OK, "")

    def _pass_fresh(self, peer: Leg, pieces: list[memoryview]) -> None:
        room = peer.room_for(sum(len(piece) for piece in pieces))
        for piece in peer.send(pieces, room):
            self._held += piece
        self._passed(room)

    def _pass_held(self, peer: Leg) -> None:
        room = peer.room_for(len(self._held))
        if room:
            with memoryview(self._held) as view:
                chunk = bytes(view[:room])
            del self._held[:room]
            peer.send([memoryview(chunk)], room)
            self._passed(room)

    def _passed(self, count: int) -> None:
        self.passed += count
        self._repay(count)
        if self.on_first is not None and count:
            told, self.on_first = self.on_first, None
            told()

    def send_more(self) -> None:
        """There is room towards this side again."""
        if self.peer is not None:
            self.peer.pass_on()
            self.peer.flush()

    def room_for(self, size: int) -> int:
        """How many of ``size`` bytes this side can take now; it resumes the sender later."""
        connection = self._connection
        room = max(0, min(self.send_window, connection.room, size))
        if room < size and connection.room <= self.send_window:
            connection.wait_for_room(self)
        return room

    def send(self, pieces: list[memoryview], size: int) -> list[memoryview]:
        """Write ``size`` bytes of ``pieces`` in as few frames as possible; returns the rest."""
        if not size:
            return pieces
        connection = self._connection
        pieces.reverse()
        left = size
        while left:
            length = min(left, connection.send_frame_max)
            connection.write(frames.head(length, frames.DATA, 0, self._stream))
            _move(pieces, length, connection.write)
            left -= length
        self.send_window -= size
        connection.send_window -= size
        connection.flush()
        pieces.reverse()
        return pieces

    def _repay(self, count: int) -> None:
        """Credit the sender for bytes that are no longer held here."""
        if not count:
            return
        self._owed -= count
        self._connection.credited(count)
        self._credit += count
        if self._credit >= self._window // 4 and not self.ended:
            self._connection.write(frames.window_update(self._stream, self._credit))
            self._credit = 0

    def lost(self) -> None:
        """This side was lost without an end; for the other side the stream ends.

        Not an error unless bytes were in transit: a program that closes its channel resets its open
        streams, and Jumpstarter's client warns of any end that is not OK.
        """
        peer, said_all, cut_short = self.peer, self.ended, bool(self._held)
        self._close()
        if peer is None:
            return
        if cut_short:
            peer.finish(CANCELLED, "the other side disconnected before all its data had arrived")
        elif said_all:
            peer.wind_down()
        else:
            peer.finish(OK, "")

    def wind_down(self) -> None:
        """Pass on nothing more, in either direction, and end the call soon.

        Not at once, because the caller may be about to end the call itself, and a write after our
        end would look like a failure to it.
        """
        if self._over or self._winding_down:
            return
        self._winding_down = True
        self.peer = None
        pending = len(self._held) + sum(len(piece) for piece in self._fresh)
        self._held.clear()
        self._fresh.clear()
        self._repay(pending)
        if self.ended:
            self.finish(OK, "")
            return
        self.flush()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.finish, OK, "")

    def finish(self, status: int, message: str) -> None:
        """End the call of this side with a status."""
        if self._over:
            return
        self._connection.write(
            frames.trailers(self._stream, status, message, only=not self._answered)
        )
        if not self.ended:
            # The call has ended; anything the caller still sends is discarded.
            self._connection.write(frames.rst_stream(self._stream, frames.NO_ERROR))
        self._connection.flush()
        self._close()

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        self._connection.ended(self._stream)
        # Bytes that will never be passed on still count against the connection's window.
        self._connection.credited(self._owed)
        self._fresh.clear()
        self._held.clear()
        if self.on_over is not None:
            self.on_over()


def _move(pieces: list[memoryview], size: int, write: Callable[[bytes | memoryview], None]) -> None:
    """Write exactly ``size`` bytes from the end of the reversed ``pieces``."""
    while size:
        piece = pieces.pop()
        if len(piece) > size:
            pieces.append(piece[size:])
            piece = piece[:size]
        write(piece)
        size -= len(piece)
