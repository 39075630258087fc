"""What a fresh fork does before it is an exporter: detach from the zygote, set up its place."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from bullpen.placements.local import confining, exporting, layout, processes
from bullpen.placements.local.confining import Own
from bullpen.placements.local.wire import Spawn

_FOREIGN = ("JMP_", "JUMPSTARTER_")
"""Prefixes of environment variables of the service that an exporter must not inherit."""

ORPHAN_STOP_SECONDS_MAX = 10.0
"""An exporter whose zygote is gone stops itself; after this time it kills itself."""


def become(spawn: Spawn, *, printed: int, report: socket.socket, zygote: int) -> NoReturn:
    """Turn this fork into the exporter ``spawn`` describes. Ends the process."""
    code = 1
    try:
        _settle(spawn, printed, zygote)
        exporting.run(spawn, report, on_orphaned=_end_anyway)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not exit(): the exit handlers of the zygote must not run in the fork.
        os._exit(code)


def _settle(spawn: Spawn, printed: int, zygote: int) -> None:
    os.setsid()
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != zygote:
        raise SystemExit("the zygote ended first")
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A retirement that arrives before the exporter can handle it stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    processes.call_self(f"bp-{spawn.key[1]}")
    processes.go_first_when_memory_is_short()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(printed)
    os.umask(0o022)
    _make_runtime(spawn)
    if spawn.confinement is not None:
        own = Own(Path(spawn.directory), Path(spawn.runtime))
        confining.confine(spawn.confinement, own)
        # The kernel clears this setting when a process changes its user.
        processes.die_with_parent(signal.SIGTERM)
        if os.getppid() != zygote:
            raise SystemExit("the zygote ended first")
    os.umask(0o077)
    os.chdir(spawn.directory)
    _set_environment(spawn)
    _log_to_standard_error()


def _make_runtime(spawn: Spawn) -> None:
    runtime = Path(spawn.runtime)
    runtime.mkdir(mode=layout.PRIVATE)
    if spawn.confinement is not None and spawn.confinement.user:
        os.chown(runtime, spawn.confinement.user, spawn.confinement.user)


def _set_environment(spawn: Spawn) -> None:
    environment = os.environ  # noqa: TID251 - this is where an exporter's own is made
    for name in tuple(environment):
        if name.startswith(_FOREIGN):
            del environment[name]
    environment[processes.TOKEN_VARIABLE] = spawn.token
    environment["TMPDIR"] = str(Path(spawn.directory) / layout.TEMPORARY)
    environment["XDG_RUNTIME_DIR"] = spawn.runtime
    tempfile.tempdir = None


def _log_to_standard_error() -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%FT%T",
        force=True,
    )


def _end_anyway() -> None:
    """The zygote is gone; its janitor removes what is left, also of a hanging exporter."""
    # The parent's death signal may arrive after the end of file, and interrupt the shutdown.
    processes.outlive_parent()
    timer = threading.Timer(ORPHAN_STOP_SECONDS_MAX, os.killpg, (0, signal.SIGKILL))
    timer.daemon = True
    timer.start()
