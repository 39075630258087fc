"""The durable store: a ledger in memory, a log in SQLite, one writer thread.

Reads never touch the disk. A write is acknowledged after the transaction it shares with
others has been synced. A failed write did not happen, with one exception that cannot be
excluded: the disk took the data, failed to sync it, and the process died before the next
commit.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

from bullpen.errors import TooManyRequests, Unavailable
from bullpen.store import copying
from bullpen.store.copying import Order
from bullpen.store.database import Database
from bullpen.store.journaled import JournaledStore
from bullpen.store.ledger import Ledger
from bullpen.store.limits import DEFAULT_LIMITS, Limits
from bullpen.store.replay import Check, anything
from bullpen.store.writer import Writer


class SqliteStore(JournaledStore):
    """Created by ``open``; released by ``close``."""

    def __init__(
        self, database: Database, ledger: Ledger, limits: Limits, check: Check = anything
    ) -> None:
        self._check = check
        self._writer = Writer(database, self)
        self._copy: asyncio.Future[None] | None = None
        self._copies = count(1)
        super().__init__(ledger, lambda _: self._writer, limits)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        vfs: str | None = None,
        check: Check = anything,
    ) -> SqliteStore:
        """Open or create the database at ``path`` exclusively.

        Raises ``Refused``, with advice, when the file is in use or was created by another version,
        and ``Damaged`` when it is damaged or not ours; every value in it has to pass ``check``.
        ``vfs`` names the SQLite file system to use instead of the operating system's.
        """
        load = partial(Database.open, path, limits=limits, vfs=vfs, check=check)
        opening = asyncio.get_running_loop().run_in_executor(None, load)
        try:
            database, ledger = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_discard)
            raise
        return cls(database, ledger, limits, check)

    async def backup(self, path: Path) -> int:
        """Write a consistent copy to ``path`` and return its newest revision.

        The copy contains at least what was durable at the call, has been read back and verified,
        and replaces an older file at ``path`` atomically. Raises ``StorageFailed`` when it could
        not be made and ``TooManyRequests`` while another copy is in progress.
        """
        self._check_open()
        if self._copy is not None and not self._copy.done():
            raise TooManyRequests("a backup is already being made; wait for it")
        # Copies never share a file, even if an aborted one still exists.
        unfinished = path.with_name(f"{path.name}.partial{next(self._copies)}")
        self._copy = asyncio.get_running_loop().create_future()
        self._writer.copy(Order(unfinished, self._copy))
        try:
            await self._copy
            return await asyncio.to_thread(copying.publish, unfinished, path, self._check)
        except asyncio.CancelledError:
            # The writer removes unfinished copies; this removes the others.
            unfinished.unlink(missing_ok=True)
            raise

    def closed(self) -> None:
        if self._copy is not None and not self._copy.done():
            self._copy.set_exception(Unavailable("the store was closed before the copy was made"))
        super().closed()


def _discard(opening: asyncio.Future[tuple[Database, Ledger]]) -> None:
    """The caller was cancelled; close what was opened for it."""
    if not opening.cancelled() and opening.exception() is None:
        database, _ = opening.result()
        database.close()
