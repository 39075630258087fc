"""Flashes a machine's partitions, so that the machine opens exactly the checked image.

An image is written to a new file, examined when it is complete, and given a name that was
never used before. No later flash touches that file again; only the machine writes to it.

A few kilobytes can decompress to gigabytes. Jumpstarter's own streams decompress each chunk
at once; the ones here never produce more than a fixed amount at a time, whatever the chunk
contains.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from uuid import UUID

from anyio.streams.file import FileReadStream
from jumpstarter.driver import Driver, export
from jumpstarter.driver.flasher import FlasherInterface
from jumpstarter.streams.encoding import (
    SIGNATURE_BUFFER_SIZE,
    Compression,
    compress_stream,
    create_decompressor,
    detect_compression_from_signature,
)
from jumpstarter_driver_qemu import driver as published

from bullpen.drivers.downloads import FetchRefused, Sources, requested
from bullpen.drivers.image_headers import HEADER_BYTES_MAX, ImageRefused, read_header
from bullpen.drivers.sizes import shown

if TYPE_CHECKING:
    from bullpen.drivers.qemu import Qemu

FIRMWARE_BYTES_MAX = 64 << 20
"""Maximum size of a partition that holds firmware, its variables or a kernel."""

FIRMWARE_PARTITIONS = ("bios", "kernel", "OVMF_CODE.fd", "OVMF_VARS.fd")
"""Partitions that are loaded as they are, whatever their format."""

PRIVATE = 0o600

PIECE_BYTES_MAX = 1 << 20
"""The most that is decompressed before it is written."""

XZ_MEMORY_BYTES_MAX = 128 << 20
"""An image compressed with the largest preset of xz needs half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flashed:
    """A complete, verified image that replaces a partition."""

    path: Path
    format: str
    """Determined when it was flashed: later writes of the guest cannot change it."""

    virtual_bytes: int

    def open(self) -> BinaryIO:
        """The image, or ``OSError``: the machine may have put a link to another file there."""
        handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.fdopen(handle, "rb")


class Occupation:
    """The current operation on a machine: one at a time.

    Driver calls of one lease run concurrently, on the event loop and in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current = ""

    @contextlib.contextmanager
    def of(self, doing: str) -> Iterator[None]:
        """Run an operation; raises ``RuntimeError`` while another one is running."""
        with self._lock:
            if self._current:
                raise RuntimeError(
                    f"the machine is {self._current}; wait until that is done, then try again"
                )
            self._current = doing
        try:
            yield
        finally:
            with self._lock:
                self._current = ""


class FlashStore:
    """The flashed partitions of one machine."""

    def __init__(
        self, directory: Callable[[], Path], *, verbatim: Collection[str] = FIRMWARE_PARTITIONS
    ) -> None:
        """``verbatim``: partitions that are loaded as they are, whatever their format."""
        self._directory = directory
        self._verbatim = verbatim
        self._flashed: dict[str, Flashed] = {}
        self._files_made = 0

    def get(self, partition: str) -> Flashed | None:
        return self._flashed.get(partition)

    def opened(self, partition: str) -> Flashed | None:
        """The partition for a machine that is about to open it, verified once more.

        A raw image stays raw whatever its guest wrote to it.
        """
        found = self.get(partition)
        if found is None or found.format == "raw":
            return found
        current = _examined(found.path)
        if current.format != found.format:
            raise ImageRefused(f"{partition} was flashed as {found.format} and is not any more")
        return current

    async def write(self, partition: str, content: AsyncIterator[bytes], *, bytes_max: int) -> None:
        """Replace the partition with ``content``. The old image stays if this fails."""
        path = self._new_path(partition)
        try:
            await _written(path, content, partition=partition, bytes_max=bytes_max)
            found = _examined(path, verbatim=partition in self._verbatim)
            if found.virtual_bytes > bytes_max:
                raise too_large(partition, found.virtual_bytes, bytes_max)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        old, self._flashed[partition] = self._flashed.get(partition), found
        if old is not None:
            old.path.unlink(missing_ok=True)

    def resized(self, partition: str, virtual_bytes: int) -> None:
        """Record that the image was enlarged."""
        self._flashed[partition] = replace(self._flashed[partition], virtual_bytes=virtual_bytes)

    def _new_path(self, partition: str) -> Path:
        self._files_made += 1
        return self._directory() / f"{partition}.flashed-{self._files_made}"


def too_large(partition: str, asked: int, granted: int) -> ValueError:
    return ValueError(
        f"{partition} cannot have {shown(asked)}: the class of this target grants at most"
        f" {shown(granted)}; ask its owner to raise resources.storage or the disk's size"
    )


async def _written(
    path: Path, content: AsyncIterator[bytes], *, partition: str, bytes_max: int
) -> None:
    """Write a new file, up to the allowed size."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
    total = 0
    with os.fdopen(handle, "wb") as file:
        async for chunk in content:
            total += len(chunk)
            if total > bytes_max:
                raise too_large(partition, total, bytes_max)
            file.write(chunk)


def _examined(path: Path, *, verbatim: bool = False) -> Flashed:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if verbatim:
            return Flashed(path=path, format="raw", virtual_bytes=size)
        header = read_header(file.read(HEADER_BYTES_MAX), file_bytes=size)
    return Flashed(path=path, format=header.format, virtual_bytes=header.virtual_bytes)


class Flashable(Protocol):
    """A target whose partitions can be flashed."""

    occupation: Occupation
    flashed: FlashStore

    def sources(self) -> Sources:
        """Where an image may be fetched from."""

    def is_on(self) -> bool: ...

    def partition_name(self, partition: str | None) -> str:
        """The full partition name; raises ``ValueError`` if there is no such partition."""

    async def granted_bytes(self, partition: str) -> int:
        """The maximum size of a partition."""


@dataclass(kw_only=True)
class ImageFlasher(FlasherInterface, Driver):
    """Flashes images that a client sends, or names by URL."""

    parent: Flashable

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_opendal.client.FlasherClient"

    @export  # type: ignore[untyped-decorator]
    async def flash(self, source: Any, partition: str | None = None) -> None:
        if str(source).startswith("oci://"):
            raise no_registry()
        # Opened first, so that a refused stream is closed too and its sender does not hang.
        async with self.resource(source) as stream:
            name = self.parent.partition_name(partition)
            with self.parent.occupation.of(f"being flashed ({name})"):
                if self.parent.is_on():
                    raise RuntimeError(
                        f"{name} cannot be flashed while the machine is switched on;"
                        " switch it off first"
                    )
                bytes_max = await self.parent.granted_bytes(name)
                await self.parent.flashed.write(name, unpacked(stream), bytes_max=bytes_max)

    @export  # type: ignore[untyped-decorator]
    async def dump(self, target: Any, partition: str | None = None) -> None:
        """Send back what was flashed."""
        async with self.resource(target) as stream:
            name = self.parent.partition_name(partition)
            found = self.parent.flashed.get(name)
            if self.parent.is_on():
                raise RuntimeError(f"{name} cannot be dumped while the machine is switched on")
            if found is None:
                raise ValueError(f"there is nothing to dump: {name} was not flashed in this lease")
            async with FileReadStream(found.open()) as content:
                async for chunk in content:
                    await stream.send(chunk)

    @contextlib.asynccontextmanager
    async def _resource_from_client_stream(
        self, resource_uuid: UUID, content_encoding: str | None
    ) -> AsyncIterator[Any]:
        """As published, but decompressed in bounded pieces."""
        compression = Compression(content_encoding) if content_encoding else None
        async with self.resources[resource_uuid] as stream:
            try:
                yield _ClientStream(stream, compression)
            finally:
                del self.resources[resource_uuid]

    @contextlib.asynccontextmanager
    async def _resource_from_presigned(
        self,
        headers: dict[str, str],
        url: str,
        method: str,
        timeout: int,
    ) -> AsyncIterator[Any]:
        async with requested(self.parent.sources(), headers, url, method, timeout) as stream:
            yield stream


@dataclass(kw_only=True)
class QemuFlasher(ImageFlasher, published.QemuFlasher):
    """The flasher of a machine. Clients see the published one."""

    parent: Qemu

    @classmethod
    def client(cls) -> str:
        return str(published.QemuFlasher.client())

    @export  # type: ignore[untyped-decorator]
    async def flash_oci(
        self,
        oci_url: str,
        partition: str | None = None,
        oci_username: str | None = None,
        oci_password: str | None = None,
    ) -> AsyncIterator[tuple[str, str, int | None]]:
        """Refused: the program that would fetch it follows any redirect of a registry."""
        raise no_registry()
        yield  # makes this a streaming call, as published


def no_registry() -> FetchRefused:
    return FetchRefused(
        "images are not fetched from registries here; pull it, for example with oras or skopeo,"
        " and flash the file instead"
    )


class _ClientStream:
    """A client's end of a transfer: images are read from it, and dumps are sent to it."""

    def __init__(self, stream: Any, compression: Compression | None) -> None:
        self._content = decompressed(stream, compression)
        self._sent = compress_stream(stream, compression)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._content

    async def send(self, data: bytes) -> None:
        await self._sent.send(data)


class Decompressor(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress ``data``, in pieces of at most ``PIECE_BYTES_MAX``."""


class _Zlib:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=47)  # accepts gzip and zlib

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            yield self._inner.decompress(data, PIECE_BYTES_MAX)
            data = self._inner.unconsumed_tail


class _Buffered:
    """Decompressors that buffer unused input themselves."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while not self._inner.eof:
            yield self._inner.decompress(data, PIECE_BYTES_MAX)
            data = b""
            if self._inner.needs_input:
                return


def decompressor(compression: Compression) -> Decompressor:
    if compression is Compression.GZIP:
        return _Zlib()
    if compression is Compression.XZ:
        return _Buffered(lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX))
    return _Buffered(create_decompressor(compression))


async def decompressed(
    source: AsyncIterator[bytes], compression: Compression | None
) -> AsyncIterator[bytes]:
    """Decompress ``source``. Raises ``ValueError`` if it is damaged."""
    if compression is None:
        async for chunk in source:
            yield chunk
        return
    inner = decompressor(compression)
    async for chunk in source:
        try:
            for piece in inner.pieces(chunk):
                yield piece
        except Exception as error:  # each library has its own exceptions
            raise ValueError(f"the {compression} data is damaged: {error}") from None


async def unpacked(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress ``source`` if its first bytes show a known compression."""
    beginning = b""
    async for chunk in source:
        beginning += chunk
        if len(beginning) >= SIGNATURE_BUFFER_SIZE:
            break
    compression = detect_compression_from_signature(beginning)
    async for piece in decompressed(_rejoined(beginning, source), compression):
        yield piece


async def _rejoined(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for chunk in rest:
        yield chunk
