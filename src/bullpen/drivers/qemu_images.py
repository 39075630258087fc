"""Disk images, made and examined with ``qemu-img``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from anyio import run_process
from pydantic import BaseModel

FLASHED_FORMATS = ("raw", "qcow2")


class Disk(BaseModel):
    """A disk of the machine: what is on it at first, and how large it is."""

    name: str
    base: Path | None = None
    format: Literal["qcow2", "raw"] = "qcow2"
    """Of the base."""

    size: int | None = None
    """Bytes; that of the base unless given."""


async def make_overlay(path: Path, disk: Disk) -> None:
    """A disk that holds only what differs from its base, made in a few milliseconds."""
    base = ("-b", str(disk.base), "-F", disk.format) if disk.base else ()
    size = () if disk.size is None else (str(disk.size),)
    await _qemu_img("create", "-q", "-f", "qcow2", *base, str(path), *(() if base else size))


async def grow(path: Path, image_format: str, size: int | None) -> None:
    """Make the disk at least ``size`` large; it never shrinks."""
    if size is not None and (await image_info(path, image_format))["virtual-size"] < size:
        await _qemu_img("resize", "-q", "-f", image_format, str(path), str(size))


async def checked_format(path: Path) -> str:
    """Format of what a lessee flashed.

    An image that names other files would have QEMU open files of this host for its guest.
    """
    info = await image_info(path)
    if info["format"] not in FLASHED_FORMATS:
        raise ValueError(f"images of format {info['format']} cannot be flashed here")
    details = info.get("format-specific", {}).get("data", {})
    if "backing-filename" in info or "data-file" in details:
        raise ValueError("an image that refers to other files cannot be flashed here")
    return str(info["format"])


async def image_info(path: Path, image_format: str = "") -> dict[str, Any]:
    chosen = ("-f", image_format) if image_format else ()
    found: dict[str, Any] = json.loads(await _qemu_img("info", "--output=json", *chosen, str(path)))
    return found


async def _qemu_img(*arguments: str) -> bytes:
    done = await run_process(("qemu-img", *arguments), check=False)
    if done.returncode:
        raise RuntimeError(f"qemu-img {arguments[0]}: {done.stderr.decode().strip()}")
    return done.stdout
