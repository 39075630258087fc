"""Lasting disks as qcow2 files in the data directory, made with ``qemu-img``.

A file gets its name only when it is complete and on disk, so a named file is whole after a
crash at any moment; what has no name is removed at the next start. Files are not deleted
because an object is missing: only ``delete`` deletes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bullpen.core.targets.disks import Create, StoredDisk
from bullpen.errors import NoCapacity, Refused, StorageFailed
from bullpen.placements.base import Artifact, Key
from bullpen.placements.local import capacity, layout
from bullpen.placements.local.artifacts import CHUNK_BYTES, ArtifactCache
from bullpen.placements.local.layout import Layout

TEMPORARY = ".new"
"""Ending of files that are not complete."""

TOOL_SECONDS_MAX = 3600.0
"""Copying a large image takes minutes; a tool that takes longer has hung."""

COPIES_MAX = 2
"""Copies made at the same time: they compete for one disk."""

SECTOR_BYTES = 512
"""``qemu-img`` rounds the size of a new disk up to whole sectors."""

FileVersion = tuple[int, ...] | None
"""What changes with every write to a file: inode, sizes, times; None if it is gone."""

_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


class LocalDiskStorage:
    """Stores disks below one data directory, which no other process uses."""

    def __init__(self, data: Path, *, host: str) -> None:
        self.host = host
        self._layout = Layout(data)
        self._artifacts = ArtifactCache(self._layout.cache)
        self._copies = asyncio.Semaphore(COPIES_MAX)
        self._seen: dict[Path, tuple[FileVersion, StoredDisk]] = {}

    def prepare(self) -> None:
        """Create the directory, and remove what an earlier process did not complete."""
        self._layout.disks.mkdir(mode=layout.PRIVATE, parents=True, exist_ok=True)
        for leftover in self._layout.disks.glob(f"*{TEMPORARY}"):
            leftover.unlink(missing_ok=True)

    async def look(self, key: Key, uid: str, *, attached_to: str = "") -> StoredDisk | None:
        """The content of a disk; None if it is gone.

        A file that was deleted by hand while a machine has it is brought back: the machine's
        directory has a second link to it.
        """
        path = self._layout.disk(key, uid)
        if not path.exists() and not self._relinked(path, (key[0], attached_to)):
            self._seen.pop(path, None)
            return None
        return await self._stored(path)

    async def _stored(self, path: Path) -> StoredDisk:
        """What a file holds; ``qemu-img`` is asked again only when the file was changed."""
        version = _version(path)
        seen = self._seen.get(path)
        if seen is not None and seen[0] == version:
            return seen[1]
        try:
            size = int((await self._info(path))["virtual-size"])
            found = StoredDisk(virtual_bytes=size, allocated_bytes=_allocated(path))
        except Refused as error:
            found = StoredDisk(
                virtual_bytes=0, allocated_bytes=_allocated(path), problem=str(error)
            )
        self._seen[path] = (version, found)
        return found

    def _relinked(self, path: Path, target: Key) -> bool:
        link = self._layout.attached(target, path.name)
        if not target[1] or not link.exists():
            return False
        os.link(link, path)
        _sync(path.parent)
        return True

    async def create(self, key: Key, uid: str, step: Create) -> StoredDisk:
        """Create the content, or return what exists. Raises ``NoCapacity``, ``Refused``, ..."""
        path = self._layout.disk(key, uid)
        if not path.exists():
            temporary = path.with_name(path.name + TEMPORARY)
            try:
                size = await self._fill(temporary, step)
                _sync(temporary)
                temporary.replace(path)
                _sync(path.parent)
            except OSError as error:
                raise _failed(error) from None
            finally:
                temporary.unlink(missing_ok=True)
            # The tool has just written it: it need not be asked what it has written.
            made = StoredDisk(virtual_bytes=size, allocated_bytes=_allocated(path))
            self._seen[path] = (_version(path), made)
        return await self._stored(path)

    async def _fill(self, temporary: Path, step: Create) -> int:
        """Write the content; returns the size of the disk for its machine."""
        source = await self._source(step)
        if source is None:
            assert step.size_bytes is not None, "a blank disk has a size"
            self._reserve(0)
            await _tool("create", "-q", "-f", "qcow2", str(temporary), str(step.size_bytes))
            return -(-step.size_bytes // SECTOR_BYTES) * SECTOR_BYTES
        image, image_format = source
        info = await self._info(image, image_format)
        size = int(info["virtual-size"])
        if step.size_bytes is not None and step.size_bytes < size:
            raise Refused(f"spec.size is {step.size_bytes} bytes, and its source has {size}")
        async with self._copies:
            needed = await _tool("measure", "--output=json", "-f", image_format, "-O", "qcow2",
                                 str(image))  # fmt: skip
            self._reserve(int(json.loads(needed)["required"]))
            await _tool("convert", "-q", "-f", image_format, "-O", "qcow2", str(image),
                        str(temporary))  # fmt: skip
        if step.size_bytes is not None and step.size_bytes > size:
            await _tool("resize", "-q", "-f", "qcow2", str(temporary), str(step.size_bytes))
            return step.size_bytes
        return size

    async def _source(self, step: Create) -> tuple[Path, str] | None:
        if step.copy_of is not None:
            meta = step.copy_of.metadata
            return self._layout.disk((meta.namespace, meta.name), meta.uid), "qcow2"
        image = step.image
        if image is None:
            return None
        found = await self._artifacts.find(
            Artifact(path=image.path, url=image.url, digest=image.digest)
        )
        if image.path and image.digest:
            await asyncio.to_thread(_verify, found, image.digest)
        return found, image.format.value

    def _reserve(self, needed: int) -> None:
        free = capacity.free_disk(self._layout.disks)
        if free < needed + capacity.DISK_BYTES_MIN:
            raise NoCapacity(
                f"it needs {needed >> 20} MiB besides a reserve of"
                f" {capacity.DISK_BYTES_MIN >> 20} MiB, and {free >> 20} MiB are free below"
                f" {self._layout.disks}"
            )

    async def grow(self, key: Key, uid: str, size_bytes: int) -> StoredDisk:
        """Grow the content to at least this size; no machine has it open."""
        path = self._layout.disk(key, uid)
        if int((await self._info(path))["virtual-size"]) < size_bytes:
            self._reserve(0)
            await _tool("resize", "-q", "-f", "qcow2", str(path), str(size_bytes))
            _sync(path)
        return await self._stored(path)

    async def delete(self, key: Key, uid: str) -> None:
        """Delete the content; absent is a success."""
        path = self._layout.disk(key, uid)
        self._seen.pop(path, None)
        try:
            path.unlink(missing_ok=True)
            path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
            _sync(path.parent)
        except OSError as error:
            raise _failed(error) from None

    async def _info(self, path: Path, image_format: str = "qcow2") -> dict[str, Any]:
        # A machine may have it open, so no lock is taken.
        printed = await _tool("info", "-U", "--output=json", "-f", image_format, str(path))
        found: dict[str, Any] = json.loads(printed)
        if found.get("format-specific", {}).get("data", {}).get("corrupt"):
            raise Refused(f"{path} is marked as corrupt; check it with qemu-img check")
        return found


def _version(path: Path) -> FileVersion:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_blocks, found.st_mtime_ns, found.st_ctime_ns


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _verify(path: Path, digest: str) -> None:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    if digest != f"sha256:{found.hexdigest()}":
        raise Refused(f"{path} has digest sha256:{found.hexdigest()}, not {digest}")


def _sync(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failed(error: OSError) -> NoCapacity | StorageFailed:
    if error.strerror in _FULL:
        return NoCapacity(str(error))
    return StorageFailed(str(error))


async def _tool(*arguments: str) -> bytes:
    """The output of ``qemu-img``. Raises ``NoCapacity``, ``StorageFailed`` or ``Refused``."""
    process = await asyncio.create_subprocess_exec(
        "qemu-img", *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"PATH": os.defpath, "LC_ALL": "C"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(TOOL_SECONDS_MAX):
            printed, said = await process.communicate()
    except TimeoutError:
        raise StorageFailed(f"qemu-img did not end within {TOOL_SECONDS_MAX:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    code = await process.wait()
    if code == 0:
        return printed
    words = said.decode(errors="replace").strip() or f"exit code {code}"
    if code < 0:
        # It was killed, or could not be started: that says nothing about the disk.
        raise StorageFailed(f"qemu-img was killed by signal {-code}: {words}")
    if any(text in words for text in _FULL):
        raise NoCapacity(words)
    if "Failed to get" in words and "lock" in words:
        raise StorageFailed(words)
    raise Refused(words)
