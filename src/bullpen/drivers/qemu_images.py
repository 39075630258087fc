"""Disk images, created and examined with ``qemu-img``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from bullpen.drivers import launcher_client, sandbox
from bullpen.drivers.qemu_command import Drive, standalone_name
from bullpen.drivers.sandbox import Access


class Disk(BaseModel):
    """A disk of the machine: its initial content and its size."""

    name: str
    base: Path | None = None
    format: Literal["qcow2", "raw"] = "qcow2"
    """Format of the base image."""

    size: int | None = None
    """In bytes; by default the size of the base image."""


@dataclass(frozen=True, slots=True)
class ImageTool:
    """``qemu-img``, here or where the machine runs."""

    launcher: str = ""
    """Socket of the launcher there; empty to run it here."""

    async def make_overlay(self, path: Path, disk: Disk) -> None:
        """Create a disk that stores only differences from its base, in a few milliseconds."""
        base = ("-b", str(disk.base), "-F", disk.format) if disk.base else ()
        size = () if disk.size is None else (str(disk.size),)
        await self._run("create", "-q", "-f", "qcow2", *base, str(path), *(() if base else size))

    async def grow(self, path: Path, image_format: str, size: int | None) -> None:
        """Grow an overlay to at least ``size``; it never shrinks."""
        if size is not None and (await self.info(path, image_format))["virtual-size"] < size:
            await self._run("resize", "-q", "-f", image_format, str(path), str(size))

    async def resize(self, path: Path, image_format: str, size: int) -> None:
        """Resize a flashed image, without opening any other file for it."""
        name = standalone_name(Drive(name="", path=str(path), format=image_format))
        # The tool opens an image from a lessee here, so its sandbox contains nothing else.
        await self._run("resize", "-q", name, str(size), access=Access(writable=(str(path),)))

    async def info(self, path: Path, image_format: str = "") -> dict[str, Any]:
        chosen = ("-f", image_format) if image_format else ()
        printed = await self._run("info", "--output=json", *chosen, str(path))
        found: dict[str, Any] = json.loads(printed)
        return found

    async def _run(self, *arguments: str, access: Access | None = None) -> bytes:
        command = ("qemu-img", *arguments)
        if self.launcher:
            return await launcher_client.run(self.launcher, command)
        chosen = sandbox.Sandbox() if access is None else sandbox.current()
        return await chosen.run(command, access=access or Access())
