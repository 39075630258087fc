"""A toy simulator for tests of ``program.bullpen.dev``: it prints its firmware and echoes.

``simulated_board.py FIRMWARE stdio|pty|tcp:PORT|unix:PATH [web:PORT]``. Only the standard library:
it runs in the sandbox of a target.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import tty
from collections.abc import Callable


def serve(read: Callable[[], bytes], write: Callable[[bytes], object], firmware: str) -> None:
    with open(firmware, "rb") as file:
        banner = file.read(200)
    write(b"board runs " + banner + b"\r\n> ")
    while data := read():
        if data.strip() == b"halt":
            return
        if data.strip() == b"files":
            data = ", ".join(sorted(os.listdir("/"))).encode()
        write(b"echo " + data.strip() + b"\r\n> ")


def on_descriptor(reading: int, writing: int, firmware: str) -> None:
    with contextlib.suppress(OSError):
        serve(lambda: os.read(reading, 4096), lambda data: os.write(writing, data), firmware)


def on_socket(listener: socket.socket, firmware: str) -> None:
    listener.listen(1)
    connection, _ = listener.accept()
    with connection:
        serve(lambda: connection.recv(4096), connection.sendall, firmware)


def web(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"hello from the board")


def main(firmware: str, console: str, *more: str) -> None:
    for extra in more:
        port = int(extra.removeprefix("web:"))
        threading.Thread(target=web, args=(port,), daemon=True).start()
    kind, _, where = console.partition(":")
    if kind == "stdio":
        on_descriptor(0, 1, firmware)
    elif kind == "pty":
        ours, theirs = os.openpty()
        tty.setraw(theirs)
        print(f"UART_0 connected to pseudotty: {os.ttyname(theirs)}", flush=True)
        on_descriptor(ours, ours, firmware)
    elif kind == "tcp":
        on_socket(socket.create_server(("127.0.0.1", int(where))), firmware)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        on_socket(listener, firmware)


if __name__ == "__main__":
    main(*sys.argv[1:])
