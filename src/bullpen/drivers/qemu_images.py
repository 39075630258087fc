"""Disk images, made and examined with ``qemu-img``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from bullpen.drivers import launching, sandbox
from bullpen.drivers.qemu_command import Drive, standalone_name
from bullpen.drivers.sandbox import Access


class Disk(BaseModel):
    """A disk of the machine: what is on it at first, and how large it is."""

    name: str
    base: Path | None = None
    format: Literal["qcow2", "raw"] = "qcow2"
    """Of the base."""

    size: int | None = None
    """Bytes; that of the base unless given."""


@dataclass(frozen=True, slots=True)
class ImageTool:
    """``qemu-img``, here or where the machine runs."""

    launcher: str = ""
    """Socket of who starts it there; empty for here."""

    async def make_overlay(self, path: Path, disk: Disk) -> None:
        """A disk that holds only what differs from its base, made in a few milliseconds."""
        base = ("-b", str(disk.base), "-F", disk.format) if disk.base else ()
        size = () if disk.size is None else (str(disk.size),)
        await self._run("create", "-q", "-f", "qcow2", *base, str(path), *(() if base else size))

    async def grow(self, path: Path, image_format: str, size: int | None) -> None:
        """Make an overlay at least ``size`` large; it never shrinks."""
        if size is not None and (await self.info(path, image_format))["virtual-size"] < size:
            await self._run("resize", "-q", "-f", image_format, str(path), str(size))

    async def resize(self, path: Path, image_format: str, size: int) -> None:
        """Give a flashed image this size, without opening any other file for it."""
        name = standalone_name(Drive(name="", path=str(path), format=image_format))
        # What a lessee sent is opened here, so this does not see more than that.
        await self._run("resize", "-q", name, str(size), access=Access(writable=(str(path),)))

    async def info(self, path: Path, image_format: str = "") -> dict[str, Any]:
        chosen = ("-f", image_format) if image_format else ()
        printed = await self._run("info", "--output=json", *chosen, str(path))
        found: dict[str, Any] = json.loads(printed)
        return found

    async def _run(self, *arguments: str, access: Access | None = None) -> bytes:
        command = ("qemu-img", *arguments)
        if self.launcher:
            return await launching.run(self.launcher, command)
        chosen = sandbox.Sandbox() if access is None else sandbox.current()
        return await chosen.run(command, access=access or Access())
