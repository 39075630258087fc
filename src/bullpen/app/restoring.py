"""Restores a backup. The previous database is kept, never overwritten.

A restore can be interrupted at any point: from the first change to the last, a marker file
lies beside the database. With the marker, the service refuses to start, and a second
restore continues.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bullpen.app import backups
from bullpen.app.backups import Backup
from bullpen.app.datadir import DataDirectory, Layout
from bullpen.errors import NotFound, Refused
from bullpen.store import restoring
from bullpen.store.file import move_into_place
from bullpen.store.inspecting import Content, inspect

_PARTS = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A backup and the result of its verification."""

    backup: Backup
    size: int
    content: Content | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    backup: Path
    backup_revision: int
    content: Content
    set_aside: Path | None
    """The new location of the previous database."""


def survey(layout: Layout) -> tuple[Finding, ...]:
    """Every backup, newest first, each read completely."""
    return tuple(_look(backup) for backup in backups.found(layout.backups))


def restore(root: Path, chosen: str, *, now: datetime) -> Restored:
    """Restore the given backup, or the newest valid one. Raises ``Refused`` or ``NotFound``."""
    if not root.is_dir():
        raise NotFound(f"{root} does not exist; is --data the right directory?")
    with DataDirectory.open(root) as directory:
        layout = directory.layout
        source = _named(layout, chosen) if chosen else _newest_sound(layout)
        before = inspect(source, check=backups.readable)
        fresh = layout.database.with_name(layout.database.name + ".restored")
        content = restoring.rebuild(source, fresh, check=backups.readable)
        layout.restoring.touch(mode=0o600)
        aside = _set_aside(layout, now)
        move_into_place(fresh, layout.database)
        layout.restoring.unlink()
    return Restored(
        backup=source, backup_revision=before.revision, content=content, set_aside=aside
    )


def _named(layout: Layout, chosen: str) -> Path:
    for path in (layout.backups / chosen, Path(chosen)):
        if path.is_file():
            return path
    raise NotFound(
        f"backup {chosen} does not exist; bullpen restore --data {layout.root} --list shows them"
    )


def _newest_sound(layout: Layout) -> Path:
    for backup in backups.found(layout.backups):
        if not _look(backup).problem:
            return backup.path
    raise Refused(f"there is no sound backup in {layout.backups}; nothing was changed")


def _look(backup: Backup) -> Finding:
    try:
        content = inspect(backup.path, check=backups.readable)
    except Refused as error:
        return Finding(backup=backup, size=_size(backup.path), content=None, problem=str(error))
    return Finding(backup=backup, size=_size(backup.path), content=content)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _set_aside(layout: Layout, now: datetime) -> Path | None:
    """Move all files of the previous database away together."""
    database = layout.database
    parts = [database.with_name(database.name + end) for end in _PARTS]
    present = [part for part in parts if part.exists()]
    if not present:
        return None
    target = layout.root / "set-aside" / f"{now:%Y%m%dT%H%M%S.%fZ}"
    target.mkdir(mode=0o700, parents=True)
    for part in present:
        os.rename(part, target / part.name)
    return target
