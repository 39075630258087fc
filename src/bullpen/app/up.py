"""``bullpen up``: the whole service in the foreground, until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

import uvloop

from bullpen.api import yaml
from bullpen.api.document import Document
from bullpen.app.datadir import DataDirectory
from bullpen.app.embedded import Settings, running
from bullpen.app.initial_objects import apply
from bullpen.app.localaudit import applied_event
from bullpen.app.notifying import READY, STOPPING, notify
from bullpen.app.publishing import publish
from bullpen.app.sources import Sources
from bullpen.errors import BadRequest

log = logging.getLogger("bullpen.app")

# With its default thresholds, the collector would scan all cached objects too often.
GC_THRESHOLDS = (50_000, 20, 100)


def up(settings: Settings, *, announce: Callable[[Document, list[str]], None]) -> None:
    """Run until SIGTERM or SIGINT. ``announce`` is called once everything is ready."""
    documents = read_manifests(settings)
    with (
        DataDirectory.open(settings.data) as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        gc.set_threshold(*GC_THRESHOLDS)
        runner.run(_serve(settings, directory, documents, announce))


def read_manifests(settings: Settings) -> tuple[Document, ...]:
    """Every document of every ``-f``, read before anything starts."""
    documents: list[Document] = []
    for path in settings.manifests:
        try:
            found = yaml.load_manifests(path.read_bytes())
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
        for document in found:
            if not isinstance(document, dict):
                raise BadRequest(f"{path} contains a document that is not an object")
            documents.append(document)
    return tuple(documents)


async def _serve(
    settings: Settings,
    directory: DataDirectory,
    documents: tuple[Document, ...],
    announce: Callable[[Document, list[str]], None],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sources = Sources.real()
    async with running(settings, directory.layout, sources) as service:
        applied = []
        for document in documents:
            applied.append(await apply(service.registry, document))
            service.audit.record(applied_event(document, clock=sources.clock, ids=sources.ids))
        endpoints = await publish(service, directory.layout)
        gc.freeze()
        announce(endpoints, applied)
        notify(READY)
        await stop.wait()
        notify(STOPPING)
        log.info("stopping", extra={"key": settings.data})
    log.info("stopped", extra={"key": settings.data})
