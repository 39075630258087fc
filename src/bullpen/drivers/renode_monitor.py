"""Renode's monitor on its standard streams: commands, their answers, and the log in between.

Renode has no marks for the end of an answer and none for failure, and its log is printed
between and within the lines of the monitor. So each command is followed by ``string``, a command
that prints its arguments in quotes: once on the same line, where it is executed only if the command
succeeded, and once on a line of its own. The log is recognised by its time stamps and taken out.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable

KEPT_BYTES_MAX = 1 << 20
"""How much of an answer is kept."""

ERROR_LINES_MAX = 5

_RECORD = re.compile(rb"\d\d:\d\d:\d\d\.\d{4} \[[A-Z]+\] [^\n]*\n")
_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")
_PROMPT = re.compile(r"^(\([\w -]+\) )+")
FIRST_PROMPT = b"(monitor) "


class MonitorRefused(RuntimeError):
    """Renode did not execute a command."""


class MonitorSilent(RuntimeError):
    """Renode did not answer in time."""


class RenodeMonitor(asyncio.Protocol):
    """Our end of the pipes. Commands are executed one after the other."""

    def __init__(self, nonce: str, log: Callable[[str], None]) -> None:
        """``nonce``: a word that nothing else prints. ``log`` gets every record of the log."""
        self._nonce = nonce
        self._log = log
        self._commands = 0
        self._pending = b""
        self._lines: deque[bytes] = deque()
        self._lines_bytes = 0
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._input: asyncio.WriteTransport | None = None
        self._ended = False

    def attach(self, transport: asyncio.WriteTransport) -> None:
        """Write commands to ``transport``."""
        self._input = transport

    def data_received(self, data: bytes) -> None:
        text = _CODES.sub(b"", self._pending + data)
        text = _RECORD.sub(self._logged, text)
        *lines, self._pending = text.split(b"\n")
        self._pending = self._pending[-KEPT_BYTES_MAX:]
        for line in lines:
            self._lines.append(line)
            self._lines_bytes += len(line)
        while self._lines_bytes > KEPT_BYTES_MAX:
            self._lines_bytes -= len(self._lines.popleft())
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._news.set()
        if self._input is not None:
            self._input.close()

    async def prompt(self, deadline: float) -> None:
        """Wait until Renode takes commands; what it is told before is lost."""
        await self._until(lambda: FIRST_PROMPT in self._pending, deadline, "did not start")

    async def execute(self, command: str, deadline: float) -> str:
        """The answer to ``command``. Raises ``MonitorRefused`` and ``MonitorSilent``."""
        async with self._turn:
            self._commands += 1
            mark = f"{self._nonce}_{self._commands}"
            self._lines.clear()
            self._lines_bytes = 0
            self._send(f"{command}; string {mark} done\nstring {mark} end\n")
            end = f'"{mark} end"'.encode()
            await self._until(
                lambda: any(end in line for line in self._lines), deadline, f"{command!r}: silent"
            )
            lines = [line.decode(errors="replace") for line in self._lines]
        said = [
            text
            for line in lines
            if self._nonce not in line and (text := _PROMPT.sub("", line).strip())
        ]
        if not any(f'"{mark} done"' in line for line in lines):
            words = " ".join(said[:ERROR_LINES_MAX]) or "it gave no reason"
            raise MonitorRefused(f"Renode did not execute {command!r}: {words}")
        return "\n".join(said)

    def _send(self, text: str) -> None:
        if self._input is None or self._input.is_closing():
            raise MonitorSilent("Renode has ended")
        self._input.write(text.encode())

    async def _until(self, met: Callable[[], bool], deadline: float, what: str) -> None:
        while not met():
            if self._ended:
                raise MonitorSilent("Renode has ended")
            left = deadline - time.monotonic()
            if left <= 0:
                raise MonitorSilent(f"Renode does not answer ({what})")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _logged(self, found: re.Match[bytes]) -> bytes:
        self._log(found[0].decode(errors="replace").rstrip())
        return b""
