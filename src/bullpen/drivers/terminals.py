"""Terminals as sockets: a console may be a terminal, and the serial line expects a socket."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import threading
import tty
from collections.abc import Iterator

PIECE_BYTES_MAX = 1 << 16


@contextlib.contextmanager
def opened_terminal() -> Iterator[tuple[int, int]]:
    """A new terminal that changes nothing of what passes: our end, and the program's.

    Programs buffer what they write to a pipe; they do not if it is a terminal.
    """
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def bridged(terminal: int) -> socket.socket:
    """A socket connected to ``terminal``, which is closed when either side ends.

    Each direction blocks while the other side does not read, so nothing is buffered here.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    threads = (
        threading.Thread(target=_from_terminal, args=(terminal, theirs), daemon=True),
        threading.Thread(target=_to_terminal, args=(terminal, theirs), daemon=True),
    )
    for thread in threads:
        thread.start()
    threading.Thread(target=_close_after, args=(threads, terminal, theirs), daemon=True).start()
    return ours


def _from_terminal(terminal: int, peer: socket.socket) -> None:
    # A terminal whose other end is closed fails to be read.
    with contextlib.suppress(OSError):
        while data := os.read(terminal, PIECE_BYTES_MAX):
            peer.sendall(data)
    _hang_up(peer)


def _to_terminal(terminal: int, peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := peer.recv(PIECE_BYTES_MAX):
            while data:
                data = data[os.write(terminal, data) :]
    _hang_up(peer)


def _hang_up(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _close_after(threads: tuple[threading.Thread, ...], terminal: int, peer: socket.socket) -> None:
    for thread in threads:
        thread.join()
    peer.close()
    os.close(terminal)
