"""The main container of a Pod: runs an exporter, then reports why it ended.

``python -m bullpen.placements.pod.exporter CONFIG [--single-use] [--lasting]``. A file shows that
it has registered, an annotation of its Pod tells it to retire, and the termination log contains
its last message: it needs no access to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pydantic

from bullpen.core.targets.instances import ExitReason
from bullpen.drivers import downloads
from bullpen.placements.local.exporter import (
    DETAIL_LENGTH_MAX,
    Ending,
    Service,
    read_config,
    said,
)
from bullpen.placements.local.lasting_device import LastingDevice
from bullpen.placements.local.processes import TOKEN_VARIABLE
from bullpen.placements.pod import names, phases

log = logging.getLogger("bullpen.exporter")

LOOK_SECONDS = 1.0
"""Interval of reading the Pod's annotations, which the node updates about once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Paths in the Pod that an exporter reads and writes."""

    config: Path
    annotations: Path = Path(names.ABOUT) / "annotations"
    ready: Path = Path(names.READY)
    last_words: Path = Path("/dev/termination-log")


def run(paths: Paths, *, single_use: bool, lasting: bool = False) -> int:
    """Serve until the end; 0 if the end was regular. ``lasting``: one machine for all leases."""
    ending = asyncio.run(_serve(paths, single_use=single_use, lasting=lasting))
    log.info("ended: %s %s", ending.reason, ending.detail)
    told = phases.Ending(reason=ending.reason, detail=ending.detail[:DETAIL_LENGTH_MAX])
    paths.last_words.write_bytes(msgspec.json.encode(told))
    return 0 if ending.reason is ExitReason.COMPLETED else 1


async def _serve(paths: Paths, *, single_use: bool, lasting: bool) -> Ending:
    try:
        downloads.guard_drivers()
        config = read_config(paths.config.read_bytes())
    except pydantic.ValidationError as error:
        return Ending(ExitReason.START_FAILED, said(error))
    except OSError as error:
        return Ending(ExitReason.START_FAILED, f"it has no config: {error}")
    async with config.create_exporter() as exporter, asyncio.TaskGroup() as tasks:
        service = Service(
            exporter,
            token=os.environ[TOKEN_VARIABLE],  # noqa: TID251 - set below, for our children
            single_use=single_use,
            on_registered=paths.ready.touch,
            lasting=LastingDevice(exporter.device_factory) if lasting else None,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.terminate)
        looking = tasks.create_task(_retire_when_told(service, paths.annotations))
        # In a task of its own: it is cancelled if it must end before it has registered.
        ending = await tasks.create_task(service.run())
        looking.cancel()
    return ending


async def _retire_when_told(service: Service, annotations: Path) -> None:
    # There is no notification of changes to a mounted file.
    while not await asyncio.to_thread(_is_told, annotations):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    service.retire()


def _is_told(annotations: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(line.startswith(f"{names.RETIRE}=") for line in annotations.open())
    return False


def _settle() -> None:
    """Prepare this process for an exporter: directories, environment, log."""
    environment = os.environ  # noqa: TID251 - this is where an exporter's own is made
    environment[TOKEN_VARIABLE] = secrets.token_hex(16)
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
        if variable in environment:
            Path(environment[variable]).mkdir(mode=0o700, parents=True, exist_ok=True)
    tempfile.tempdir = None
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


if __name__ == "__main__":
    _settle()
    config, *options = sys.argv[1:]
    flags = {"single_use": "--single-use" in options, "lasting": "--lasting" in options}
    sys.exit(run(Paths(config=Path(config)), **flags))
