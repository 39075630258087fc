"""Backups of the state: made while the service runs, verified, bounded; and their restore.

Which backups may be deleted is a pure decision. A backup is deleted only after a newer one
was read back and found valid, and the newest is never deleted.

A restore keeps the previous database, never overwrites it, and can be interrupted at any
point: from the first change to the last, a marker file lies beside the database. With the
marker, the service refuses to start, and a second restore continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from bullpen.datadir.directory import DataDirectory, Layout
from bullpen.errors import Damaged, LabError, NotFound, Refused
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.registry.lists import is_cold
from bullpen.store import copies as store_restoring
from bullpen.store.copies import Content, inspect
from bullpen.store.file import move_into_place
from bullpen.store.sqlite import SqliteStore

log = logging.getLogger("bullpen.backups")

FIRST_SECONDS = 60.0
"""Delay after a start, so that a service in a restart loop does not spend its time copying."""

LAST_SECONDS_MAX = 10.0
"""Time limit of the backup at a clean stop."""

_PARTS = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often, how many, and for how long."""

    every: timedelta
    keep: int
    max_age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    path: Path
    made_at: datetime


def stored_backups(directory: Path) -> tuple[Backup, ...]:
    """The backups in a directory, newest first."""
    paths = directory.glob("state-*.db") if directory.exists() else ()
    known = (Backup(path=path, made_at=at) for path in paths if (at := _made_at(path)))
    return tuple(sorted(known, key=lambda backup: backup.made_at, reverse=True))


def surplus(backups: Sequence[Backup], schedule: Schedule, *, now: datetime) -> tuple[Backup, ...]:
    """The backups that may be deleted, given all of them, newest first."""
    return tuple(
        backup
        for place, backup in enumerate(backups)
        if place > 0 and (place >= schedule.keep or backup.made_at < now - schedule.max_age)
    )


def readable(value: bytes) -> object:
    """Check that a stored value is JSON. Raises ``ValueError``."""
    return msgspec.json.decode(value, type=msgspec.Raw)


async def open_store(layout: Layout) -> SqliteStore:
    """The store of a data directory. A damaged one is refused, with how to restore it."""
    if layout.restoring.exists():
        raise Refused(
            f"a restore of {layout.root} was interrupted;"
            f" run it again: bullpen restore --data {layout.root}"
        )
    kept = stored_backups(layout.backups)
    if kept and not layout.database.exists():
        raise Damaged(
            f"{layout.database} is missing, but there are backups of it. {_way_back(layout, kept)};"
            f" to start with an empty lab, move {layout.backups} away"
        )
    try:
        return await SqliteStore.open(layout.database, check=readable, cold=is_cold)
    except Damaged as error:
        raise Damaged(f"{error}. {_way_back(layout, kept)}") from error


def _way_back(layout: Layout, kept: Sequence[Backup]) -> str:
    if not kept:
        return f"There is no backup in {layout.backups}"
    made = times.text(kept[0].made_at)
    return f"To restore a backup: bullpen restore --data {layout.root} (newest backup: {made})"


class BackupKeeper:
    """Makes backups while it runs, and a last one at the end."""

    def __init__(
        self, store: SqliteStore, directory: Path, schedule: Schedule, *, clock: Clock
    ) -> None:
        self._store = store
        self._directory = directory
        self._schedule = schedule
        self._clock = clock
        self._ready = asyncio.Event()
        self._newest = -1
        """The revision of the last backup; an unchanged state is not copied again."""

    def service_ready(self) -> None:
        """The service has started: the state can be served, so copies of it are good.

        Until then no backup is made and none is deleted: a service that cannot start must not
        replace the backups it could be restored from.
        """
        self._ready.set()

    async def run(self) -> None:
        """Make a backup whenever one is due, until cancelled."""
        await self._ready.wait()
        kept = stored_backups(self._directory)
        due = kept[0].made_at + self._schedule.every if kept else self._clock.now()
        seconds = max(FIRST_SECONDS, (due - self._clock.now()).total_seconds())
        while True:
            await asyncio.sleep(min(seconds, self._schedule.every.total_seconds()))
            await self.make()
            seconds = self._schedule.every.total_seconds()

    async def make(self) -> None:
        """Back up the durable state, unless unchanged. A failure is logged, not raised."""
        if self._store.revision == self._newest:
            return
        now = self._clock.now()
        path = self._directory / f"state-{now:%Y%m%dT%H%M%S%z}.db"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            _remove_unfinished(self._directory)
            self._newest = await self._store.backup(path)
            for backup in surplus(stored_backups(self._directory), self._schedule, now=now):
                backup.path.unlink(missing_ok=True)
        except (LabError, OSError) as error:
            log.warning("backup failed", extra={"key": path, "cause": str(error)})
        else:
            log.debug("backup made", extra={"key": path, "revision": self._newest})

    async def finish(self) -> None:
        """Make the last backup, if the service was ready and there is time."""
        if not self._ready.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS_MAX):
                await self.make()


def _remove_unfinished(directory: Path) -> None:
    """Remove the unfinished backup of a killed process; no other process makes backups."""
    for path in directory.glob("state-*.db.partial*"):
        path.unlink(missing_ok=True)


def _made_at(path: Path) -> datetime | None:
    """When a backup was made, by its file name; None for other files."""
    try:
        return datetime.strptime(path.name, "state-%Y%m%dT%H%M%S%z.db")
    except ValueError:
        return None


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
    return tuple(_look(backup) for backup in stored_backups(layout.backups))


def restore(root: Path, chosen: str, *, now: datetime) -> Restored:
    """Restore the given backup, or the newest valid one. Raises ``Refused`` or ``NotFound``."""
    if not root.is_dir():
        raise NotFound(f"{root} does not exist; is --data the right directory?")
    with DataDirectory.open(root) as directory:
        layout = directory.layout
        source = _named(layout, chosen) if chosen else _newest_sound(layout)
        before = inspect(source, check=readable)
        fresh = layout.database.with_name(layout.database.name + ".restored")
        content = store_restoring.rebuild(source, fresh, check=readable)
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
    for backup in stored_backups(layout.backups):
        if not _look(backup).problem:
            return backup.path
    raise Refused(f"there is no sound backup in {layout.backups}; nothing was changed")


def _look(backup: Backup) -> Finding:
    try:
        content = inspect(backup.path, check=readable)
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
