"""A consistent copy of a live database, a few pages at a time.

The writer thread also copies, between its commits, so no write waits long, and writes
committed meanwhile end up in the copy. The history is removed from the copy, and it gets
its final name only after it has been read back and verified.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw

from bullpen.errors import LabError, Refused, StorageFailed
from bullpen.store import file, inspecting
from bullpen.store.pruning import prune
from bullpen.store.replay import Check, anything

COPY_PAGES = 256
"""Pages copied between two commits: 2 MiB."""


@dataclass(frozen=True, slots=True)
class Order:
    """A requested copy. Cancelling ``done`` aborts it."""

    target: Path
    done: asyncio.Future[None]


class Copier:
    """Carries out one order at a time, on the thread that owns the source."""

    def __init__(self, source: Source, post: Callable[[Callable[[], None]], None]) -> None:
        self._source = source
        self._post = post
        """Schedules a call on the event loop."""

        self._current: tuple[Copy, Order] | None = None

    @property
    def busy(self) -> bool:
        return self._current is not None

    def begin(self, order: Order) -> None:
        """Start an order. A previous order must have been cancelled."""
        self.stop()
        try:
            self._current = self._source.copy(order.target), order
        except Exception as error:  # any error must be reported to the caller
            self._fail(order, error)

    def step(self) -> None:
        """Copy a few pages, if an order is in progress."""
        if self._current is None:
            return
        copy, order = self._current
        if order.done.cancelled():
            self.stop()
            return
        try:
            complete = copy.step()
        except Exception as error:
            copy.close()
            self._fail(order, error)
        else:
            if complete:
                self._current = None
                self._post(lambda: _settle(order, None))

    def stop(self) -> None:
        """Abort the current order. Its caller knows why."""
        if self._current is not None:
            copy, order = self._current
            copy.close()
            self._current = None
            _remove(order.target)

    def _fail(self, order: Order, error: Exception) -> None:
        self._current = None
        _remove(order.target)
        failure = _failure(error)
        self._post(lambda: _settle(order, failure))


class Copy:
    """A copy in progress. Step it on the thread that owns the source."""

    def __init__(self, source: apsw.Connection, target: Path) -> None:
        file.make_private(target)
        self._connection = apsw.Connection(str(target))
        # The target is not read before it is complete and synced.
        self._connection.pragma("synchronous", "off")
        self._connection.pragma("journal_mode", "off")
        self._backup = self._connection.backup("main", source, "main")

    def step(self) -> bool:
        """Copy more pages; True once the copy is complete. Raises ``apsw.Error``."""
        if not self._backup.step(COPY_PAGES):
            return False
        self._backup.finish()
        self._connection.close()
        return True

    def close(self) -> None:
        self._backup.close(force=True)
        self._connection.close(force=True)


class Source(Protocol):
    def copy(self, target: Path) -> Copy:
        """Begin a copy. Raises ``apsw.Error`` or ``OSError``."""


def publish(copy: Path, target: Path, check: Check = anything) -> int:
    """Prune and verify a finished copy and rename it; returns its newest revision.

    Raises ``StorageFailed`` and removes the copy when it is invalid.
    """
    try:
        with file.refusals(copy):
            prune(copy)
        content = inspecting.inspect(copy, check=check)
        file.move_into_place(copy, target)
    except (OSError, Refused) as error:
        copy.unlink(missing_ok=True)
        raise _failure(error) from error
    return content.revision


def _failure(error: Exception) -> StorageFailed:
    # SQLite does not always attach its message to the step that failed.
    cause = type(error).__name__ if str(error) == "not an error" else str(error)
    return StorageFailed(f"the backup was not made: {cause}; the store itself is not affected")


def _remove(copy: Path) -> None:
    # A disk that failed the copy may fail this too; the file name will be reused.
    with contextlib.suppress(OSError):
        copy.unlink(missing_ok=True)


def _settle(order: Order, failure: LabError | None) -> None:
    if order.done.done():
        return
    if failure is None:
        order.done.set_result(None)
    else:
        order.done.set_exception(failure)
