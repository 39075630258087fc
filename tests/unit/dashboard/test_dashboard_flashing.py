"""Images on their way to a flasher: pieces in order, bounded, and why one was not flashed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bullpen.client.exporter import DriverReport
from bullpen.dashboard import flashing
from bullpen.dashboard.flashing import IMAGE_BYTES_MAX, PIECE_BYTES_MAX, Flash
from bullpen.errors import BadRequest, Conflict, LabError, TooLarge, Unavailable

FLASHER = DriverReport(uuid="u", path="flasher", client="FlasherClient")


class RecordingExporter:
    """Stands for the connection to an exporter; a real one is in tests/real/test_dashboard.py."""

    def __init__(self, *, refuses: str = "", takes: int | None = None) -> None:
        """``takes``: bytes after which the flasher stops reading, and fails if it ``refuses``."""
        self.content = b""
        self.ended = asyncio.Event()
        self.handle = {"uuid": "r"}
        self._refuses = refuses
        self._takes = takes
        self._stopped = asyncio.Event()

    @contextlib.asynccontextmanager
    async def upload(self, driver: DriverReport) -> AsyncIterator[RecordingExporter]:
        assert driver is FLASHER
        yield self

    async def call(self, driver: DriverReport, method: str, *arguments: object) -> None:
        assert (driver, method, arguments) == (FLASHER, "flash", (self.handle, None))
        await (self.ended.wait() if self._takes is None else self._stopped.wait())
        if self._refuses:
            raise LabError(self._refuses)

    async def write(self, data: bytes) -> None:
        self.content += data
        if self._takes is not None and len(self.content) >= self._takes:
            self._stopped.set()
            await asyncio.Event().wait()

    async def end(self) -> None:
        self.ended.set()


def started(exporter: Any, size: int) -> tuple[Flash, asyncio.Task[None]]:
    flash = Flash("f", size)
    return flash, asyncio.ensure_future(flash.run(exporter, FLASHER, ""))


async def test_an_image_arrives_whole_and_in_order() -> None:
    exporter = RecordingExporter()
    image = bytes(range(256)) * 8192
    flash, running = started(exporter, len(image))
    for start in range(0, len(image), PIECE_BYTES_MAX):
        await flash.add(start, image[start : start + PIECE_BYTES_MAX])
    await flash.finish()
    await running
    assert exporter.content == image


async def test_pieces_that_are_out_of_order_too_large_or_too_many_are_refused() -> None:
    flash, running = started(RecordingExporter(), PIECE_BYTES_MAX + 2)
    with pytest.raises(BadRequest):
        await flash.add(5, b"x")
    with pytest.raises(TooLarge):
        await flash.add(0, bytes(PIECE_BYTES_MAX + 1))
    with pytest.raises(TooLarge):
        await flash.add(0, b"")
    await flash.add(0, b"x" * PIECE_BYTES_MAX)
    with pytest.raises(TooLarge):
        await flash.add(PIECE_BYTES_MAX, b"xyz")
    with pytest.raises(BadRequest, match="2 bytes of the image are missing"):
        await flash.finish()
    running.cancel()
    for size in (0, -1, IMAGE_BYTES_MAX + 1):
        with pytest.raises(BadRequest):
            Flash("f", size)


async def test_the_reason_of_the_flasher_reaches_the_page_and_no_piece_waits_for_ever() -> None:
    exporter = RecordingExporter(refuses="switch it off first", takes=1)
    flash, running = started(exporter, 4 * PIECE_BYTES_MAX)
    for number in (0, 1):
        await flash.add(number * PIECE_BYTES_MAX, bytes(PIECE_BYTES_MAX))
    with pytest.raises(Conflict, match="switch it off first"):
        await flash.add(2 * PIECE_BYTES_MAX, b"x")
    with pytest.raises(Conflict, match="switch it off first"):
        await flash.finish()
    await running


async def test_a_flasher_that_stops_reading_has_not_flashed() -> None:
    flash, running = started(RecordingExporter(takes=1), 2 * PIECE_BYTES_MAX)
    await flash.add(0, bytes(PIECE_BYTES_MAX))
    await running
    with pytest.raises(Unavailable, match="stopped reading"):
        await flash.finish()


async def test_an_upload_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashing, "PIECE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(flashing, "REASON_SECONDS", 0.01)
    flash, running = started(RecordingExporter(), 10)
    await running
    with pytest.raises(Unavailable, match="nothing of the image"):
        await flash.add(0, b"x")


async def test_a_console_that_closes_ends_the_flashing() -> None:
    flash, running = started(RecordingExporter(takes=100), 2)
    await flash.add(0, b"xy")
    finishing = asyncio.ensure_future(flash.finish())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    flash.interrupt()
    with pytest.raises(Unavailable, match="interrupted"):
        await finishing
