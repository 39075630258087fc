"""Directories of former instances that ``reclaimPolicy: Retain`` kept: their list and its bounds.

They have the disks of a target and may be large. Nothing else ever removes them, so their
number, age and total size are limited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bullpen.placements.local import layout
from bullpen.placements.local.layout import Layout

BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""

_KEPT_AT = re.compile(r"-(\d{8}T\d{6}\.\d{6}Z)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    keep: int = 50
    """The most directories."""

    age_max: timedelta = timedelta(days=30)
    bytes_max: int = 100 << 30
    """All directories together; the newest is kept even if it is larger by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    path: Path
    at: datetime
    """When its instance was removed."""

    bytes: int
    """Space on the disk; the files of sparse disks look larger."""

    @property
    def name(self) -> str:
        return self.path.name


def listed(places: Layout) -> tuple[Retained, ...]:
    """What is kept, the oldest first."""
    found = (_measured(path) for path in places.kept())
    return tuple(sorted((r for r in found if r is not None), key=lambda r: (r.at, r.name)))


def excess(
    found: Sequence[Retained], limits: RetentionLimits, *, now: datetime
) -> tuple[Retained, ...]:
    """What has to go, given everything that is kept, the oldest first."""
    young = [kept for kept in found if now - kept.at <= limits.age_max]
    staying = young[max(0, len(young) - limits.keep) :]
    while len(staying) > 1 and sum(kept.bytes for kept in staying) > limits.bytes_max:
        staying = staying[1:]
    return tuple(kept for kept in found if kept not in staying)


def sweep(places: Layout, limits: RetentionLimits, *, now: datetime) -> tuple[Retained, ...]:
    """Delete what exceeds the limits, and return it. Raises ``OSError``."""
    gone = excess(listed(places), limits, now=now)
    for kept in gone:
        layout.wipe(kept.path)
    return gone


def _measured(path: Path) -> Retained | None:
    """None if another program has deleted it in between."""
    try:
        inside = [entry.lstat() for entry in path.rglob("*")]
        return Retained(
            path=path,
            at=_kept_at(path),
            bytes=BLOCK_BYTES * sum(found.st_blocks for found in inside),
        )
    except FileNotFoundError:
        return None


def _kept_at(path: Path) -> datetime:
    """The time in its name; of a renamed directory, its modification time."""
    found = _KEPT_AT.search(path.name)
    if found is None:
        return datetime.fromtimestamp(path.stat().st_mtime, tz=UTC)
    return datetime.strptime(found[1], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
