"""Servers in processes of their own, so that measuring does not slow them down."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

START_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    pid: int
    facts: Any
    """What the server sent once it was ready, usually its port."""

    pipe: Connection

    async def hear(self, seconds_max: float) -> Any:
        """The next message of the server."""
        if not await asyncio.to_thread(self.pipe.poll, seconds_max):
            raise TimeoutError(f"process {self.pid} said nothing for {seconds_max:g} s")
        return self.pipe.recv()

    def resident(self) -> int:
        """Resident memory in bytes."""
        return resident(self.pid)


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used, without its children."""
    # The name of the program is in brackets and may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Serve = Callable[..., Coroutine[Any, Any, None]]
"""Serves until cancelled; gets a pipe to report its address, then its arguments."""


@contextlib.contextmanager
def served(serve: Serve, *arguments: object) -> Iterator[Served]:
    """A server while the block runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(serve, theirs, *arguments), daemon=True)
    process.start()
    try:
        if not ours.poll(START_SECONDS_MAX):
            raise RuntimeError(f"{serve} did not start")
        assert process.pid is not None
        yield Served(process.pid, ours.recv(), ours)
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def program(name: str, *arguments: str) -> Iterator[None]:
    """A program of this environment in the background, until the block ends."""
    silent = subprocess.DEVNULL
    process = subprocess.Popen((installed(name), *arguments), stdout=silent, stderr=silent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def seconds(*command: str) -> float:
    """The duration of a command, which must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def installed(name: str) -> str:
    """Path of a program of this environment."""
    return str(Path(sys.executable).parent / name)


def _run(serve: Serve, pipe: Connection, *arguments: object) -> None:
    uvloop.run(serve(pipe, *arguments))
