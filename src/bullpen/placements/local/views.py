"""Parts of a mount namespace's view: places that are hidden, and paths shown in them again."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bullpen.drivers import linux

EMPTY_OPTIONS = "mode=0755,size=1m,nr_inodes=8192"
EVERYONE_ENTERS = stat.S_IXOTH


def closed_above(path: Path) -> Iterator[Path]:
    """Directories above ``path`` that another user could not enter."""
    for place in path.parents:
        if place.exists() and not place.stat().st_mode & EVERYONE_ENTERS:
            yield place


def empty(place: Path) -> None:
    """Mount an empty directory over ``place``."""
    linux.mount("tmpfs", str(place), "tmpfs", linux.MS_NOSUID, EMPTY_OPTIONS)


def show(handle: int, path: Path) -> None:
    """Mount the handle's file or directory at its path, in a hidden place."""
    if path.exists() and os.path.samestat(path.stat(), os.fstat(handle)):
        return
    is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)
    (path if is_directory else path.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if not is_directory:
        path.touch(mode=0o644)
    linux.mount(f"/proc/self/fd/{handle}", str(path), "", linux.MS_BIND | linux.MS_REC)
