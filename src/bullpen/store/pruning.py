"""A copy without history: the newest value of each key, without deleted keys.

The history is for watchers that resume, and no watcher resumes from a backup. It may be
hundreds of times as large as the current state.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw

_PRUNE = """
BEGIN IMMEDIATE;
UPDATE meta
SET value = {leap} + max(value, (SELECT coalesce(max(revision), 0) FROM log))
WHERE name = 'oldest';
DELETE FROM log WHERE verb = 2 OR revision NOT IN (SELECT max(revision) FROM log GROUP BY key);
COMMIT;
VACUUM;
"""


def prune(path: Path, *, leap: int = 0) -> None:
    """Rewrite a copy in place; its newest revision is advanced by ``leap``.

    Raises ``apsw.Error``; the copy is unusable then.
    """
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        # If this file is lost before it is complete, its original still exists.
        connection.pragma("synchronous", "off")
        connection.pragma("journal_mode", "off")
        # The data contains secrets, and the directory of temporary files may be on any disk.
        connection.pragma("temp_store", "memory")
        connection.execute(_PRUNE.format(leap=leap)).fetchall()
