"""Programs that run beside the exporter, in the container of its target.

The counterpart is ``launcher``. The open files of a program are passed to it, so it works
as if it had been started here.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

ANSWER_SECONDS_MAX = 10.0
OUTPUT_BYTES_MAX = 4 << 20


class Launched:
    """A program in the other container, with the part of ``subprocess.Popen`` drivers use."""

    def __init__(
        self, path: str, argv: Sequence[str], descriptors: Mapping[int, int] | None = None
    ) -> None:
        """Start ``argv`` through the launcher at ``path``. Raises ``RuntimeError``."""
        self.args = argv
        self.returncode: int | None = None
        reading, writing = os.pipe()
        try:
            self._connection = _asked(path, argv, {2: writing, **(descriptors or {})})
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self.stderr: IO[bytes] = os.fdopen(reading, "rb")
        self._unread = b""
        try:
            answer = self._answer(ANSWER_SECONDS_MAX)
        except TimeoutError:
            answer = {"error": "the launcher does not answer"}
        if "pid" not in answer:
            self._connection.close()
            self.stderr.close()
            raise RuntimeError(f"{argv[0]} cannot be started: {answer.get('error', 'it ended')}")

    def poll(self) -> int | None:
        """The exit code, if the program has ended."""
        try:
            return self.wait(timeout=0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                answer = self._answer(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self.returncode = int(answer.get("exit", -signal.SIGKILL))
            self._connection.close()
        return self.returncode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                self._connection.sendall(json.dumps({"signal": number}).encode() + b"\n")
            except OSError:
                return  # the program has ended; the waiter gets its exit code

    def _answer(self, timeout: float | None) -> dict[str, Any]:
        """The next line; empty when the launcher is gone, and the program with it."""
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        while b"\n" not in self._unread:
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise TimeoutError
            try:
                data = self._connection.recv(4096)
            except ConnectionError:
                data = b""
            if not data:
                return {}
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _asked(path: str, argv: Sequence[str], descriptors: Mapping[int, int]) -> socket.socket:
    request = json.dumps({"argv": list(argv), "descriptors": list(descriptors)})
    handed = array.array("i", descriptors.values())
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_SECONDS_MAX)
    try:
        connection.connect(path)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)]
        sent = connection.sendmsg([request.encode() + b"\n"], ancillary)
        connection.sendall((request.encode() + b"\n")[sent:])
    except OSError as error:
        connection.close()
        raise RuntimeError(f"the target's runtime does not answer: {error}") from None
    return connection


async def run(path: str, argv: Sequence[str]) -> bytes:
    """The output of a program in the other container. Raises ``RuntimeError`` if it failed."""
    return await asyncio.to_thread(_run, path, argv)


def _run(path: str, argv: Sequence[str]) -> bytes:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as output:
        try:
            program = Launched(path, argv, {1: writing})
        finally:
            os.close(writing)
        printed = output.read(OUTPUT_BYTES_MAX)
        if len(printed) == OUTPUT_BYTES_MAX:
            program.kill()
        with program.stderr as errors:
            said = errors.read(OUTPUT_BYTES_MAX).decode(errors="replace").strip()
        if program.wait():
            raise RuntimeError(said or f"{argv[0]} failed")
    return printed
