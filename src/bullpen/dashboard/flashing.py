"""An image on its way to the flasher of a target, in pieces as a page sends them.

At most one piece is held. The flasher decides what is accepted: it knows the partitions, the
sizes that the class grants, and whether the machine is off.
"""

from __future__ import annotations

import asyncio
import contextlib

from bullpen.client.exporter import FRAME_BYTES_MAX, DriverReport, Exporter, Upload
from bullpen.errors import BadRequest, Conflict, LabError, TooLarge, Unavailable

IMAGE_BYTES_MAX = 64 << 30
"""The largest image. What a target accepts is usually far less."""

PIECE_BYTES_MAX = 1 << 20

PIECE_SECONDS_MAX = 60.0
"""An upload that sends nothing for so long is given up."""


REASON_SECONDS = 5.0
"""How long a flasher may take to say why it takes no more."""


class Flash:
    """One image. ``run`` sends what ``add`` is given."""

    def __init__(self, id: str, size: int) -> None:
        if not 0 < size <= IMAGE_BYTES_MAX:
            raise BadRequest(
                f"an image of {size} bytes cannot be flashed here; the size must be between 1 and"
                f" {IMAGE_BYTES_MAX}"
            )
        self.id = id
        self.size = size
        self.received = 0
        self._piece: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._busy = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> bool:
        return self._done.done()

    async def run(self, exporter: Exporter, flasher: DriverReport, partition: str) -> None:
        """Call the flasher and send it the image; the outcome is that of ``finish``."""
        try:
            async with exporter.upload(flasher) as upload:
                await self._flashed(exporter, flasher, partition, upload)
        except LabError as error:
            # What a driver raises has no code of its own; it is no error of this service.
            self._end(Conflict(error.message) if type(error) is LabError else error)
        else:
            self._end(None)

    async def _flashed(
        self, exporter: Exporter, flasher: DriverReport, partition: str, upload: Upload
    ) -> None:
        calling = asyncio.ensure_future(
            exporter.call(flasher, "flash", upload.handle, partition or None)
        )
        sending = asyncio.ensure_future(self._send(upload))
        try:
            await asyncio.wait((calling, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is not None:
                # The flasher knows better why it takes no more.
                await asyncio.wait((calling,), timeout=REASON_SECONDS)
                if not calling.done():
                    sending.result()
            await calling
        finally:
            for part in (calling, sending):
                part.cancel()
            await asyncio.gather(calling, sending, return_exceptions=True)
        if self.received < self.size:
            raise Unavailable("the target has stopped reading before the end of the image")

    def interrupt(self) -> None:
        """Nothing sends it any more: the console was closed."""
        self._end(Unavailable("flashing was interrupted; flash it again"))

    def _end(self, error: LabError | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
            self._done.exception()  # a page that has gone asks for it no more

    async def _send(self, upload: Upload) -> None:
        left = self.size
        while left:
            try:
                async with asyncio.timeout(PIECE_SECONDS_MAX):
                    piece = await self._piece.get()
            except TimeoutError:
                raise Unavailable(
                    f"nothing of the image was received for {PIECE_SECONDS_MAX:g} s; flash it again"
                ) from None
            for start in range(0, len(piece), FRAME_BYTES_MAX):
                await upload.write(piece[start : start + FRAME_BYTES_MAX])
            left -= len(piece)
        await upload.end()

    async def add(self, offset: int, piece: bytes) -> None:
        """Take a piece as soon as there is room. Raises what ended the flashing, if it is over."""
        if self.over:
            self._done.result()
            raise BadRequest("the image is complete")
        if self._busy or offset != self.received:
            raise BadRequest(f"the next piece is the one at {self.received}, one at a time")
        if not 0 < len(piece) <= PIECE_BYTES_MAX:
            raise TooLarge(f"a piece has between 1 and {PIECE_BYTES_MAX} bytes, not {len(piece)}")
        if self.received + len(piece) > self.size:
            raise TooLarge(f"the image is longer than the {self.size} bytes that it was to have")
        self._busy = True
        putting = asyncio.ensure_future(self._piece.put(piece))
        try:
            await asyncio.wait((putting, self._done), return_when=asyncio.FIRST_COMPLETED)
            if not putting.done():
                self._done.result()
                raise BadRequest("the image is complete")
            self.received += len(piece)
        finally:
            self._busy = False
            putting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await putting

    async def finish(self) -> None:
        """Wait until the target has all of it. Raises why it was not flashed."""
        if not self.over and self.received < self.size:
            raise BadRequest(f"{self.size - self.received} bytes of the image are missing")
        await asyncio.shield(self._done)
