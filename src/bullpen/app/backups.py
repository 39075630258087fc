"""Backups of the state: made while the service runs, verified, bounded in number and age.

Which backups may be deleted is a pure decision. A backup is deleted only after a newer one
was read back and found valid, and the newest is never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from bullpen.app.datadir import Layout
from bullpen.errors import Damaged, LabError, Refused
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.store.sqlite import SqliteStore

log = logging.getLogger("bullpen.backups")

FIRST_SECONDS = 60.0
"""Delay after a start, so that a service in a restart loop does not spend its time copying."""

LAST_SECONDS_MAX = 10.0
"""Time limit of the backup at a clean stop."""


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


def found(directory: Path) -> tuple[Backup, ...]:
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
    kept = found(layout.backups)
    if kept and not layout.database.exists():
        raise Damaged(
            f"{layout.database} is missing, but there are backups of it. {_way_back(layout, kept)};"
            f" to start with an empty lab, move {layout.backups} away"
        )
    try:
        return await SqliteStore.open(layout.database, check=readable)
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
        kept = found(self._directory)
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
            for backup in surplus(found(self._directory), self._schedule, now=now):
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
