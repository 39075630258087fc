"""Cleans up after a zygote that was killed, and only then.

Exporters have dropped the rights to remove their surroundings. This process is forked from
the zygote before anything is loaded, is told what to clean up, and sleeps until the zygote
is gone. It does nothing if the zygote exited regularly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import msgspec

from bullpen.placements.local import cgroups, layout, processes
from bullpen.placements.local.wire import Frames, Spawn, frame

KILL_LOOKS_MAX = 500
KILL_LOOK_SECONDS = 0.02
READ_BYTES = 1 << 16


class Begun(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """An instance is about to be forked."""

    token: str
    directory: str
    runtime: str
    retain: bool
    groups: tuple[str, ...]


class Over(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """No process of the instance runs any more; its supervisor cleans up."""

    token: str


class Done(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The zygote exits regularly."""


News = Begun | Over | Done
NEWS: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


class Janitor:
    """The zygote's side: tells the janitor process what to clean up."""

    def __init__(self, listener: socket.socket) -> None:
        """Fork it. It does not need the listener of the supervisors."""
        self._line, theirs = socket.socketpair()
        if os.fork() == 0:
            self._line.close()
            listener.close()
            # Forked twice, so that it is neither a child of the zygote nor a sibling of exporters.
            if os.fork() == 0:
                _wait(theirs)
            os._exit(0)
        theirs.close()
        os.wait()

    def begin(self, spawn: Spawn) -> None:
        groups = spawn.confinement.groups_of_limits if spawn.confinement else ()
        self._tell(
            Begun(
                token=spawn.token,
                directory=spawn.directory,
                runtime=spawn.runtime,
                retain=spawn.retain,
                groups=groups,
            )
        )

    def over(self, token: str) -> None:
        self._tell(Over(token=token))

    def dismiss(self) -> None:
        """Let it exit, and wait until it is gone."""
        self._tell(Done())
        with contextlib.suppress(OSError):
            self._line.recv(1)
        self.forget()

    def forget(self) -> None:
        """Close the connection in a fork, which does not need it."""
        self._line.close()

    def _tell(self, news: News) -> None:
        # A janitor that was killed is missed only if the zygote is killed too.
        with contextlib.suppress(OSError):
            self._line.sendall(frame(news))


def _wait(line: socket.socket) -> None:
    os.setsid()
    processes.call_self("bullpen-janitor")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    known: dict[str, Begun] = {}
    frames = Frames(NEWS)
    with contextlib.suppress(OSError):
        while data := line.recv(READ_BYTES):
            for news in frames.feed(data):
                if isinstance(news, Done):
                    return
                if isinstance(news, Begun):
                    known[news.token] = news
                else:
                    known.pop(news.token, None)
    clean(known)


def clean(known: dict[str, Begun]) -> None:
    """End the remaining processes of these instances and remove their files."""
    leaders = {token: layout.read_process(Path(begun.directory)) for token, begun in known.items()}
    for _ in range(KILL_LOOKS_MAX):
        if not processes.kill_instances(leaders):
            break
        time.sleep(KILL_LOOK_SECONDS)
    for begun in known.values():
        cgroups.remove(begun.groups)
        with contextlib.suppress(OSError):
            layout.wipe(Path(begun.runtime))
        if not begun.retain:
            with contextlib.suppress(OSError):
                layout.wipe(Path(begun.directory))
    # The parent groups, if they are not used any more.
    above = {str(Path(group).parent) for begun in known.values() for group in begun.groups}
    cgroups.remove(sorted(above))
