"""A copy without its past: the newest value of each key, and nothing of what was deleted.

The history is for watchers that resume, and nobody resumes from a backup. It may be hundreds
of times as large as what there is.
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
    """Rewrite a copy that nobody else uses; its newest revision moves ahead by ``leap``.

    Raises ``apsw.Error``; the copy is of no use then.
    """
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        # Whatever happens to this file before it is complete, its original is still there.
        connection.pragma("synchronous", "off")
        connection.pragma("journal_mode", "off")
        # Secrets are in it, and the place for temporary files may be on any disk.
        connection.pragma("temp_store", "memory")
        connection.execute(_PRUNE.format(leap=leap)).fetchall()
