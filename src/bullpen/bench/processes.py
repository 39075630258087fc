"""Servers in processes of their own, so that measuring does not cost the measured."""

from __future__ import annotations

import contextlib
import multiprocessing
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
    """What it said once it was ready, usually its port."""

    def resident(self) -> int:
        """Bytes of memory it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096


Serve = Callable[..., Coroutine[Any, Any, None]]
"""Serves until cancelled; gets a pipe to say where, then its arguments."""


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
        yield Served(process.pid, ours.recv())
    finally:
        process.terminate()
        process.join()


def _run(serve: Serve, pipe: Connection, *arguments: object) -> None:
    uvloop.run(serve(pipe, *arguments))
