"""Starts programs for a process in another container, which passes its open files.

``python3 launcher.py SOCKET``. One connection is one program: the request is a line of JSON
with its arguments and descriptor numbers, and the descriptors themselves as ancillary data.
The answer is a line when the program has started and one when it has ended. The program
does not outlive its connection.

This file is copied into images without our packages, so it uses only the standard library,
of Python 3.9 or later.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

REQUEST_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 16
PROGRAMS_MAX = 64
APART = 512
"""Received descriptors are moved above this number, so that they do not collide."""


class Program:
    """A running program; its pid is valid until it is reaped, and no longer."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._reaped = False
        self._lock = threading.Lock()

    def kill(self, number: int) -> None:
        with self._lock:
            if not self._reaped:
                os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; negative if a signal ended the program."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._reaped = True
            _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def start(argv: list[str], descriptors: dict[int, int]) -> Program:
    """Start ``argv`` with these descriptors and no others; keys are the program's numbers."""
    apart = {to: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, APART) for to, fd in descriptors.items()}
    try:
        moves = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in apart.items()]
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=moves)  # noqa: TID251
    finally:
        for fd in apart.values():
            os.close(fd)
    return Program(pid)


def serve_one(connection: socket.socket) -> None:
    """Serve one program from its request to its end."""
    with connection:
        line, received = _receive(connection)
        try:
            request: Any = json.loads(line)
            numbers = request["descriptors"]
            program = start(request["argv"], {to: received[i] for i, to in enumerate(numbers)})
        except (OSError, ValueError, LookupError, TypeError) as error:
            _tell(connection, error=str(error))
            return
        finally:
            for fd in received:
                os.close(fd)
        _tell(connection, pid=program.pid)
        reaper = threading.Thread(target=_await_end, args=(program, connection))
        reaper.start()
        _obey(program, connection)
        reaper.join()


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A whole line, and the descriptors received with it."""
    descriptors = array.array("i")
    line = b""
    while not line.endswith(b"\n") and len(line) < REQUEST_BYTES_MAX:
        space = socket.CMSG_SPACE(DESCRIPTORS_MAX * descriptors.itemsize)
        data, ancillary, _, _ = connection.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % descriptors.itemsize
                descriptors.frombytes(content[:whole])
        if not data:
            break
        line += data
    return line, list(descriptors)


def _await_end(program: Program, connection: socket.socket) -> None:
    code = program.wait()
    _tell(connection, exit=code)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _obey(program: Program, connection: socket.socket) -> None:
    """Forward signals until the connection ends, which ends the program."""
    with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
        for line in lines:
            program.kill(int(json.loads(line)["signal"]))
    program.kill(signal.SIGKILL)


def _tell(connection: socket.socket, **facts: object) -> None:
    # The requester may have left; that ends its program elsewhere.
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(facts).encode() + b"\n")


def serve(path: str) -> None:
    """Serve at ``path`` until told to stop."""
    fresh = path + ".new"
    for old in (path, fresh):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)
    slots = threading.BoundedSemaphore(PROGRAMS_MAX)

    def handle(connection: socket.socket) -> None:
        with slots:
            serve_one(connection)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fresh)
        listener.listen(PROGRAMS_MAX)
        # It appears under its name once it listens: an exporter that waits for the file would
        # else be refused.
        os.rename(fresh, path)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=handle, args=(connection,), daemon=True).start()


def main() -> None:
    # The first process of a container gets only signals for which it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.umask(0o077)
    serve(sys.argv[1])


if __name__ == "__main__":
    main()
